"""The table of what the kernel runs, by which the programs of samples and the kernel itself know stages."""

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

from augment.params import Size
from augment.pipeline.feed import Values
from augment.recipe.stage import Stage

BORDERS = {"constant": 0, "reflect_101": 1, "replicate": 2}

# Quantization of luma and chroma at quality 50, suggested in Annex K of the JPEG standard.
LUMA = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
CHROMA = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)


def _as_fed(stage: Stage, fed: dict[str, Values], size: Size) -> list[Values]:
    """Return the numbers that a routine takes of a stage, as columns, (N, any) each: what DALI's operators take."""
    return [value.reshape(len(value), np.prod(value.shape[1:], dtype=int)) for value in fed.values()]


def _warp(stage: Stage, fed: dict[str, Values], size: Size) -> list[Values]:
    return [*_as_fed(stage, fed, size), *_constants(fed, BORDERS[stage.border[0]], stage.border[1])]


def _motion_blur(stage: Stage, fed: dict[str, Values], size: Size) -> list[Values]:
    return [*_constants(fed, fed["kernel"].shape[1]), *_as_fed(stage, fed, size)]


def _jpeg(stage: Stage, fed: dict[str, Values], size: Size) -> list[Values]:
    return [_quantization()[fed["quality"]]]


def _downscale(stage: Stage, fed: dict[str, Values], size: Size) -> list[Values]:
    sides, whole = fed["side"], np.array(size, np.float32)
    return [sides, whole / sides, sides / whole, *_constants(fed, stage.steps[0].params["interpolation"] == "linear")]


def _erase(stage: Stage, fed: dict[str, Values], size: Size) -> list[Values]:
    *window, seed = _as_fed(stage, fed, size)
    params = stage.steps[0].params
    return [*window, *_constants(fed, ("constant", "mean", "noise").index(params["fill"]), params["level"]), seed]


def _constants(fed: dict[str, Values], *values: float) -> list[Values]:
    count = len(next(iter(fed.values())))
    return [np.full((count, 1), value, np.float32) for value in values]


# What the kernel runs, and what it takes of each: a kind of stage, or an op of the registry. A stage's code is its
# place here, from 1; 0 stands for a stage that does not apply to a sample. The first eight are all that policies need:
# without the others, the kernel compiles in less time.
ROUTINES: Mapping[str, Callable[[Stage, dict[str, Values], Size], list[Values]]] = {
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
    "jpeg": _jpeg,
    "downscale": _downscale,
    "erase": _erase,
}
CODES = {name: number for number, name in enumerate(ROUTINES, 1)}
OF_POLICIES = CODES["equalize"]
PLANES = {"gaussian_blur", "jpeg", "downscale"}  # need memory for one channel as floats


@cache
def _quantization() -> NDArray[np.float32]:
    """Return the quantization tables of luma and chroma for each quality, (101, 128), rounded as DALI does."""
    quality = np.arange(101, dtype=np.float32)[:, None]
    scale = np.where(quality < 50, 50 / np.maximum(quality, 1), 2 - 2 * quality / 100)
    tables = np.array([LUMA, CHROMA], np.float32).reshape(1, -1)
    return np.asarray(np.clip(np.floor(scale * tables + 0.5), 1, 255), np.float32)
