"""JPEG artifacts as DALI's GPU operator makes them, in NumPy; its operator on the CPU compresses with libjpeg."""

import numpy as np
from numpy.typing import NDArray

from augment.pipeline.kernels.opcodes import standard_tables

Array = NDArray[np.float64]
_FREQUENCY = np.arange(8)
_COSINES = np.cos((2 * _FREQUENCY + 1) * _FREQUENCY[:, None] * np.pi / 16) / np.where(_FREQUENCY, 2, 8**0.5)[:, None]


def compressed(image: NDArray[np.uint8], quality: int) -> Array:
    """Return (height, width, 3) levels, compressed and decompressed."""
    height, width = image.shape[:2]
    rows, columns = (np.minimum(np.arange(-(-side // 16) * 16), side - 1) for side in (height, width))
    whole = image[rows][:, columns].astype(np.float32)
    quarters = whole.reshape(len(rows) // 2, 2, len(columns) // 2, 2, 3).mean(axis=(1, 3)).round()
    red, green, blue = np.moveaxis(whole, -1, 0)
    luma = _rounded(np.float32(0.299) * red + np.float32(0.587) * green + np.float32(0.114) * blue)
    blueness = _rounded(quarters @ [-0.16873589, -0.33126411, 0.5] + 128)
    redness = _rounded(quarters @ [0.5, -0.41868759, -0.08131241] + 128)
    y = _quantized(luma, standard_tables()[0], quality)
    cb, cr = (
        _quantized(plane, standard_tables()[1], quality).repeat(2, axis=0).repeat(2, axis=1) - 128
        for plane in (blueness, redness)
    )
    rgb = np.stack([y + 1.402 * cr, y - 0.34413629 * cb - 0.71413629 * cr, y + 1.772 * cb], axis=-1)
    return _rounded(rgb)[:height, :width]


def _quantized(plane: Array, table: NDArray[np.int64], quality: int) -> Array:
    scale = 50 / quality if quality < 50 else 2 - 2 * quality / 100
    steps = np.clip(np.floor(scale * table + 0.5), 1, 255)
    height, width = plane.shape
    blocks = (plane - 128).reshape(height // 8, 8, width // 8, 8).swapaxes(1, 2)
    numbers = _COSINES @ blocks @ _COSINES.T / steps
    numbers = np.copysign(np.floor(np.abs(numbers) + 0.5), numbers)
    return _rounded((_COSINES.T @ (numbers * steps) @ _COSINES).swapaxes(1, 2).reshape(plane.shape) + 128)


def _rounded(levels: Array) -> Array:
    return np.clip(np.floor(levels + 0.5), 0, 255)
