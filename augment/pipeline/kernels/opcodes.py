"""The table of the stages that the kernel runs, which defines their codes and their values in programs."""

from collections.abc import Callable, Mapping
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from augment.params import Size
from augment.pipeline.graph.parameter_feed import FedValues
from augment.recipe.stage import Stage

BORDER_CODES = {"constant": 0, "reflect_101": 1, "replicate": 2}


def _as_fed(stage: Stage, fed: dict[str, FedValues], size: Size) -> list[FedValues]:
    """Return the values that DALI's operators would get, as columns, (N, any) each."""
    return [value.reshape(len(value), np.prod(value.shape[1:], dtype=int)) for value in fed.values()]


def _solarize(stage: Stage, fed: dict[str, FedValues], size: Size) -> list[FedValues]:
    return [np.ceil(value) for value in _as_fed(stage, fed, size)]  # the kernel compares whole levels


def _warp(stage: Stage, fed: dict[str, FedValues], size: Size) -> list[FedValues]:
    return [*_as_fed(stage, fed, size), *_constants(fed, BORDER_CODES[stage.border[0]], stage.border[1])]


def _motion_blur(stage: Stage, fed: dict[str, FedValues], size: Size) -> list[FedValues]:
    return [*_constants(fed, fed["kernel"].shape[1]), *_as_fed(stage, fed, size)]


def _downscale(stage: Stage, fed: dict[str, FedValues], size: Size) -> list[FedValues]:
    sides, whole = fed["side"], np.array(size, np.float32)
    return [sides, whole / sides, sides / whole, *_constants(fed, stage.steps[0].params["interpolation"] == "linear")]


def _erase(stage: Stage, fed: dict[str, FedValues], size: Size) -> list[FedValues]:
    *window, seed = _as_fed(stage, fed, size)
    params = stage.steps[0].params
    return [*window, *_constants(fed, ("constant", "mean", "noise").index(params["fill"]), params["level"]), seed]


def _constants(fed: dict[str, FedValues], *values: float) -> list[FedValues]:
    count = len(next(iter(fed.values())))
    return [np.full((count, 1), value, np.float32) for value in values]


# For each kind of stage and local op that the kernel runs, the function that returns its values. The code of a stage is
# its position here, from 1. Code 0 means that a stage does not apply to a sample. Policies need only the first eight
# entries. Without the others, the kernel compiles faster.
ROUTINES: Mapping[str, Callable[[Stage, dict[str, FedValues], Size], list[FedValues]]] = {
    "geometry": _warp,
    "color": _as_fed,
    "color of mean": _as_fed,
    "sharpen": _as_fed,
    "posterize": _as_fed,
    "solarize": _solarize,
    "autocontrast": _as_fed,
    "equalize": _as_fed,
    "gaussian_blur": _as_fed,
    "motion_blur": _motion_blur,
    "gaussian_noise": _as_fed,
    "jpeg": _as_fed,
    "downscale": _downscale,
    "erase": _erase,
}
CODES = {name: number for number, name in enumerate(ROUTINES, 1)}
LAST_OF_POLICIES = CODES["equalize"]  # the highest code that policies use
ANY_CHANNELS = {"geometry", "color", "color of mean", "gaussian_noise", "erase"}  # for images other than 8-bit RGB
PLANES = {"gaussian_blur", "jpeg", "downscale"}  # ops that need memory for one channel as floats


def quantization_tables() -> NDArray[np.float32]:
    """Return the quantization tables of luma and chroma for each quality, (101, 128), rounded as in DALI."""
    quality = np.arange(101, dtype=np.float32)[:, None]
    scale = np.where(quality < 50, 50 / np.maximum(quality, 1), 2 - 2 * quality / 100)
    return np.asarray(np.clip(np.floor(scale * standard_tables().reshape(1, -1) + 0.5), 1, 255), np.float32)


def standard_tables() -> NDArray[np.float32]:
    """Return the luma and chroma tables of the JPEG standard, Annex K, (2, 8, 8), as Pillow writes them."""
    file = BytesIO()
    Image.new("RGB", (8, 8)).save(file, "JPEG", quality=50)
    tables = JpegImageFile(BytesIO(file.getvalue())).quantization
    return np.array([tables[0], tables[1]], np.float32).reshape(2, 8, 8)
