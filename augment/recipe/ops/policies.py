"""Policies: published policies expand to our own ops, and combinators choose among nested steps.

The published policies use torchvision's magnitudes. RandAugment's magnitude goes up to 30. The authors' code and timm
go up to 10, so their 9 is 27 here. Deliberate differences from torchvision:

- Geometry is resampled bilinearly, and adjacent geometry or color ops are resampled or rounded only once.
- Shifts are not rounded to whole pixels.
- TrivialAugment's largest shift, 32 pixels, is 32/224 of the side.
- `equalize` works like OpenCV's. On 27 photos, its result differs from Pillow's by 3.5 of 255 levels on average, and
  by 24 levels on the worst photo.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.params import Choice, Count, Interval, Number, Param, Range, Values
from augment.recipe.op import combinator, policy
from augment.recipe.op_kinds import BORDER_DOC, BORDERS, Array

Steps = dict[str, dict[str, Any]]

_BINS = 31
_BORDER: dict[str, Param[Any]] = {
    "border": Choice(default="constant", options=BORDERS, doc=BORDER_DOC),
    "fill": Count(default=128, within=(0, 255), doc="gray level of a constant border"),
}

# The strength of each op at the highest magnitude. For posterize, it is the number of bits removed.
_RAND = {"shear": 0.3, "translate": 150 / 331, "rotate": 30.0, "factor": 0.9, "posterize": 4}
_WIDE = {"shear": 0.99, "translate": 32 / 224, "rotate": 135.0, "factor": 0.99, "posterize": 6}


def _op(name: str, shares: Iterable[float], strongest: dict[str, float], border: dict[str, Any]) -> dict[str, Any]:
    """Return the step that implements an op of the policies' papers.

    Args:
        name: the op's name in the papers, in snake_case.
        shares: the magnitudes to draw from, as shares of the highest magnitude.
        strongest: the strength of each op at the highest magnitude.
        border: the parameters border and fill of geometry ops.
    """
    shares, (kind, _, axis) = list(shares), name.partition("_")
    angles = [math.degrees(math.atan(share * strongest["shear"])) for share in shares]
    along, across = f"{axis}_range", "y_range" if axis == "x" else "x_range"
    factors = {"values": [1 + sign * share * strongest["factor"] for share in shares for sign in (-1, 1)]}
    steps: Steps = {
        "shear": {"op": "shear", along: _signed(angles), across: [0, 0], "center": "corner", **border},
        "translate": {"op": "translate", along: _signed([share * strongest["translate"] for share in shares]),
                      across: [0, 0], **border},
        "rotate": {"op": "rotate", "angle_range": _signed([share * strongest["rotate"] for share in shares]), **border},
        "posterize": {"op": "posterize",
                      "bits_range": {"values": [8 - round(share * strongest["posterize"]) for share in shares]}},
        "solarize": {"op": "solarize", "threshold_range": {"values": [255 * (1 - share) for share in shares]}},
        "autocontrast": {"op": "autocontrast"},
        "equalize": {"op": "equalize"},
        "invert": {"op": "invert"},
        "contrast": {"op": "contrast", "factor_range": factors, "pivot": "mean"},
        "brightness": {"op": "brightness", "factor_range": factors},
        "color": {"op": "saturation", "factor_range": factors},
        "sharpness": {"op": "sharpen", "factor_range": factors},
    }  # fmt: skip
    return steps[kind]


def _signed(sizes: list[float]) -> dict[str, list[float]]:
    return {"values": [sign * size for size in sizes for sign in (-1, 1)]}


# The ops of RandAugment and TrivialAugment. Their fourteenth op is the identity.
_OPS = (
    "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness", "color", "contrast", "sharpness",
    "posterize", "solarize", "autocontrast", "equalize",
)  # fmt: skip
_NOT_IDENTITY = len(_OPS) / (len(_OPS) + 1)


@policy(
    num_ops=Count(default=2, within=(1, 8), doc="number of ops applied in sequence"),
    magnitude=Number(
        default=9.0,
        within=(0, _BINS - 1),
        doc=f"strength of all ops, from 0 to {_BINS - 1} as in torchvision (timm's m9 is 27)",
    ),
    **_BORDER,
)
def rand_augment(num_ops: int, magnitude: float, **border: Any) -> Steps:
    """Apply a few of fourteen ops, all at the same magnitude (RandAugment, Cubuk et al. 2020)."""
    share = magnitude / (_BINS - 1)
    steps = {name: _op(name, [share], _RAND, border) for name in _OPS}
    return {f"{number + 1}": {"op": "one_of", "p": _NOT_IDENTITY, "steps": steps} for number in range(num_ops)}


@policy(**_BORDER)
def trivial_augment(**border: Any) -> Steps:
    """Apply one of fourteen ops at a random magnitude (TrivialAugment Wide, Mueller and Hutter 2021)."""
    shares = [bin / (_BINS - 1) for bin in range(_BINS)]
    steps = {name: _op(name, shares, _WIDE, border) for name in _OPS}
    return {"1": {"op": "one_of", "p": _NOT_IDENTITY, "steps": steps}}


# Pairs of ops (Cubuk et al. 2019, table 9). Each op has p in tenths and a magnitude from 0 to 9.
_IMAGENET = """
posterize 4 8, rotate 6 9 / solarize 6 5, autocontrast 6 - / equalize 8 -, equalize 6 - / posterize 6 7, posterize 6 6
equalize 4 -, solarize 2 4 / equalize 4 -, rotate 8 8 / solarize 6 3, equalize 6 - / posterize 8 5, equalize 10 -
rotate 2 3, solarize 6 8 / equalize 6 -, posterize 4 6 / rotate 8 8, color 4 0 / rotate 4 9, equalize 6 -
equalize 0 -, equalize 8 - / invert 6 -, equalize 10 - / color 6 4, contrast 10 8 / rotate 8 8, color 10 2
color 8 8, solarize 8 7 / sharpness 4 7, invert 6 - / shear_x 6 5, equalize 10 - / color 4 0, equalize 6 -
equalize 4 -, solarize 2 4 / solarize 6 5, autocontrast 6 - / invert 6 -, equalize 10 - / color 6 4, contrast 10 8
equalize 8 -, equalize 6 -
"""
_CIFAR10 = """
invert 1 -, contrast 2 6 / rotate 7 2, translate_x 3 9 / sharpness 8 1, sharpness 9 3 / shear_y 5 8, translate_y 7 9
autocontrast 5 -, equalize 9 - / shear_y 2 7, posterize 3 7 / color 4 3, brightness 6 7 / sharpness 3 9, brightness 7 9
equalize 6 -, equalize 5 - / contrast 6 7, sharpness 6 5 / color 7 7, translate_x 5 8 / equalize 3 -, autocontrast 4 -
translate_y 4 3, sharpness 2 6 / brightness 9 6, color 2 8 / solarize 5 2, invert 0 - / equalize 2 -, autocontrast 6 -
equalize 2 -, equalize 6 - / color 9 9, equalize 6 - / autocontrast 8 -, solarize 2 8 / brightness 1 3, color 7 0
solarize 4 5, autocontrast 9 - / translate_y 9 9, translate_y 7 9 / autocontrast 9 -, solarize 8 3
equalize 8 -, invert 1 - / translate_y 7 9, autocontrast 9 -
"""
_SVHN = """
shear_x 9 4, invert 2 - / shear_y 9 8, invert 7 - / equalize 6 -, solarize 6 6 / invert 9 -, equalize 6 -
equalize 6 -, rotate 9 3 / shear_x 9 4, autocontrast 8 - / shear_y 9 8, invert 4 - / shear_y 9 5, solarize 2 6
invert 9 -, autocontrast 8 - / equalize 6 -, rotate 9 3 / shear_x 9 4, solarize 3 3 / shear_y 8 8, invert 7 -
equalize 9 -, translate_y 6 6 / invert 9 -, equalize 6 - / contrast 3 3, rotate 8 4 / invert 8 -, translate_y 0 2
shear_y 7 6, solarize 4 8 / invert 6 -, rotate 8 4 / shear_y 3 7, translate_x 9 3 / shear_x 1 6, invert 6 -
solarize 7 2, translate_y 6 7 / shear_y 8 4, invert 8 - / shear_x 7 9, translate_y 8 3 / shear_y 8 5, autocontrast 7 -
shear_x 7 2, invert 1 -
"""
_AUTO_AUGMENT = {"imagenet": _IMAGENET, "cifar10": _CIFAR10, "svhn": _SVHN}


@policy(
    found_on=Choice(default="imagenet", options=tuple(_AUTO_AUGMENT), doc="dataset for which the policy was found"),
    **_BORDER,
)
def auto_augment(found_on: str, **border: Any) -> Steps:
    """Apply one of 25 pairs of ops, each with its own p and magnitude (AutoAugment, Cubuk et al. 2019)."""
    pairs: Steps = {}
    texts = _AUTO_AUGMENT[found_on].strip().replace("\n", "/").split("/")
    for number, pair in enumerate(texts, 1):
        steps = {}
        for position, op in enumerate(pair.split(","), 1):
            name, tenths, magnitude = op.split()
            share = 0.0 if magnitude == "-" else int(magnitude) / 9
            steps[f"{position}_{name}"] = {**_op(name, [share], _RAND, border), "p": int(tenths) / 10}
        pairs[f"pair_{number}"] = {"op": "sequence", "steps": steps}
    return {"one": {"op": "one_of", "steps": pairs}}


# A combinator only decides which nested steps apply to a sample, so nested steps are fused like any other step.

Chosen = NDArray[np.int64]

_ORDER = Choice(
    default="listed", options=("listed", "random"), doc="order of the steps: as listed, or random for each sample"
)


def _one_of_slots(weights: Array) -> list[dict[int, float]]:
    return [dict(enumerate((weights / weights.sum()).tolist()))]


def _lay_out_slots(weights: Array, order: str, shares: list[float]) -> list[dict[int, float]]:
    """Lay out steps in slots. In listed order, each step has a slot. In random order, a step may run in any slot.

    Args:
        weights: (steps,). Only their number matters.
        order: listed or random.
        shares: for each slot, the share of samples that use it.
    """
    count = len(weights)
    if order == "listed":
        return [{i: sum(shares) / count} for i in range(count)]
    return [dict.fromkeys(range(count), share / count) for share in shares if share]


def _sequence_slots(weights: Array, order: str) -> list[dict[int, float]]:
    return _lay_out_slots(weights, order, [1.0] * len(weights))


def _some_of_slots(weights: Array, count_range: Interval | Values, order: str) -> list[dict[int, float]]:
    if isinstance(count_range, Values):
        counts = np.array(count_range.values)
    else:
        counts = np.arange(count_range[0], count_range[1] + 1)
    return _lay_out_slots(weights, order, [float((counts > n).mean()) for n in range(len(weights))])


def _steps_in_slots(uniform: Array, count: Array, order: str) -> Chosen:
    """Return which step runs in each slot, (N, slots), for the `count` steps with the smallest random numbers."""
    steps = np.arange(uniform.shape[1])
    if order == "listed" and (count == len(steps)).all():
        return np.broadcast_to(steps, uniform.shape)
    by_number = np.argsort(uniform, axis=1)
    if order == "random":
        return np.where(steps < count[:, None], by_number, -1)
    rank = np.argsort(by_number, axis=1)
    return np.where(rank < count[:, None], steps, -1)


@combinator(_one_of_slots, weighted=True, numbers=1)
def one_of(weights: Array, uniform: Array) -> Chosen:
    """Apply one of the nested `steps`, chosen in proportion to their `weight` (default 1)."""
    edges = np.cumsum(weights[:-1] / weights.sum())
    return np.searchsorted(edges, uniform[:, 0], side="right")[:, None]


@combinator(
    _some_of_slots,
    count_range=Range(default=(1, 2), within=(0, 64), whole=True, doc="number of steps, drawn for each sample"),
    order=_ORDER,
)
def some_of(weights: Array, uniform: Array, count: Array, order: str) -> Chosen:
    """Apply some of the nested `steps`, each at most once and with equal probability."""
    return _steps_in_slots(uniform, count, order)


@combinator(_sequence_slots, order=_ORDER)
def sequence(weights: Array, uniform: Array, order: str) -> Chosen:
    """Apply all nested `steps`, or none of them with probability 1 - p."""
    return _steps_in_slots(uniform, np.full(len(uniform), uniform.shape[1]), order)
