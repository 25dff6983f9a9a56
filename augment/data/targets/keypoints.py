"""A fixed number of points in each image."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from augment.data.targets.kind import Target, register
from augment.data.targets.spatial import Rules, SpatialKind, check_array
from augment.support.device import to_device
from augment.support.errors import UserError
from augment.support.formatting import list_some
from augment.support.lazy_torch import Tensor

if TYPE_CHECKING:
    from augment.drawing.target_overlays import Drawing
    from augment.pipeline.geometry.motion import BatchMotion


# Pairs of points, as indices; None: it is not known which are left and right of each other.
FlipPairs = tuple[tuple[int, int], ...] | None


@dataclass(frozen=True)
class Keypoints(SpatialKind):
    """P points, of which `Dataset.classes` are the names: (N, P, 3) float32 in a batch.

    A target is a tuple of (x, y, visibility): pixels with centers at integers; 0 not labeled, 1 hidden, 2 visible.

    Attributes:
        flip_pairs: pairs of points that are left and right of each other, such as the eyes; None: not known.
    """

    noun, units, task, unrepeated = "point", "keypoints", "keypoints", "keypoints"

    flip_pairs: FlipPairs = field(default=(), compare=False)

    def load(self, target: Target) -> NDArray[np.float32]:
        """Return the points as an array."""
        return np.array(target, np.float32)

    def follow(self, loaded: Sequence[Any], motion: BatchMotion, rules: Rules) -> Tensor:
        """Return (N, P, 3) float32: x, y in pixels of the output, and visibility, 0 outside of it."""
        points = np.stack(loaded)
        moved = move_points(points, np.arange(len(points)), motion, self.flip_pairs or ())
        return to_device({"points": moved}, motion.device)["points"]

    def draw(self, drawing: Drawing, target: Any, names: Sequence[str]) -> None:
        """Draw the points with their names."""
        drawing.points(np.asarray(target), self.flip_pairs or (), names)

    def given(self, targets: Any, count: int) -> list[Any]:
        """Return points, (N, P, 2) or (N, P, 3)."""
        allowed = f"({count}, P, 2) of x and y, or ({count}, P, 3) with visibility"
        points = check_array(targets, (count, None, None), "targets", allowed).astype(np.float32)
        if points.shape[2] == 2:
            points = np.concatenate([points, np.full_like(points[..., :1], 2)], axis=-1)
        if points.shape[2] != 3:
            raise UserError(f"targets: {points.shape}. Allowed: {allowed}.")
        return list(points)

    def fault(self, targets: Sequence[object], names: int) -> str:
        """Name one with another number of points."""
        odd = [t for t in targets if not isinstance(t, tuple) or len(t) != names or {len(p) for p in t} > {3}]
        return f"{odd[0]!r:.80}. Allowed: {names} points (x, y, visibility)." if odd else ""

    def caption(self, target: Any, names: Sequence[str]) -> str:
        """Return how many points are visible."""
        visible = int(np.count_nonzero(np.asarray(target)[..., 2] > 0))
        return f"{visible} of {len(names) or len(target)} points"

    def blank(self, names: int) -> Target:
        """Return points that are not labeled."""
        return ((0.0, 0.0, 0.0),) * names


def move_points(
    points: NDArray[np.float32], owners: NDArray[np.int64], motion: BatchMotion, flip_pairs: Sequence[tuple[int, int]]
) -> NDArray[np.float32]:
    """Return points, (K, P, 3) of the images of `owners`, (K,), as they are in the outputs, (K, P, 3).

    Where an image is mirrored, the points of each pair change places. Visibility is 0 where it is not shown, or was cut
    off by the crop or a step; x and y are not clamped.
    """
    count = points.shape[1]
    shown, (low, high) = np.ones((len(points), count), bool), motion.edges

    def watch(places: NDArray[np.float64]) -> None:
        shown[((places < low) | (places > high)).any(axis=1).reshape(shown.shape)] = False

    with np.errstate(invalid="ignore"):
        moved = motion.forward(points[..., :2].reshape(-1, 2).astype(np.float64), np.repeat(owners, count), watch)
        places = moved.reshape(-1, count, 2)
        visible = np.where(shown & motion.parts.shows(places, owners), points[..., 2], 0)
    found = np.concatenate([np.nan_to_num(places), visible[..., None]], axis=-1).astype(np.float32)
    rows = motion.mirrors[owners]
    found[rows] = found[rows][:, mirrored(count, flip_pairs)]
    return found


# Words for left and for right in names.
_SIDES = (
    "left right", "l r", "lft rgt", "links rechts", "linke rechte", "linker rechter", "linkes rechtes",
    "gauche droite", "gauche droit", "izquierda derecha", "izquierdo derecho", "izq der", "esquerda direita",
    "esquerdo direito", "sinistra destra", "sinistro destro", "sx dx", "lewy prawy", "lewa prawa", "lewe prawe",
    "левый правый", "левая правая", "левое правое", "左 右",
)  # fmt: skip
_WORD = re.compile(r"左|右|[^\W\d_]?[^\W\d_A-Z左右]+|[A-Z]+(?![a-z])|.", re.DOTALL)
_SIDED = {word for pair in _SIDES for word in pair.split() if len(word) > 2 or not word.isascii()}


def _words(name: str) -> tuple[str, ...]:
    """Return the words of a name in lower case; they begin at capitals, digits, signs, left and right."""
    parts = re.split("(left|right)", name, flags=re.IGNORECASE)
    return tuple(word.lower() for part in parts for word in ([part] if part.lower() in _SIDED else _WORD.findall(part)))


def pair_points(given: Sequence[Sequence[str]] | None, names: Sequence[str]) -> FlipPairs:
    """Return `data.flip_pairs`, pairs of names of points, as indices; None: those whose names tell left and right.

    Raises:
        UserError: one is no pair of two names.
    """
    for pair in given or ():
        if len(set(pair)) != 2 or not set(pair) <= set(names):
            example = "[[left_eye, right_eye]]"
            raise UserError(f"data.flip_pairs: {list(pair)}. Allowed: pairs of {', '.join(names)}, as {example}.")
    if given is not None:
        return tuple((names.index(left), names.index(right)) for left, right in given)
    numbers = {_words(name): number for number, name in enumerate(names)}
    pairs: dict[int, int] = {}
    for words, number in numbers.items():
        for left, right in map(str.split, _SIDES):
            other = numbers.get(tuple(right if word == left else word for word in words), number)
            if other != number and number not in pairs:
                pairs[number] = other
    paired = {*pairs, *pairs.values()}
    alone = any(not _SIDED.isdisjoint(words) and number not in paired for words, number in numbers.items())
    return tuple(pairs.items()) if (pairs and not alone) or len(names) < 2 else None


def missing_pairs(names: Sequence[str], where: str) -> UserError:
    """Return the error for mirrored images whose left and right points are unknown. `where` names the setting."""
    points = f"Their names ({list_some(names)}) do" if names else "The data does"
    arrays = "" if names else " For augment.Transform, pass flip_pairs=[(0, 1)], or flip_pairs=[]."
    return UserError(
        f"data.flip_pairs: missing. {where} mirrors images, so left and right keypoints must change places. "
        f"{points} not show which ones. Set pairs of names, such as [[left_eye,right_eye]], or [] if there are none."
        f"{arrays}"
    )


def mirrored(count: int, flip_pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Return for each point the one that takes its place in a mirror image."""
    order = list(range(count))
    for left, right in flip_pairs:
        order[left], order[right] = right, left
    return order


KEYPOINTS = register(Keypoints())
