"""Write the best model of a run as ONNX, with or without its preprocessing, and in other formats."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from numpy.typing import NDArray
from PIL import Image

from augment.cli.parser import writing
from augment.data.dataset import ImageRef
from augment.data.formats.tiff import READ_METADATA
from augment.data.images import open_image, reader_source, to_rgb
from augment.data.rasters import Raster
from augment.drawing.target_overlays import color_of
from augment.params.pixel_format import RGB, PixelFormat
from augment.pipeline.serving.transform_source import crop_call, python_source, require_fixed
from augment.recipe.plan import Plan, build_plan
from augment.support.errors import UserError, import_extra
from augment.support.files import write_atomically
from trainer.run.best_model import LoadedModel
from trainer.tasks.keypoints import KeypointTask
from trainer.tasks.segment import Segment
from trainer.tools.export.graph import INPUT, Served, halved, onnx_bytes, program_bytes, quantized, quiet

FILE = "model.onnx"
_TIMED, _SECONDS = 20, 3.0  # an export is timed with this many images, for this long

_COLORS = 21  # number of class colors in predict.py

_Input = NDArray[Any]  # a batch of one image


@dataclass(frozen=True)
class Exported:
    """An exported model, which runs on one image."""

    content: bytes
    prepare: Callable[[ImageRef], _Input]
    call: Callable[[_Input], Sequence[NDArray[Any]]]
    single: bool  # see `Served.single`

    def __call__(self, image: ImageRef) -> list[NDArray[Any]]:
        """Return the outputs without their batch dimension."""
        outputs = self.call(self.input_of(image))
        return list(outputs) if self.single else [values[0] for values in outputs]

    def input_of(self, image: ImageRef) -> _Input:
        return self.prepare(image)[None]

    def images_per_second(self, images: Sequence[ImageRef]) -> float:
        """Measure the speed on this machine, without reading the images."""
        inputs = [self.input_of(image) for image in images[:_TIMED]]
        self.call(inputs[0])  # the first call allocates memory
        count, begun = 0, perf_counter()
        while (seconds := perf_counter() - begun) < _SECONDS:
            self.call(inputs[count % len(inputs)])
            count += 1
        return count / seconds


def export(
    trained: LoadedModel,
    folder: Path,
    *,
    inside: bool = True,
    variants: Sequence[str] = (),
    calibration: Sequence[ImageRef] = (),
) -> dict[str, Exported]:
    """Write a model as ONNX into a folder, and additional files. Return the written models by file name.

    Args:
        trained: the model.
        folder: where to write the files.
        inside: whether the model contains its preprocessing. Otherwise, transform.py contains it.
        variants: names of additional models: "torch", "fp16" and "int8".
        calibration: training images for int8.

    Raises:
        UserError: a package is missing, or the model or the plan cannot be exported.
    """
    plan = build_plan(trained.config.aug, "val")
    require_fixed(plan)
    for package in ("onnx", "onnxruntime", "onnxscript"):
        import_extra("export", package, "export")
    served = _served(trained, plan, inside=inside)
    metadata = {"classes": trained.classes, "outputs": served.outputs, "plan": str(plan)}
    source = None if inside else python_source(plan)
    exported = partial(Exported, prepare=_preparation(source), single=served.single)
    program = served.export()
    model = onnx_bytes(program, served, metadata)
    exports = {FILE: exported(model, call=_onnx_call(model))}
    if "torch" in variants:
        content = program_bytes(program, metadata)
        exports["model.pt2"] = exported(content, call=_program_call(content))
    if "fp16" in variants:
        half = _served(replace(trained, network=halved(trained.network)), plan, inside=inside)
        content = onnx_bytes(half.export(), half, metadata)
        exports["model-fp16.onnx"] = exported(content, call=_onnx_call(content))
    if "int8" in variants:
        content = quantized(model, map(exports[FILE].input_of, calibration))
        exports["model-int8.onnx"] = exported(content, call=_onnx_call(content))
    files: dict[str, bytes | str] = {name: one.content for name, one in exports.items()}
    files["predict.py"] = predict_source(
        inside=inside,
        masks=isinstance(trained.task, Segment),
        padded=crop_call(plan.crop)[0] == "letterbox",
        points=isinstance(trained.task, KeypointTask),
        boxes=served.single,
        lowest=() if trained.task.threshold is None else trained.used_thresholds,
        pixels=plan.pixels,
    )
    if source is not None:
        files["transform.py"] = source
    with writing(f"--out {folder}"):
        for name, text in files.items():
            write_atomically(folder / name, text)
    return exports


def _served(trained: LoadedModel, plan: Plan, *, inside: bool) -> Served:
    if not trained.task.own_loss:
        return Served(trained, plan if inside else None)
    if not inside:
        raise UserError(
            "--preprocessing beside: a detector needs the whole image, because it returns boxes in pixels of the "
            "image. Remove --preprocessing."
        )
    from trainer.tools.export.detector import ServedDetector  # torchvision is an extra

    return ServedDetector(trained, plan)


def _preparation(source: str | None) -> Callable[[ImageRef], _Input]:
    """Return a function that converts an image to a model's input. `source` is the text of transform.py."""
    names: dict[str, Callable[[Image.Image], _Input]] = {"transform": lambda image: np.array(to_rgb(image))}
    exec(source or "", names)

    def prepare(image: ImageRef) -> _Input:
        if isinstance(image, Raster):
            return image.read_pixels()
        with open_image(image) as opened:
            return names["transform"](opened)

    return prepare


def _onnx_call(model: bytes) -> Callable[[_Input], Sequence[NDArray[Any]]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return lambda images: session.run(None, {INPUT: images})


def _program_call(program: bytes) -> Callable[[_Input], Sequence[NDArray[Any]]]:
    with quiet():
        run = torch.inference_mode()(torch.export.load(BytesIO(program)).module().forward)
    return lambda images: [values.numpy() for values in run(torch.from_numpy(images))]


def predict_source(
    *,
    inside: bool,
    masks: bool = False,
    padded: bool = False,
    points: bool = False,
    boxes: bool = False,
    lowest: Sequence[float] = (),
    pixels: PixelFormat = RGB,
) -> str:
    """Return predict.py, which runs an exported model without this project.

    `padded` states whether the model pads images. `lowest` contains the lowest score of each label to show.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.get_template("predict.jinja")
    reader = reader_source(is_rgb=pixels.is_rgb) if inside else ""
    colors = [color_of(label) for label in range(1, _COLORS + 1)] if boxes else []
    values = {"masks": masks, "padded": masks and padded, "points": points, "boxes": boxes, "pixels": pixels}
    values["metadata"] = sorted(READ_METADATA)
    return template.render(file=FILE, reader=reader, colors=colors, lowest=[*lowest], **values).rstrip() + "\n"
