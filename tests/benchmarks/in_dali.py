"""The recipe in the style of DALI's documentation: one operator per op, with parameters drawn by DALI.

A step with p < 1 is an `if` on a coin flip, a flip takes the coin as an argument. The border is black, as of DALI's
rotate and warp_affine.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import numpy as np
from in_torchvision import translate
from nvidia.dali import fn, types
from nvidia.dali.pipeline import do_not_convert

from augment.cli.benchmark import LeftOutError
from augment.params import Interval, Size
from augment.pipeline.graph.decoding import Node
from augment.recipe.step import Step
from augment.tools.bench.rows import Setup, image, outputs

Translation = Callable[[Node, Step, Size], Node]


def op_by_op(setup: Setup) -> Iterator[Any]:
    """Yield the batches of the recipe, endlessly: normalized, float HWC.

    Raises:
        LeftOutError: a step has no translation.
    """
    plan = setup.plan
    if any(step.params.get("pivot") == "mean" for step in plan.tree):
        raise LeftOutError("DALI's contrast has a fixed pivot")
    steps = translate(plan, _TRANSLATIONS, "DALI")
    mean, std = ([255 * value for value in values] for values in (plan.mean, plan.std))

    @do_not_convert  # type: ignore[untyped-decorator]
    def crop() -> Node:
        return plan.crop.op.function(image(setup), plan.size, **plan.crop.op.values(plan.crop.params, {}))

    def define() -> Node:
        images = crop()
        for step, translation in steps:
            if step.op.name == "flip" or step.p == 1:
                images = translation(images, step, plan.size)
            else:
                apply = fn.random.coin_flip(probability=step.p, dtype=types.BOOL)
                if apply:
                    images = translation(images, step, plan.size)
        return fn.crop_mirror_normalize(images, dtype=types.FLOAT, output_layout="HWC", mean=mean, std=std)

    return outputs(setup, define, conditionals=True)


def _uniform(interval: Interval) -> Node:
    if interval[0] == interval[1]:  # DALI rejects an empty interval
        return types.Constant(np.float32(interval[0]), device="cpu")
    return fn.random.uniform(range=list(interval))


@do_not_convert  # type: ignore[untyped-decorator]
def _flip(images: Node, step: Step, size: Size) -> Node:
    return fn.flip(images, **{"horizontal": 0, step.params["direction"]: fn.random.coin_flip(probability=step.p)})


@do_not_convert  # type: ignore[untyped-decorator]
def _warp(images: Node, step: Step, size: Size) -> Node:
    u, v = (_uniform(step.params["magnitude_range"]) for _ in range(2))
    height, width = size
    zero = (0, 0, 0)  # rows of matrices with the origin in the top left corner
    of_u, of_v = (
        types.Constant(np.array(rows, np.float32)) for rows in (((2, 2, -height), zero), (zero, (2, 2, -width)))
    )
    matrix = u * of_u + v * of_v + types.Constant(np.eye(2, 3, dtype=np.float32))
    return fn.warp_affine(images, matrix=matrix, fill_value=0)


def _with_one(operator: Callable[..., Node], argument: str, interval: str) -> Translation:
    """Return the translation of an op by an operator with one drawn argument."""

    def translation(images: Node, step: Step, size: Size) -> Node:
        return operator(images, **{argument: _uniform(step.params[interval])})

    return cast(Translation, do_not_convert(translation))


_TRANSLATIONS: dict[str, Translation] = {
    "flip": _flip,
    "rotate": _with_one(partial(fn.rotate, keep_size=True, fill_value=0), "angle", "angle_range"),
    "warp": _warp,
    "brightness": _with_one(fn.brightness, "brightness", "factor_range"),
    "contrast": _with_one(fn.contrast, "contrast", "factor_range"),
    "saturation": _with_one(fn.saturation, "saturation", "factor_range"),
    "hue": _with_one(fn.hue, "hue", "angle_range"),
}
