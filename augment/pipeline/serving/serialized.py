"""The transform of validation as a serialized DALI pipeline, which loads without this project."""

from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline

from augment.pipeline.graph import Device, GraphImage, Placement
from augment.pipeline.operators import normalize
from augment.pipeline.serving.transform_source import require_fixed
from augment.recipe.plan import Plan

ENCODED = "encoded"  # name of the input


def serialize(plan: Plan, device: Device) -> bytes:
    """Return a plan as a serialized DALI pipeline, for `nvidia.dali.Pipeline.deserialize`.

    Its input "encoded" takes the bytes of encoded images, its output is (N, 3, height, width) float32, normalized.
    That for the GPU can be written without one, and must be loaded with `device_id`.

    Raises:
        UserError: the plan is random, or has steps besides the crop.
    """
    require_fixed(plan)
    # A pipeline that is fed by hand has no further batch to prefetch. Its size and threads can be changed on loading.
    pipeline = Pipeline(batch_size=64, num_threads=4, device_id=None, prefetch_queue_depth=1, exec_dynamic=True)
    with pipeline:
        encoded = fn.external_source(name=ENCODED, dtype=types.UINT8, ndim=1)
        image = GraphImage(encoded, Placement(device), seed=0, peek=True)
        images = plan.crop.op.function(image, plan.size, **plan.crop.op.values(plan.crop.params, {}))
        pipeline.set_outputs(normalize(images, plan, half=False, layout="CHW"))
    return bytes(pipeline.serialize())
