"""Keypoint targets: a fixed number of points per image."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from augment.data.targets.kind import Target, register
from augment.data.targets.spatial import Rules, SpatialKind, check_array, fault_of_shares
from augment.support.device import to_device
from augment.support.errors import UserError
from augment.support.formatting import list_some
from augment.support.lazy_torch import Tensor

if TYPE_CHECKING:
    from augment.drawing.target_overlays import Drawing
    from augment.pipeline.geometry.motion import BatchMotion


# Pairs of left and right points, as indices. None if they are unknown.
FlipPairs = tuple[tuple[int, int], ...] | None


@dataclass(frozen=True)
class Keypoints(SpatialKind):
    """Targets with P keypoints per image, named by `Dataset.classes`. A batch is (N, P, 3) float32.

    A target is a tuple of P points (x, y, visibility). Coordinates are in pixels, with integers at pixel centers.
    Visibility is 0 (not labeled), 1 (hidden) or 2 (visible).

    Attributes:
        flip_pairs: pairs of left and right points, such as the eyes. None if they are unknown.
    """

    noun, units, task, unrepeated = "point", "keypoints", "keypoints", "keypoints"

    flip_pairs: FlipPairs = field(default=(), compare=False)

    def load(self, target: Target) -> NDArray[np.float32]:
        return np.array(target, np.float32)

    def follow(self, loaded: Sequence[Any], motion: BatchMotion, rules: Rules) -> Tensor:
        """Return (N, P, 3) float32: x and y in output pixels, and visibility, which is 0 outside the output."""
        points = np.stack(loaded)
        moved = move_points(points, np.arange(len(points)), motion, self.flip_pairs or ())
        return to_device({"points": moved}, motion.device)["points"]

    def draw(self, drawing: Drawing, target: Any, names: Sequence[str]) -> None:
        drawing.points(np.asarray(target), self.flip_pairs or (), names)

    def from_memory(self, targets: Any, count: int) -> list[Any]:
        """Convert points, (N, P, 2) or (N, P, 3)."""
        allowed = f"({count}, P, 2) of x and y, or ({count}, P, 3) with visibility"
        points = check_array(targets, (count, None, None), "targets", allowed).astype(np.float32)
        if points.shape[2] == 2:
            points = np.concatenate([points, np.full_like(points[..., :1], 2)], axis=-1)
        if points.shape[2] != 3:
            raise UserError(f"targets: {points.shape} is not allowed. Use {allowed}.")
        if fault := fault_of_shares(points[..., :2], "points"):
            raise UserError(f"targets: {fault}")
        return list(points)

    def fault(self, targets: Sequence[object], names: int) -> str:
        """Describe the first target with the wrong number of points."""
        odd = [t for t in targets if not isinstance(t, tuple) or len(t) != names or {len(p) for p in t} > {3}]
        return f"{odd[0]!r:.80}. Use {names} points (x, y, visibility)." if odd else ""

    def caption(self, target: Any, names: Sequence[str]) -> str:
        """Return the number of visible points in words."""
        visible = int(np.count_nonzero(np.asarray(target)[..., 2] > 0))
        return f"{visible} of {len(names) or len(target)} points"

    def blank(self, names: int) -> Target:
        return ((0.0, 0.0, 0.0),) * names


def move_points(
    points: NDArray[np.float32], owners: NDArray[np.int64], motion: BatchMotion, flip_pairs: Sequence[tuple[int, int]]
) -> NDArray[np.float32]:
    """Move points like the pixels of their images.

    In a mirrored image, the points of each pair are swapped. Visibility becomes 0 if the output does not show the
    point, or if the crop or a step cuts it off. x and y are not clamped.

    Args:
        points: (K, P, 3) points of K objects.
        owners: (K,) the image of each object.
        motion: the motion of the pixels.
        flip_pairs: pairs of left and right points.

    Returns:
        (K, P, 3) points in the outputs.
    """
    count = points.shape[1]
    shown, (low, high) = np.ones((len(points), count), bool), motion.edges

    def watch(positions: NDArray[np.float64]) -> None:
        shown[((positions < low) | (positions > high)).any(axis=1).reshape(shown.shape)] = False

    with np.errstate(invalid="ignore"):
        moved = motion.forward(points[..., :2].reshape(-1, 2).astype(np.float64), np.repeat(owners, count), watch)
        positions = moved.reshape(len(points), count, 2)
        visible = np.where(shown & motion.parts.shows(positions, owners), points[..., 2], 0)
    found = np.concatenate([np.nan_to_num(positions), visible[..., None]], axis=-1).astype(np.float32)
    rows = motion.mirrors[owners]
    found[rows] = found[rows][:, mirrored(count, flip_pairs)]
    return found


# Words for left and right in names.
_SIDES = (
    "left right", "l r", "lft rgt", "links rechts", "linke rechte", "linker rechter", "linkes rechtes",
    "gauche droite", "gauche droit", "izquierda derecha", "izquierdo derecho", "izq der", "esquerda direita",
    "esquerdo direito", "sinistra destra", "sinistro destro", "sx dx", "lewy prawy", "lewa prawa", "lewe prawe",
    "левый правый", "левая правая", "левое правое", "左 右",
)  # fmt: skip
_WORD = re.compile(r"左|右|[^\W\d_]?[^\W\d_A-Z左右]+|[A-Z]+(?![a-z])|.", re.DOTALL)
_SIDED = {word for pair in _SIDES for word in pair.split() if len(word) > 2 or not word.isascii()}


def _words(name: str) -> tuple[str, ...]:
    """Split a name into lower-case words at capitals, digits, punctuation, "left" and "right"."""
    parts = re.split("(left|right)", name, flags=re.IGNORECASE)
    words = chain.from_iterable([part] if part.lower() in _SIDED else _WORD.findall(part) for part in parts)
    return tuple(map(str.lower, words))


def pair_points(given: Sequence[Sequence[str]] | None, names: Sequence[str]) -> FlipPairs:
    """Return pairs of left and right points as indices, or None if they are unknown.

    Args:
        given: `data.flip_pairs`, pairs of names. If None, pairs are found by the words for left and right in the names.
        names: the names of the points.

    Raises:
        UserError: an entry is not a pair of two names, or a name is in several pairs.
    """
    for pair in given or ():
        if len(set(pair)) != 2 or not set(pair) <= set(names):
            raise UserError(
                f"data.flip_pairs: {list(pair)} is not a pair of {', '.join(names)}. Example: [[left_eye, right_eye]]."
            )
    pairs_once = dict.fromkeys(map(frozenset, given or ()))  # some programs list both directions
    if twice := [name for name, count in Counter(chain.from_iterable(pairs_once)).items() if count > 1]:
        raise UserError(f"data.flip_pairs: {twice[0]} is in several pairs. Use each keypoint in one pair.")
    if given is not None:
        return tuple((names.index(left), names.index(right)) for left, right in given)
    numbers = {_words(name): number for number, name in enumerate(names)}
    pairs: dict[int, int] = {}
    for words, number in numbers.items():
        for left, right in map(str.split, _SIDES):
            # The left eye's right corner and the right eye's left corner are a pair. Start from the left eye.
            swapped = {left: right, right: left}
            first = next((word for word in words if word in swapped), "")
            other = numbers.get(tuple(swapped.get(word, word) for word in words), number)
            if first == left and other != number and number not in pairs:
                pairs[number] = other
    paired = {*pairs, *pairs.values()}
    is_unpaired = any(not _SIDED.isdisjoint(words) and number not in paired for words, number in numbers.items())
    return tuple(pairs.items()) if (pairs and not is_unpaired) or len(names) < 2 else None


def missing_pairs(names: Sequence[str], where: str) -> UserError:
    """Return the error for mirrored images with unknown left and right points. `where` names the setting."""
    points = f"Their names ({list_some(names)}) do" if names else "The data does"
    arrays = "" if names else " For augment.Transform, pass flip_pairs=[(0, 1)], or flip_pairs=[]."
    return UserError(
        f"data.flip_pairs is missing. {where} mirrors images, so left and right keypoints must be swapped. "
        f"{points} not show the pairs. Set pairs of names, such as [[left_eye,right_eye]], or [] if there are none."
        f"{arrays}"
    )


def mirrored(count: int, flip_pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Return the index of the point that replaces each point in a mirrored image.

    Raises:
        UserError: a point does not exist, or is in several pairs.
    """
    order = dict(enumerate(range(count)))
    for left, right in flip_pairs:
        order[left], order[right] = right, left
    if sorted(order.values()) != list(range(count)):
        raise UserError(
            f"flip_pairs: {list(flip_pairs)} is not allowed. Use each index from 0 to {count - 1} in at most one pair."
        )
    return list(order.values())


KEYPOINTS = register(Keypoints())
