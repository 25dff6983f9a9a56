"""Draw the masks of objects on demand, from polygons and run-length codes.

Polygons are in pixels from the top left corner of the image. A pixel belongs to a polygon if its center is inside by
the even-odd rule.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.data.image_faults import MAX_PIXELS
from augment.data.images import turn_back
from augment.data.targets.spatial import Digested

# Polygons, (n, 2) each, or the lengths of runs of 0 and 1 down the columns of the image, (R,).
Shape = tuple[NDArray[np.float32], ...] | NDArray[np.int64]

FAR = 1e9  # px, farther than any point of an image
MOST_COVERED = 2**30  # maximum number of pixels in the bounding boxes of an image's objects. Drawing takes a byte each
_AT_ONCE = 2**23  # maximum number of crossings of edges and rows that are computed at once, to limit memory


@dataclass(frozen=True, eq=False)
class Regions(Digested):
    """The objects of an image as a mask, an `augment.data.targets.spatial.StoredMask`.

    Attributes:
        name: the origin of the objects, for messages.
        height, width: size of the annotated image.
        shapes: the outlines of the objects.
        labels: the label of each object. Larger objects are drawn first.
        orientation: the file's EXIF orientation, if the upright image was annotated.
    """

    name: str
    height: int
    width: int
    shapes: tuple[Shape, ...]
    labels: tuple[int, ...]
    orientation: int = 1

    def read(self) -> NDArray[np.uint8]:
        """Return the labels, (height, width) as stored in the file, with 0 for the background."""
        found = np.zeros((self.height, self.width), np.uint8)
        drawn = [_fill(shape, self.height, self.width) for shape in self.shapes]
        for index in sorted(range(len(drawn)), key=lambda index: -int(drawn[index][1].sum())):
            (top, left), inside = drawn[index]
            found[top : top + inside.shape[0], left : left + inside.shape[1]][inside] = self.labels[index]
        return turn_back(found, self.orientation)

    def covered(self) -> int:
        """Return the number of pixels in the bounding boxes of all objects, which `read` draws one by one.

        If its parts overlap, or their edges cross more rows than they have pixels, an object counts more.
        """
        return sum(_covered(shape, self.height, self.width) for shape in self.shapes)

    @property
    def points(self) -> int:
        """The number of corners and runs of all objects. `covered` is at most this many times the image's pixels."""
        return sum(len(part) for shape in self.shapes for part in _parts(shape))

    def digested(self) -> Iterator[bytes]:
        """Yield the size, the labels and the outlines."""
        yield f"{self.height} {self.width} {self.labels}".encode()
        for shape in self.shapes:
            for part in _parts(shape):
                yield f"{part.shape}".encode() + part.tobytes()


def read_polygons(parts: Sequence[Any]) -> Shape:
    """Return polygons from lists of x1, y1, x2, y2 and so on.

    Raises:
        ValueError: a polygon has fewer than six numbers, an odd count, or numbers that are not finite.
    """
    polygons = []
    for part in parts:
        numbers = np.asarray(part, np.float64)
        if numbers.ndim != 1 or len(numbers) < 6 or len(numbers) % 2 or not (np.abs(numbers) < FAR).all():
            raise ValueError(f"a polygon of {numbers.size} numbers instead of x and y of at least three points")
        polygons.append(numbers.reshape(-1, 2).astype(np.float32))
    if not polygons:
        raise ValueError("no polygon")
    return tuple(polygons)


def read_runs(code: Any) -> tuple[Shape, tuple[int, int]]:
    """Return the runs and the size of COCO's code: {"size": [height, width], "counts": lengths or their text}.

    In the text, a character holds five bits. From the fourth run on, the text holds the difference to the run before
    the previous one. Source: pycocotools' maskApi.c.

    Raises:
        ValueError: the runs do not add up to the size.
    """
    counts = code["counts"]
    runs: list[int] = []
    if isinstance(counts, str):
        value = shift = 0
        for byte in counts.encode():
            value |= (byte - 48 & 31) << shift
            shift += 5
            if shift > 40:  # more bits than any length has
                raise ValueError("a run that is too long")
            if not byte - 48 & 32:
                value -= (1 << shift) if byte - 48 & 16 else 0
                runs.append(value + (runs[-2] if len(runs) > 2 else 0))
                value = shift = 0
    else:
        runs = counts
    lengths = np.asarray(runs, np.int64)
    height, width = map(int, code["size"])
    if min(height, width) < 0 or height * width > MAX_PIXELS:
        raise ValueError(f"a size of {[height, width]}, but at most {MAX_PIXELS:,} pixels are allowed")
    longest = lengths.max(initial=0)  # so that the sum cannot overflow
    if lengths.ndim != 1 or (lengths < 0).any() or longest > MAX_PIXELS or lengths.sum() != height * width:
        raise ValueError(f"runs of {lengths.sum()} pixels, but their size is {[height, width]}")
    return lengths, (height, width)


def _parts(shape: Shape) -> Sequence[NDArray[Any]]:
    return [shape] if isinstance(shape, np.ndarray) else shape


def _covered(shape: Shape, height: int, width: int) -> int:
    left, top, right, bottom = _bounds(shape, height, width)
    area = (right - left) * (bottom - top)
    if isinstance(shape, np.ndarray):
        return area
    if len(shape) > 1:
        return max(area, sum(_covered((polygon,), height, width) for polygon in shape))
    rows = _rows(shape[0][:, 1], height)
    return max(area, int(np.abs(np.diff(rows, append=rows[:1])).sum()))


def _rows(y: NDArray[Any], height: int) -> NDArray[np.int64]:
    """Return the first row of pixels whose centers are at or below each position."""
    return np.ceil(y - 0.5).clip(0, height).astype(np.int64)


def _bounds(shape: Shape, height: int, width: int) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of a part of the image that contains the whole object."""
    if isinstance(shape, np.ndarray):
        start, end = int(shape[:1].sum()), int(shape[: len(shape) // 2 * 2].sum())
        left = start // max(height, 1)
        return left, 0, max(-(-end // max(height, 1)), left), height
    points = np.concatenate(shape)
    limits = np.array([width, height])
    left, top = np.floor(points.min(axis=0)).clip(0, limits).astype(int).tolist()
    right, bottom = np.ceil(points.max(axis=0)).clip(0, limits).astype(int).tolist()
    return left, top, right, bottom


def _fill(shape: Shape, height: int, width: int) -> tuple[tuple[int, int], NDArray[np.bool_]]:
    """Return the top left corner of a part of the image, and which pixels of that part belong to the object."""
    left, top, right, bottom = _bounds(shape, height, width)
    if isinstance(shape, np.ndarray):
        drawn = np.repeat(np.arange(len(shape)) % 2 == 1, shape)[left * height : right * height]
        return (top, left), drawn.reshape(right - left, height).T.copy()
    inside = np.zeros((bottom - top, right - left), np.bool_)
    for polygon in shape:
        x, y, end_x, end_y = _bounds((polygon,), height, width)
        part = inside[y - top : end_y - top, x - left : end_x - left]
        part |= _inside(polygon - np.array([x, y]), *part.shape)
    return (top, left), inside


def _inside(polygon: NDArray[np.float64], height: int, width: int) -> NDArray[np.bool_]:
    """Return which pixels have their centers in a polygon.

    Along a row of pixel centers, inside and outside alternate at each edge that the row crosses.
    """
    points = np.concatenate([polygon, polygon[:1]])
    rows = _rows(points[:, 1], height)
    changes = np.zeros(height * (width + 1), np.int64)
    count = max(1, _AT_ONCE // max(1, height))
    for start in range(0, len(polygon), count):
        (x, y), (next_x, next_y) = points[start:-1][:count].T, points[start + 1 :][:count].T
        first, last = np.sort([rows[start:-1][:count], rows[start + 1 :][:count]], axis=0)
        crossed = last - first  # number of rows that each edge crosses
        edge = np.repeat(np.arange(len(x)), crossed)
        row = np.arange(len(edge)) - np.repeat(np.cumsum(crossed) - crossed - first, crossed)
        crossing = x[edge] + (row + 0.5 - y[edge]) / (next_y[edge] - y[edge]) * (next_x[edge] - x[edge])
        column = np.ceil(crossing - 0.5).clip(0, width).astype(np.int64)
        np.add.at(changes, row * (width + 1) + column, 1)
    return np.asarray(changes.reshape(height, width + 1).cumsum(axis=1)[:, :-1] % 2 == 1)
