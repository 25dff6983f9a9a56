"""Mosaic, mixup and cutmix in NumPy, written apart, slowly: image by image, and what each image shows of others."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from lazily import LazyModule
from numpy.typing import NDArray

from augment.recipe.plan import Plan

stats = LazyModule("scipy.stats")

Array = NDArray[Any]
Window = tuple[float, ...]


@dataclass
class Layer:
    """A sample as it is seen in an image: scaled and shifted in edge coordinates, within and without rectangles."""

    sample: int
    window: Window
    scale: float = 1.0
    shift: tuple[float, float] = (0.0, 0.0)
    covers: list[Window] = field(default_factory=list)

    def within(self, scale: float, shift: tuple[float, float], window: Window) -> "Layer":
        def place(box: Window) -> Window:
            return tuple(scale * edge + shift[n % 2] for n, edge in enumerate(box))

        moved = place(self.window)
        meet = (*map(max, moved[:2], window[:2]), *map(min, moved[2:], window[2:]))
        moved_shift = (scale * self.shift[0] + shift[0], scale * self.shift[1] + shift[1])
        return Layer(self.sample, meet, scale * self.scale, moved_shift, [place(box) for box in self.covers])

    def at(self, points: Array) -> Array:
        """Return where points, (..., 2) in pixels of the sample, are in the image."""
        return np.asarray((points + 0.5) * self.scale + self.shift - 0.5)

    def shows(self, points: Array) -> Array:
        """Return whether the image shows the sample at points in pixels, (..., 2)."""

        def inside(box: Window) -> Array:
            return np.asarray(((points + 0.5 > box[:2]) & (points + 0.5 < box[2:])).all(axis=-1))

        hidden = [inside(box) for box in self.covers]
        return inside(self.window) & ~np.any([np.zeros(points.shape[:-1], bool), *hidden], axis=0)

    def hull(self, box: Array) -> tuple[Array, float]:
        """Return the hull of what is seen of a box, by the cells of a grid of all edges, and the area of that."""
        edges = [sorted({*box[n::2], *(e for r in (self.window, *self.covers) for e in r[n::2])}) for n in (0, 1)]
        seen = [
            (x, y, right, bottom)
            for x, right in zip(edges[0], edges[0][1:], strict=False)
            for y, bottom in zip(edges[1], edges[1][1:], strict=False)
            if box[0] <= (x + right) / 2 <= box[2] and box[1] <= (y + bottom) / 2 <= box[3]
            if self.shows(np.array([(x + right) / 2, (y + bottom) / 2]) - 0.5)
        ]
        cells = np.array(seen).reshape(-1, 4)
        if not len(cells):
            return np.zeros(4), 0
        area = float(((cells[:, 2] - cells[:, 0]) * (cells[:, 3] - cells[:, 1])).sum())
        return np.concatenate([cells[:, :2].min(axis=0), cells[:, 2:].max(axis=0)]), area


def layers_of(
    plan: Plan, draws: Mapping[str, Mapping[str, Array]], images: Array
) -> tuple[list[list[Layer]], Array, Array]:
    """Mix images, (N, 3, H, W), step by step; return the layers of each, the images and the share of each sample."""
    count, _, height, width = images.shape
    made, shares, whole = images.copy(), np.eye(count), (0, 0, width, height)
    layers = [[Layer(row, whole)] for row in range(count)]
    for stage in plan.batch_stages:
        step = stage.steps[0]
        drawn, name = draws[step.key], step.op.name
        for row in np.flatnonzero(drawn["applied"]):
            other = (row + 1) % count
            x, y = (float(drawn[axis][row]) if axis in drawn else 0 for axis in "xy")
            if name == "mosaic":
                column, below = max(1, np.rint(width * x)), max(1, np.rint(height * y))
                before, layers[row], shares[row] = (made[row].copy(), layers[row], shares[row].copy()), [], 0
                for tile in range(4):
                    left, right = ((0, column), (column, width))[tile % 2]
                    top, bottom = ((0, below), (below, height))[tile // 2]
                    scale = max((right - left) / width, (bottom - top) / height)
                    shift = (left + right - scale * width) / 2, (top + bottom - scale * height) / 2
                    sample = (row + tile) % count
                    alone = images[sample], [Layer(sample, whole)], np.eye(count)[sample]
                    source, seen, share = alone if tile else before
                    if right > left and bottom > top:
                        layers[row] += [layer.within(scale, shift, (left, top, right, bottom)) for layer in seen]
                        made[row, :, int(top) : int(bottom), int(left) : int(right)] = scaled(
                            source, scale, shift, np.arange(left, right), np.arange(top, bottom)
                        )
                    shares[row] += share * (right - left) * (bottom - top) / (width * height)
                continue
            share = stats.beta.ppf(drawn["uniform"][row], step.params["alpha"], step.params["alpha"])
            if name == "mixup":
                made[row] = share * made[row] + (1 - share) * images[other]
                layers[row].append(Layer(other, whole))
            else:
                half = np.sqrt(1 - share) / 2
                left, right = (int(np.clip(np.rint(width * (x + s * half)), 0, width)) for s in (-1, 1))
                top, bottom = (int(np.clip(np.rint(height * (y + s * half)), 0, height)) for s in (-1, 1))
                made[row, :, top:bottom, left:right] = images[other, :, top:bottom, left:right]
                share = 1 - (right - left) * (bottom - top) / (width * height)
                for layer in layers[row]:
                    layer.covers.append((left, top, right, bottom))
                layers[row].append(Layer(other, (left, top, right, bottom)))
            shares[row] = share * shares[row] + (1 - share) * np.eye(count)[other]
    return layers, made, shares


def scaled(image: Array, scale: float, shift: tuple[float, float], columns: Array, rows: Array) -> Array:
    """Return pixels of a scaled image, linearly between those of the image."""
    found = image
    for axis, places, move in ((2, columns, shift[0]), (1, rows, shift[1])):
        last = image.shape[axis] - 1
        at = np.clip((places + 0.5 - move) / scale - 0.5, 0, last)
        low = np.floor(at).astype(int)
        part = (at - low).reshape([-1 if n == axis else 1 for n in range(3)])
        found = np.take(found, low, axis) * (1 - part) + np.take(found, np.minimum(low + 1, last), axis) * part
    return found


def traced(layer: Layer, frame: Array, height: int, width: int) -> tuple[Array, Array, Array]:
    """Return row and column of the stored pixel that each pixel shows of a layer, -1 for none, and if it is a tie."""
    y, x = np.mgrid[:height, :width]
    pixels = np.stack([x, y], axis=-1).astype(float)
    before = (pixels + 0.5 - layer.shift) / layer.scale - 0.5
    stored = np.einsum("ij,hwj->hwi", np.linalg.inv(frame), np.concatenate([before, np.ones_like(before[..., :1])], -1))
    column, row = (np.floor(stored[..., n] + 0.5).astype(int) for n in (0, 1))
    outside = (column < 0) | (row < 0) | (column >= width) | (row >= height) | ~layer.shows(pixels)
    row, column = np.where(outside, -1, row), np.where(outside, -1, column)
    return row, column, (abs((stored[..., :2] + 0.5) % 1 - 0.5) > 0.5 - 1e-6).any(axis=-1)
