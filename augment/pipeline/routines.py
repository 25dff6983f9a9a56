"""The table of what the kernel runs, by which the programs of samples and the kernel itself know stages."""

from collections.abc import Callable, Mapping

import numpy as np

from augment.pipeline.feed import Values
from augment.recipe.stage import Stage

BORDERS = {"constant": 0, "reflect_101": 1, "replicate": 2}
_FILLS = {"constant": 0, "mean": 1, "noise": 2}


def _as_fed(stage: Stage, fed: dict[str, Values], size: int) -> list[Values]:
    """Return the numbers that a routine takes of a stage, as columns, (N, any) each: what DALI's operators take."""
    return [value.reshape(len(value), np.prod(value.shape[1:], dtype=int)) for value in fed.values()]


def _warp(stage: Stage, fed: dict[str, Values], size: int) -> list[Values]:
    return [*_as_fed(stage, fed, size), *_constants(fed, BORDERS[stage.border[0]], stage.border[1])]


def _motion_blur(stage: Stage, fed: dict[str, Values], size: int) -> list[Values]:
    return [*_constants(fed, fed["kernel"].shape[1]), *_as_fed(stage, fed, size)]


def _erase(stage: Stage, fed: dict[str, Values], size: int) -> list[Values]:
    *window, seed = _as_fed(stage, fed, size)
    params = stage.steps[0].params
    return [*window, *_constants(fed, _FILLS[params["fill"]], params["level"]), seed]


def _constants(fed: dict[str, Values], *values: float) -> list[Values]:
    count = len(next(iter(fed.values())))
    return [np.full((count, 1), value, np.float32) for value in values]


# What the kernel runs, and what it takes of each: a kind of stage, or an op of the registry. A stage's code is its
# place here, from 1; 0 stands for a stage that does not apply to a sample. The first eight are all that policies need:
# without the others, the kernel compiles in less time.
ROUTINES: Mapping[str, Callable[[Stage, dict[str, Values], int], list[Values]]] = {
    "geometry": _warp,
    "color": _as_fed,
    "color of mean": _as_fed,
    "sharpen": _as_fed,
    "posterize": _as_fed,
    "solarize": _as_fed,
    "autocontrast": _as_fed,
    "equalize": _as_fed,
    "gaussian_blur": _as_fed,
    "motion_blur": _motion_blur,
    "gaussian_noise": _as_fed,
    "erase": _erase,
}
CODES = {name: number for number, name in enumerate(ROUTINES, 1)}
OF_POLICIES = CODES["equalize"]
