"""The parts of samples that are visible in the images of a batch. Targets are clipped to these parts and joined."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Parts:
    """P visible parts of the N samples of a batch.

    Attributes:
        images: the image that shows each part, (P,), ascending. The first part of an image belongs to its own sample.
        samples: the sample of each part, (P,).
        moves: scale s and shifts x and y, (P, 3). A point (u, v) of the sample appears at (s u + x, s v + y).
        rectangles: (P, 1 + C, 4) left, top, right and bottom edges in the image: the visible rectangle, then C
            rectangles in which other parts cover it.
    """

    images: Indices
    samples: Indices
    moves: Array
    rectangles: Array

    @classmethod
    def whole(cls, count: int, size: tuple[int, int]) -> Parts:
        """Return the parts of images that show only their own sample. `size` is height and width."""
        own, whole = np.arange(count), np.array([0.0, 0, size[1], size[0]])
        return cls(own, own, np.tile([1.0, 0, 0], (count, 1)), np.tile(whole, (count, 1, 1)))

    def mixed(self, placements: Array, *, blends: bool) -> Parts:
        """Return the parts after a batch op, which adds K other samples to each image.

        Args:
            placements: (N, 1 + K, 7), the result of the op's `parts`: rectangle, s, x and y. The first entry is for the
                image's previous content. The others are for the next K samples of the batch. The first sample follows
                the last.
            blends: whether the op blends the added samples with the content. Otherwise they cover it.
        """
        count, added = len(placements), placements[:, 1:]
        moves, rectangles = self._moved(placements[self.images, 0])
        if not blends:
            rectangles = np.concatenate([rectangles, added[self.images, :, :4]], axis=1)

        # Each added sample is one new part. Nothing covers it.
        new_images = np.repeat(np.arange(count), added.shape[1])
        new_samples = (new_images + np.tile(np.arange(added.shape[1]) + 1, count)) % count
        new_rectangles = np.zeros((len(new_images), *rectangles.shape[1:]))
        new_rectangles[:, 0] = added.reshape(-1, 7)[:, :4]
        new_moves = added.reshape(-1, 7)[:, 4:]

        images = np.concatenate([self.images, new_images])
        samples = np.concatenate([self.samples, new_samples])
        moves = np.concatenate([moves, new_moves])
        rectangles = np.concatenate([rectangles, new_rectangles])

        # The first part of each image is kept even if the image shows nothing of it.
        is_kept = areas(rectangles[:, 0]) > 0
        is_kept[self.own] = True
        order = np.argsort(images, kind="stable")
        order = order[is_kept[order]]
        rectangles = rectangles[order]
        covers_something = (areas(overlap(rectangles[:, :1], rectangles)) > 0).any(axis=0)
        return Parts(images[order], samples[order], moves[order], rectangles[:, covers_something])

    def _moved(self, placement: Array) -> tuple[Array, Array]:
        """Return the moves and rectangles of the parts after the content of each image moved.

        Args:
            placement: (P, 7), the rectangle, s, x and y of the content in each part's image.
        """
        scale, shift = placement[:, 4:5], placement[:, 5:]
        moves = self.moves * scale
        moves[:, 1:] += shift
        rectangles = self.rectangles * scale[:, None] + np.tile(shift, 2)[:, None]
        rectangles[:, 0] = overlap(rectangles[:, 0], placement)
        return moves, rectangles

    @property
    def own(self) -> Indices:
        """The index of each image's first part, which belongs to its own sample, (N,)."""
        return np.flatnonzero(np.diff(self.images, prepend=-1))

    @property
    def matrices(self) -> Array:
        """The matrices from sample pixels to image pixels, (P, 3, 3)."""
        matrices = np.tile(np.eye(3), (len(self.moves), 1, 1))
        matrices[:, [0, 1], [0, 1]] = scale = self.moves[:, :1]
        matrices[:, :2, 2] = self.moves[:, 1:] + (scale - 1) / 2
        return matrices

    def clip(self, boxes: Array, parts: Indices) -> tuple[Array, Array]:
        """Clip each box, (M, 4), to the visible region of its part. Return the boxes and their visible areas, (M,)."""
        low, high = np.split(self.rectangles[parts, 0], 2, axis=1)
        clipped = np.concatenate([side.clip(low, high) for side in np.split(boxes, 2, axis=1)], axis=1)
        area = areas(clipped)
        for cover in self.rectangles[parts, 1:].swapaxes(0, 1):
            hidden = overlap(clipped, cover)
            area, same = area - areas(hidden), hidden == clipped
            # If a cover hides one side of a box completely, move this side of the box to the cover's edge. If it also
            # hides the opposite side, leave both.
            for side in range(4):
                ends, other = same[:, 1 - side % 2 :: 2].all(axis=1), (side + 2) % 4
                cut = ends & same[:, side] & ~same[:, other] & (areas(hidden) > 0)
                clipped[cut, side] = hidden[cut, other]
        return clipped, area

    def shows(self, points: Array, parts: Indices) -> NDArray[np.bool_]:
        """Return whether points of parts, (M, P, 2) in pixels, are visible, (M, P)."""
        low, high = np.split(self.rectangles[parts][:, :, None] - 0.5, 2, axis=-1)
        inside = ((points >= low[:, 0]) & (points <= high[:, 0])).all(axis=-1)
        hidden = ((points[:, None] > low[:, 1:]) & (points[:, None] < high[:, 1:])).all(axis=-1)
        return np.asarray(inside & ~np.any(hidden, axis=1))


def overlap(boxes: Array, others: Array) -> Array:
    """Return the intersections of boxes, (..., 4). An empty intersection has no area."""
    low, high = np.maximum(boxes[..., :2], others[..., :2]), np.minimum(boxes[..., 2:4], others[..., 2:4])
    return np.concatenate([low, np.maximum(low, high)], axis=-1)


def areas(boxes: Array) -> Array:
    return np.asarray((boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1]))
