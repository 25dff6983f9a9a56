"""Random crop windows in NumPy, from the distribution that DALI draws them from."""

import numpy as np
from numpy.typing import NDArray

from augment.params import Interval
from augment.recipe.kinds import Array

_ATTEMPTS = 10

# Numbers in [0, 1) that a window takes: area and aspect ratio of each attempt, and its position.
COLUMNS = 2 * _ATTEMPTS + 2


def random_windows(uniform: Array, sizes: NDArray[np.int64], area_range: Interval, aspect_range: Interval) -> Array:
    """Turn numbers in [0, 1) into windows of random area, aspect ratio and position.

    As DALI does it: the area is uniform in its range, the aspect ratio uniform on a logarithmic scale. The first of ten
    windows that fits into the image and keeps the range of aspect ratios is taken. If none does, or the image is too
    wide or too tall for any window of the smallest area, the largest window of an allowed aspect ratio is taken; after
    ten attempts it is shrunk to the largest area. The position is uniform over whole pixels.

    Args:
        uniform: (N, COLUMNS).
        sizes: height and width of each image, (N, 2).
        area_range: area of the window over that of the image.
        aspect_range: width of the window over its height.

    Returns:
        Start and end, (y, x) in pixels, (N, 4).
    """
    height, width = (sizes[:, i, None].astype(np.float64) for i in (0, 1))
    (smallest, largest), (narrowest, widest) = (np.multiply(area_range, height * width).T[..., None], aspect_range)
    area = smallest + (largest - smallest) * uniform[:, :_ATTEMPTS]
    aspect = narrowest * (widest / narrowest) ** uniform[:, _ATTEMPTS : 2 * _ATTEMPTS]
    h, w = (np.maximum(np.rint(np.sqrt(square)), 1) for square in (area / aspect, area * aspect))
    most_w, most_h = (np.maximum(np.floor(limit), 1) for limit in (height * widest, width / narrowest))
    possible = (height * most_w >= smallest) & (width * most_h >= smallest)
    # Rounded to whole pixels, the window of a small image may leave the range.
    fits = possible & (h <= height) & (w <= width) & (w / h >= narrowest) & (w / h <= widest)
    last_h, last_w = np.minimum(height, most_h), np.minimum(width, most_w)
    shrink = np.where(possible, np.sqrt(np.minimum(1, largest / (last_h * last_w))), 1)
    last_h, last_w = (np.maximum(np.floor(side * shrink), 1) for side in (last_h, last_w))
    first = fits.argmax(axis=1)[:, None]
    taken = np.take_along_axis(fits, first, axis=1)
    window_h = np.where(taken, np.take_along_axis(h, first, axis=1), last_h)[:, 0]
    window_w = np.where(taken, np.take_along_axis(w, first, axis=1), last_w)[:, 0]
    top = np.floor(uniform[:, -2] * (height[:, 0] - window_h + 1))
    left = np.floor(uniform[:, -1] * (width[:, 0] - window_w + 1))
    return np.stack([top, left, top + window_h, left + window_w], axis=1)
