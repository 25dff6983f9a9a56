"""The recipe in the style of DALI's documentation: one operator per op, with parameters drawn by DALI.

Also two pipelines that are upper bounds of all others: reading the files, and decoding them.

A step with p < 1 is an `if` on a coin flip, a flip takes the coin as an argument. The border is black, as of DALI's
rotate and warp_affine.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.pipeline import Pipeline, do_not_convert

from augment.data.images import are_decoded, are_paths
from augment.params import Interval, Values
from augment.pipeline.build import feed_images
from augment.pipeline.graph import GraphImage, Node, Placement
from augment.pipeline.image_feed import ImageFeed
from augment.recipe.steps import Step
from augment.tools.bench.setup import Setup


def _options(setup: Setup) -> dict[str, Any]:
    """Return the arguments of a pipeline."""
    return {
        "batch_size": setup.batch_size,
        "num_threads": setup.threads,
        "device_id": 0 if setup.device.type == "cuda" else None,
        "exec_dynamic": True,
        "seed": 0,
    }


def read_pipeline(setup: Setup) -> Pipeline:
    """Build a pipeline that only reads the files."""
    pipeline = Pipeline(**_options(setup))
    with pipeline:
        pipeline.set_outputs(_read(setup))
    return pipeline


def decode_pipeline(setup: Setup) -> Pipeline:
    """Build a pipeline that decodes whole images in their original sizes."""
    pipeline = Pipeline(**_options(setup))
    with pipeline:
        pipeline.set_outputs(_image(setup).decode())
    return pipeline


def handwritten_pipeline(setup: Setup) -> Pipeline:
    """Build a pipeline that applies the plan's steps one by one; its output is normalized, float HWC.

    Raises:
        KeyError: a step has no translation; see `untranslated`.
    """
    plan = setup.plan
    translations = [(step, TRANSLATIONS[step.op.name]) for step in plan.steps]

    @pipeline_def(enable_conditionals=True, **_options(setup))  # type: ignore[untyped-decorator]
    def define() -> Node:
        images = _crop(setup)
        for step, translate in translations:
            if step.op.name == "flip" or step.p == 1:
                images = translate(images, step, plan.size)
            else:
                apply = fn.random.coin_flip(probability=step.p, dtype=types.BOOL)
                if apply:
                    images = translate(images, step, plan.size)
        return fn.crop_mirror_normalize(
            images,
            dtype=types.FLOAT,
            output_layout="HWC",
            mean=[255 * m for m in plan.mean],
            std=[255 * s for s in plan.std],
        )

    pipeline: Pipeline = define()
    return pipeline


def untranslated(steps: Sequence[Step]) -> str:
    """Return the reason why steps cannot be written with DALI's own operators, "" if they can."""
    unknown = [step.key for step in steps if step.op.name not in TRANSLATIONS or not _is_plain(step)]
    return f"no DALI translation of {', '.join(unknown)}" if unknown else ""


def _is_plain(step: Step) -> bool:
    """Return whether DALI can draw a step: from intervals, contrast about a fixed gray, and outside of policies."""
    plain = not any(isinstance(value, Values) for value in step.params.values())
    return plain and step.params.get("pivot") != "mean" and "." not in step.key


def _read(setup: Setup) -> Node:
    if not are_paths(setup.files):
        batches = -(-len(setup.files) // setup.batch_size)
        return feed_images(ImageFeed(setup.files, batch_size=setup.batch_size, batches=batches, shuffle=("read",)))
    encoded, _ = fn.readers.file(files=[str(file) for file in setup.files], shuffle_after_epoch=True)
    return encoded


@do_not_convert  # type: ignore[untyped-decorator]
def _crop(setup: Setup) -> Node:
    """Decode and apply the recipe's crop, which consists of DALI operators."""
    crop = setup.plan.crop
    return crop.op.function(_image(setup), setup.plan.size, **crop.op.values(crop.params, {}))


def _image(setup: Setup) -> GraphImage:
    placement = Placement("gpu" if setup.device.type == "cuda" else "cpu")
    return GraphImage(_read(setup), placement, 0, raw=are_decoded(setup.files))


def _uniform(interval: Interval, count: int | None = None) -> Node:
    shape = [count] if count else []
    if interval[0] == interval[1]:  # DALI refuses an empty interval
        return types.Constant(np.full(shape, interval[0], np.float32), device="cpu")
    return fn.random.uniform(range=list(interval), shape=shape)


@do_not_convert  # type: ignore[untyped-decorator]
def _flip(images: Node, step: Step, size: int) -> Node:
    coin = fn.random.coin_flip(probability=step.p)
    if step.params["direction"] == "horizontal":
        return fn.flip(images, horizontal=coin)
    return fn.flip(images, horizontal=0, vertical=coin)


@do_not_convert  # type: ignore[untyped-decorator]
def _warp(images: Node, step: Step, size: int) -> Node:
    u, v = (_uniform(step.params["magnitude_range"]) for _ in range(2))
    row, zero = (2, 2, -size), (0, 0, 0)
    of_u, of_v = (types.Constant(np.array(rows, np.float32)) for rows in ((row, zero), (zero, row)))
    matrix = u * of_u + v * of_v + types.Constant(np.eye(2, 3, dtype=np.float32))
    return fn.warp_affine(images, matrix=matrix, fill_value=0)


@do_not_convert  # type: ignore[untyped-decorator]
def _affine(images: Node, step: Step, size: int) -> Node:
    center = [size / 2, size / 2]
    low, high = step.params["translate_range"]
    scale = _uniform(step.params["scale_range"])
    matrix = fn.transforms.shear(angles=_uniform(step.params["shear_range"], 2), center=center)
    matrix = fn.transforms.scale(matrix, scale=fn.stack(scale, scale), center=center)
    matrix = fn.transforms.translation(matrix, offset=_uniform((low * size, high * size), 2))
    return fn.warp_affine(images, matrix=matrix, inverse_map=False, fill_value=0)


def _one_value(operator: Callable[..., Node], argument: str, interval: str) -> Callable[[Node, Step, int], Node]:
    """Return the translation of an op by an operator with one drawn argument."""

    @do_not_convert  # type: ignore[untyped-decorator]
    def translate(images: Node, step: Step, size: int) -> Node:
        return operator(images, **{argument: _uniform(step.params[interval])})

    translation: Callable[[Node, Step, int], Node] = translate
    return translation


TRANSLATIONS: dict[str, Callable[[Node, Step, int], Node]] = {
    "flip": _flip,
    "rotate": _one_value(partial(fn.rotate, keep_size=True, fill_value=0), "angle", "angle_range"),
    "warp": _warp,
    "affine": _affine,
    "brightness": _one_value(fn.brightness, "brightness", "factor_range"),
    "contrast": _one_value(fn.contrast, "contrast", "factor_range"),
    "saturation": _one_value(fn.saturation, "saturation", "factor_range"),
    "hue": _one_value(fn.hue, "hue", "angle_range"),
}
