"""Write a plan as Python source in Pillow and NumPy, and as a serialized DALI pipeline."""

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
from augment.recipe.steps import Step
from augment.support.errors import UserError
from augment.support.formatting import printable

_PYTHON = '''\
"""A model's validation transform: `transform(PIL.Image.open(file))`. Requires only Pillow and NumPy."""

# Written by `python -m augment export`, of this plan:
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
    """Turn an image of any size and mode into the model's input, (3, height, width) float32: RGB, normalized."""
    return normalize({crop}(to_rgb(image), SIZE{arguments}), MEAN, STD)


{functions}'''


def python_source(plan: Plan) -> str:
    """Return a plan as Python source that defines `transform(image)` in Pillow and NumPy."""
    require_fixed(plan)
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
    """Return a plan as a serialized DALI pipeline, for `nvidia.dali.Pipeline.deserialize`.

    Its input "encoded" takes the bytes of encoded images, its output is (N, 3, height, width) float32, normalized.
    That for the GPU can be written without one, and must be loaded with `device_id`.
    """
    require_fixed(plan)
    # A pipeline that is fed by hand has no further batch to prefetch. Its size and threads can be changed on loading.
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


def require_fixed(plan: Plan) -> None:
    """Check that a plan consists of a crop only, one that Pillow and PyTorch know, and draws nothing."""
    reasons = [
        f"aug.{plan.split}.{step.key}: is random" if is_random(step) else f"aug.{plan.split}.{step.key}: is not a crop"
        for step in plan.steps
    ]
    crop = plan.crop
    if is_random(crop):
        reasons.insert(0, f"aug.{plan.split}.{crop.key}: is random")
    elif crop_call(crop)[0] not in pillow.CROPS:
        reasons.insert(0, f"aug.{plan.split}.{crop.key}: the op '{crop.op.name}' is available in DALI only")
    elif (border := crop.params.get("border", "constant")) != "constant":
        reasons.insert(0, f"aug.{plan.split}.{crop.key}.border: {border} is available in DALI only")
    if reasons:
        raise UserError(
            f"{'; '.join(reasons)}. An export treats all images alike and consists of a crop only. "
            f"Allowed in aug.{plan.split}: {', '.join(pillow.CROPS)}."
        )
