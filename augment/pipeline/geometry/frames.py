"""Windows of random crops; and frames: where each pixel of a stored image lies in what the model gets, as matrices.

    frame = geometry . resize of the crop's window . turn by the EXIF orientation          (N, 3, 3) float64

A frame maps (x, y, 1) of the image as it is stored, before its EXIF block turns it, to (x, y, w) of the output, which
after a perspective is yet to be divided by w. Pixel centers are at integers: an image's edges lie at -0.5 and at its
width - 0.5.
What moves pixels by other means than a matrix, as remaps do, is not in it; `op.moves` names these ops.
"""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from augment.data.dataset import ImageRef
from augment.data.image_faults import DECODER_ERRORS
from augment.data.images import MIRRORED, SIDEWAYS, is_decoded, open_image, orientation_of
from augment.params import Interval, Size
from augment.recipe.op_kinds import Array
from augment.support.errors import UserError

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
    height, width = sizes.T.astype(np.float64)
    (smallest, largest), (narrowest, widest) = (np.multiply.outer(area_range, height * width), aspect_range)
    most_w, most_h = (np.maximum(np.floor(limit), 1) for limit in (height * widest, width / narrowest))
    possible = (height * most_w >= smallest) & (width * most_h >= smallest)
    window_h, window_w = np.minimum(height, most_h), np.minimum(width, most_w)
    shrink = np.where(possible, np.sqrt(np.minimum(1, largest / (window_h * window_w))), 1)
    window_h, window_w = (np.maximum(np.floor(side * shrink), 1) for side in (window_h, window_w))
    rows = np.flatnonzero(possible)  # that have no window yet
    for attempt in range(_ATTEMPTS):
        area = smallest[rows] + (largest - smallest)[rows] * uniform[rows, attempt]
        aspect = narrowest * (widest / narrowest) ** uniform[rows, _ATTEMPTS + attempt]
        h, w = (np.maximum(np.rint(np.sqrt(square)), 1) for square in (area / aspect, area * aspect))
        # Rounded to whole pixels, the window of a small image may leave the range.
        fits = (h <= height[rows]) & (w <= width[rows]) & (w / h >= narrowest) & (w / h <= widest)
        window_h[rows[fits]], window_w[rows[fits]], rows = h[fits], w[fits], rows[~fits]
    top = np.floor(uniform[:, -2] * (height - window_h + 1))
    left = np.floor(uniform[:, -1] * (width - window_w + 1))
    return np.stack([top, left, top + window_h, left + window_w], axis=1)


def resizes(windows: Array, size: Size) -> Array:
    """Return the matrices that map windows, (N, 6) as of `GraphImage`, to a size, in pixels, (N, 3, 3)."""
    start, end = windows[:, 2:4], windows[:, 4:6]
    scale = np.array(size) / (end - start)
    matrix = np.tile(np.eye(3), (len(windows), 1, 1))
    for axis, column in ((0, 1), (1, 0)):  # windows hold y first
        matrix[:, axis, axis] = scale[:, column]
        matrix[:, axis, 2] = (0.5 - start[:, column]) * scale[:, column] - 0.5
    return matrix


def turns(orientations: NDArray[np.int64], sides: Array) -> Array:
    """Return the matrices that turn images as their EXIF orientations, (N,), say, from pixels to pixels, (N, 3, 3).

    `sides` are height and width of the upright images, (N, 2).
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
    """The EXIF orientations of images, each read when it is first asked for."""

    def __init__(self, files: Sequence[ImageRef]) -> None:
        self._files = files
        self._known = np.zeros(len(files), np.int64)  # 0: not read yet

    def of(self, index: Tensor) -> NDArray[np.int64]:
        """Return the orientations, (N,), 1 to 8, of the images of an index, (N, 1) on the CPU."""
        indices = index.flatten().numpy()
        for number in set(indices[self._known[indices] == 0].tolist()):
            self._known[number] = 1
            if not is_decoded(self._files[number]):
                with suppress(*DECODER_ERRORS, UserError), open_image(self._files[number]) as image:
                    self._known[number] = orientation_of(image)
        return np.asarray(self._known[indices])
