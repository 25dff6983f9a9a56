"""Random crop windows, and frames: the matrices from pixels of stored images to pixels of the model's input.

    frame = geometry . resize of the crop window . turn by the EXIF orientation          (N, 3, 3) float64

A frame maps (x, y, 1) of the stored image, before its EXIF turn, to (x, y, w) of the output. After a perspective
transform, divide x and y by w. Pixel centers are at integers, so the edges of an image are at -0.5 and at its
width - 0.5. Frames leave out motion that is not a matrix, such as remaps. `op.moves` states how an op moves pixels.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from augment.data.dataset import ImageRef
from augment.data.formats.raster_files import stored_orientation
from augment.data.images import MIRRORED, SIDEWAYS
from augment.params import Interval, Size
from augment.recipe.op_kinds import Array

_ATTEMPTS = 10

# Numbers in [0, 1) per window: the area and the aspect ratio of each attempt, and the position.
COLUMNS = 2 * _ATTEMPTS + 2


def random_windows(uniform: Array, sizes: NDArray[np.int64], area_range: Interval, aspect_range: Interval) -> Array:
    """Convert uniform numbers to windows of random area, aspect ratio and position, distributed like DALI's windows.

    The area is uniform, the aspect ratio is uniform on a logarithmic scale, and the position is uniform over whole
    pixels. Of ten windows, the function returns the first that fits into the image. If none fits, it returns the
    largest window with an allowed aspect ratio, shrunk if its area is above the range. If no window with an allowed
    aspect ratio reaches the smallest area, the function returns the largest such window.

    Args:
        uniform: numbers in [0, 1), (N, COLUMNS).
        sizes: height and width of each image, (N, 2).
        area_range: area of the window, relative to the image.
        aspect_range: width of the window, relative to its height.

    Returns:
        Start and end, (y, x) in pixels, (N, 4).
    """
    height, width = sizes.T.astype(np.float64)
    smallest, largest = np.multiply.outer(area_range, height * width)
    narrowest, widest = aspect_range
    most_w, most_h = (np.maximum(np.floor(limit), 1) for limit in (height * widest, width / narrowest))
    possible = (height * most_w >= smallest) & (width * most_h >= smallest)
    window_h, window_w = np.minimum(height, most_h), np.minimum(width, most_w)
    shrink = np.where(possible, np.sqrt(np.minimum(1, largest / (window_h * window_w))), 1)
    window_h, window_w = (np.maximum(np.floor(side * shrink), 1) for side in (window_h, window_w))
    rows = np.flatnonzero(possible)  # the images that have no window yet
    for attempt in range(_ATTEMPTS):
        area = smallest[rows] + (largest - smallest)[rows] * uniform[rows, attempt]
        aspect = narrowest * (widest / narrowest) ** uniform[rows, _ATTEMPTS + attempt]
        h, w = (np.maximum(np.rint(np.sqrt(square)), 1) for square in (area / aspect, area * aspect))
        # Rounding to whole pixels can move the window of a small image out of the range.
        fits = (h <= height[rows]) & (w <= width[rows]) & (w / h >= narrowest) & (w / h <= widest)
        window_h[rows[fits]], window_w[rows[fits]] = h[fits], w[fits]
        rows = rows[~fits]
    top = np.floor(uniform[:, -2] * (height - window_h + 1))
    left = np.floor(uniform[:, -1] * (width - window_w + 1))
    return np.stack([top, left, top + window_h, left + window_w], axis=1)


def resizes(windows: Array, size: Size) -> Array:
    """Return the matrices, (N, 3, 3), that resize windows, (N, 6) as in `GraphImage`, to a size in pixels."""
    start, end = windows[:, 2:4], windows[:, 4:6]
    scale = np.array(size) / (end - start)
    matrix = np.tile(np.eye(3), (len(windows), 1, 1))
    for axis, column in ((0, 1), (1, 0)):  # windows store y first
        matrix[:, axis, axis] = scale[:, column]
        matrix[:, axis, 2] = (0.5 - start[:, column]) * scale[:, column] - 0.5
    return matrix


def turns(orientations: NDArray[np.int64], sides: Array) -> Array:
    """Return the matrices, (N, 3, 3), that map stored pixels to upright pixels, for EXIF orientations, (N,).

    `sides` are the height and width of the upright images, (N, 2).
    """
    swapped = orientations >= SIDEWAYS
    matrix = np.tile(np.eye(3), (len(orientations), 1, 1))
    matrix[swapped] = matrix[swapped][:, [1, 0, 2]]
    for axis, mirrored in enumerate(MIRRORED):
        rows = np.isin(orientations, mirrored)
        matrix[rows, axis] *= -1
        matrix[rows, axis, 2] = sides[rows, 1 - axis] - 1
    return matrix


class Orientations:
    """The EXIF orientations of images. Each is read at its first use."""

    def __init__(self, files: Sequence[ImageRef]) -> None:
        self._files = files
        self._known = np.zeros(len(files), np.int64)  # 0: not read yet

    def of(self, index: Tensor) -> NDArray[np.int64]:
        """Return the orientations, (N,), 1 to 8, of the images at the indices, (N, 1) on the CPU."""
        indices = index.flatten().numpy()
        for number in set(indices[self._known[indices] == 0].tolist()):
            self._known[number] = stored_orientation(self._files[number])
        return np.asarray(self._known[indices])
