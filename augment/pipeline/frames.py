"""Frames: where each pixel of a stored image lies in what the model gets, as matrices.

    frame = geometry . resize of the crop's window . turn by the EXIF orientation          (N, 3, 3) float64

A frame maps (x, y, 1) of the image as it is stored, before its EXIF block turns it, to (x, y, w) of the output, which
after a perspective is yet to be divided by w. Pixel centers are at integers: an image's edges lie at -0.5 and at its
width - 0.5.
What moves pixels by other means than a matrix, as elastic does, is not in it; `op.moves` names these ops.
"""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from augment.data.dataset import ImageRef
from augment.data.faults import DECODER_ERRORS
from augment.data.images import SIDEWAYS, is_decoded, open_image, orientation_of
from augment.params import Size
from augment.recipe.kinds import Array
from augment.support.errors import UserError


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
    for axis, mirrored in ((0, (2, 3, 6, 7)), (1, (3, 4, 7, 8))):
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
