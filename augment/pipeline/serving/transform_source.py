"""Exports a plan as Python source that uses Pillow and NumPy, and as a serialized DALI pipeline."""

import inspect
from typing import Any

from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline

from augment.data.images import reader_source
from augment.pipeline.graph.decoding import Device, GraphImage, Placement
from augment.pipeline.graph.operators import normalize
from augment.pipeline.serving import pillow
from augment.recipe.captions import is_random
from augment.recipe.plan import Plan
from augment.recipe.step import Step
from augment.support.errors import UserError
from augment.support.formatting import printable

_PYTHON = '''\
"""A model's validation transform: `transform(PIL.Image.open(file))`. Requires only Pillow and NumPy."""

# Written by `python -m augment export` from this plan:
#
{plan}

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIZE = {size}  # height, width
MEAN = {mean}
STD = {std}


def transform(image: Image.Image) -> NDArray[np.float32]:
    """Convert an image of any size and mode to the model's input: normalized RGB, (3, height, width) float32."""
    return normalize({crop}(to_rgb(image), SIZE{arguments}), MEAN, STD)


{functions}'''


def python_source(plan: Plan) -> str:
    """Return Python source that defines a plan as `transform(image)`, with Pillow and NumPy."""
    require_fixed(plan)
    if not plan.pixels.is_rgb or plan.pixels.nodata is not None:
        raise not_exported(str(plan.pixels))
    name, values = crop_call(plan.crop)
    parts = (pillow.CROPS[name], pillow.resample, pillow.normalize)
    return _PYTHON.format(
        plan="\n".join(f"#     {printable(line)}" for line in str(plan).splitlines()),
        size=tuple(plan.size),
        mean=plan.mean,
        std=plan.std,
        crop=name,
        arguments="".join(f", {key}={value!r}" for key, value in values.items()),
        functions="\n\n".join([*(inspect.getsource(part) for part in parts), reader_source()]),
    )


def serialize(plan: Plan, device: Device) -> bytes:
    """Serialize a plan as a DALI pipeline, for `nvidia.dali.Pipeline.deserialize`.

    The input "encoded" takes the bytes of encoded images. The output is normalized (N, 3, height, width) float32. A
    pipeline for the GPU can be written on any machine. Load it with `device_id`.
    """
    require_fixed(plan)
    # The user feeds each batch, so there is nothing to prefetch. When loading, the user can set batch size and threads.
    pipeline = Pipeline(batch_size=64, num_threads=4, device_id=None, prefetch_queue_depth=1, exec_dynamic=True)
    with pipeline:
        encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
        image = GraphImage(encoded, Placement(device), seed=0, peek=True)
        images = plan.crop.op.function(image, plan.size, **plan.crop.op.values(plan.crop.params, {}))
        pipeline.set_outputs(normalize(images, plan, half=False, layout="CHW"))
    return bytes(pipeline.serialize())


def crop_call(crop: Step) -> tuple[str, dict[str, Any]]:
    """Return the name of the function that implements a crop, and its arguments."""
    values = crop.op.values(crop.params, {})
    if crop.op.name != "resize":
        return crop.op.name, {name: value for name, value in values.items() if name != "border"}
    calls: dict[str, tuple[str, dict[str, Any]]] = {
        "both": ("resize", {}),
        "short": ("center_crop", {"scale": 1.0}),
        "long": ("letterbox", {"fill": 0}),
    }
    return calls[values["side"]]


def not_exported(pixels: str) -> UserError:
    """Return the error for an export of images that are not 8-bit RGB, or that have data.nodata."""
    return UserError(
        f"transform.py and transform_*.dali support only 8-bit RGB images, but these have {pixels}. Run python -m "
        "trainer export RUN, without --preprocessing. The exported model contains the transform."
    )


def require_fixed(plan: Plan) -> None:
    """Check that a plan consists of one fixed crop that Pillow and PyTorch support."""
    crop, section = plan.crop, f"aug.{plan.split}"
    reasons = []
    if is_random(crop):
        reasons.append(f"{section}.{crop.key} is random")
    elif crop_call(crop)[0] not in pillow.CROPS:
        reasons.append(f"{section}.{crop.key} needs DALI for the op '{crop.op.name}'")
    elif (border := crop.params.get("border", "constant")) != "constant":
        reasons.append(f"{section}.{crop.key}.border={border} needs DALI")
    for step in plan.steps:
        reasons.append(f"{section}.{step.key} {'is random' if is_random(step) else 'is not a crop'}")
    if reasons:
        raise UserError(
            f"{'; '.join(reasons)}. An export needs a single fixed crop. Allowed in {section}: "
            f"{', '.join(pillow.CROPS)}."
        )
