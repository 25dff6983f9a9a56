"""The recipe as DALI's documentation has its users write it: one operator an op, and DALI draws the parameters.

Also two pipelines that bound every other one from above: reading the files, and decoding them.

A step with p < 1 is an `if` on a coin; a flip's coin is its argument. Beyond the edge lies black, the border of DALI's
rotate and warp_affine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.pipeline import Pipeline, do_not_convert

from augment import dataset
from augment.config import Step
from augment.graph import Device, Node, Picture, Placement
from augment.params import Interval, Values
from augment.picture_feed import PictureFeed
from augment.pipeline import feed_pictures
from augment.plan import Plan
from augment.stored import are_paths, are_raw


@dataclass(frozen=True)
class Options:
    """Of every pipeline of this module.

    Attributes:
        batch_size: samples in a batch.
        threads: CPU threads.
        device: where pictures are decoded and transformed.
        half: float16 in place of float32.
    """

    batch_size: int
    threads: int
    device: Device = "cpu"
    half: bool = False

    @property
    def pipeline(self) -> dict[str, Any]:
        """Arguments of a DALI pipeline."""
        device_id = 0 if self.device == "gpu" else None
        return {
            "batch_size": self.batch_size,
            "num_threads": self.threads,
            "device_id": device_id,
            "exec_dynamic": True,
            "seed": 0,
        }


def read_pipeline(files: Sequence[dataset.Picture], options: Options) -> Pipeline:
    """Build a pipeline that reads the files and does nothing with them."""
    pipeline = Pipeline(**options.pipeline)
    with pipeline:
        pipeline.set_outputs(_read(files, options.batch_size))
    return pipeline


def decode_pipeline(files: Sequence[dataset.Picture], options: Options) -> Pipeline:
    """Build a pipeline that decodes the whole pictures, in their own sizes."""
    pipeline = Pipeline(**options.pipeline)
    with pipeline:
        pipeline.set_outputs(_picture(files, options).decode())
    return pipeline


def handwritten_pipeline(plan: Plan, files: Sequence[dataset.Picture], options: Options) -> Pipeline:
    """Build a pipeline that applies the plan's steps one by one; its output is normalized float HWC.

    Raises:
        KeyError: a step has no translation, see `untranslated`.
    """
    translations = [(step, TRANSLATIONS[step.op.name]) for step in plan.steps]

    @pipeline_def(enable_conditionals=True, **options.pipeline)  # type: ignore[untyped-decorator]
    def define() -> Node:
        images = _crop(files, plan, options)
        for step, translate in translations:
            if step.op.name == "flip" or step.p == 1:
                images = translate(images, step, plan.size)
            else:
                apply = fn.random.coin_flip(probability=step.p, dtype=types.BOOL)
                if apply:
                    images = translate(images, step, plan.size)
        return fn.crop_mirror_normalize(
            images,
            dtype=types.FLOAT16 if options.half else types.FLOAT,
            output_layout="HWC",
            mean=[255 * m for m in plan.mean],
            std=[255 * s for s in plan.std],
        )

    pipeline: Pipeline = define()
    return pipeline


def untranslated(steps: Sequence[Step]) -> str:
    """Return the reason why these steps cannot be written with DALI's own operators, "" if they can."""
    unknown = [step.key for step in steps if step.op.name not in TRANSLATIONS or not _is_plain(step)]
    return f"no DALI translation of {', '.join(unknown)}" if unknown else ""


def _is_plain(step: Step) -> bool:
    """Whether a step is one of DALI's kind: values from intervals, contrast about a fixed gray, in no policy."""
    plain = not any(isinstance(value, Values) for value in step.params.values())
    return plain and step.params.get("pivot") != "mean" and "." not in step.key


def _read(files: Sequence[dataset.Picture], batch_size: int) -> Node:
    if not are_paths(files):
        batches = -(-len(files) // batch_size)
        return feed_pictures(PictureFeed(files, batch_size=batch_size, batches=batches, shuffle=("read",)))
    encoded, _ = fn.readers.file(files=[str(file) for file in files], shuffle_after_epoch=True)
    return encoded


@do_not_convert  # type: ignore[untyped-decorator]
def _crop(files: Sequence[dataset.Picture], plan: Plan, options: Options) -> Node:
    """Decode and crop with the recipe's own crop, which is DALI's."""
    picture = _picture(files, options)
    return plan.crop.op.function(picture, plan.size, **plan.crop.op.values(plan.crop.params, {}))


def _picture(files: Sequence[dataset.Picture], options: Options) -> Picture:
    return Picture(_read(files, options.batch_size), Placement(options.device), 0, raw=are_raw(files))


def _uniform(interval: Interval, count: int | None = None) -> Node:
    shape = [count] if count else []
    if interval[0] == interval[1]:  # which DALI refuses
        return types.Constant(np.full(shape, interval[0], np.float32), device="cpu")
    return fn.random.uniform(range=list(interval), shape=shape)


@do_not_convert  # type: ignore[untyped-decorator]
def _flip(images: Node, step: Step, size: int) -> Node:
    coin = fn.random.coin_flip(probability=step.p)
    if step.params["direction"] == "horizontal":
        return fn.flip(images, horizontal=coin)
    return fn.flip(images, horizontal=0, vertical=coin)


@do_not_convert  # type: ignore[untyped-decorator]
def _rotate(images: Node, step: Step, size: int) -> Node:
    return fn.rotate(images, angle=_uniform(step.params["angle_range"]), keep_size=True, fill_value=0)


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


@do_not_convert  # type: ignore[untyped-decorator]
def _brightness(images: Node, step: Step, size: int) -> Node:
    return fn.brightness(images, brightness=_uniform(step.params["factor_range"]))


@do_not_convert  # type: ignore[untyped-decorator]
def _contrast(images: Node, step: Step, size: int) -> Node:
    return fn.contrast(images, contrast=_uniform(step.params["factor_range"]))


@do_not_convert  # type: ignore[untyped-decorator]
def _saturation(images: Node, step: Step, size: int) -> Node:
    return fn.saturation(images, saturation=_uniform(step.params["factor_range"]))


@do_not_convert  # type: ignore[untyped-decorator]
def _hue(images: Node, step: Step, size: int) -> Node:
    return fn.hue(images, hue=_uniform(step.params["angle_range"]))


TRANSLATIONS: dict[str, Callable[[Node, Step, int], Node]] = {
    "flip": _flip,
    "rotate": _rotate,
    "warp": _warp,
    "affine": _affine,
    "brightness": _brightness,
    "contrast": _contrast,
    "saturation": _saturation,
    "hue": _hue,
}
