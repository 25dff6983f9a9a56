"""A trained model as a graph: a torch.export program and ONNX, in float32, float16 and int8."""

import json
import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from augment.pipeline.serving.torch_crops import Crop
from augment.recipe.plan import Plan
from augment.support.errors import UserError, first_line
from trainer.loop.batch_runner import average
from trainer.run.best_model import LoadedModel
from trainer.tasks.regress import MEAN, STD

INPUT = "images"  # name of the model's input
_EXAMPLE = 2, 40, 56  # images, height and width to trace with. A 1 or equal numbers would become constants
_WITH_WEIGHTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")  # ops whose second input may be a weight
_FIRST = 16  # the first sixteenth of the layers is not quantized
_CLIPS = ("Clip", "Relu")  # ops that limit the range of the layer before them, and become part of it


class Served(nn.Module):
    """Runs a trained model as in validation: with preprocessing by a plan, test-time augmentation and activations.

    Attributes:
        outputs: names of the outputs: logits and probabilities, or numbers.
    """

    single: ClassVar[bool] = False  # whether the model takes one image, and returns outputs without batch dimension

    def __init__(self, trained: LoadedModel, plan: Plan | None = None) -> None:
        super().__init__()
        self.network = trained.network.cpu().eval()
        self.crop: Any = nn.Identity() if plan is None else Crop(plan)
        self._task, self._tta = trained.task, trained.config.fit.tta
        self.outputs: tuple[str, ...] = ("logits", "probabilities") if trained.task.ranked else ("numbers",)
        self._size = trained.config.aug.size if plan is None else None
        self._pixels = trained.config.aug.pixels

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs, (N, K) each, or (N, K, height, width) for masks.

        Args:
            images: (N, C, height, width) float32, normalized. With a plan, (N, height, width, C) of the stored data
                type, such as uint8 RGB.
        """
        outputs = average(self.network, self.crop(images), self._tta, self._task).float()
        return (outputs, self._task.activate(outputs)) if len(self.outputs) == 2 else (outputs,)

    def export(self) -> torch.export.ExportedProgram:
        """Return the graph for any number of images. With a plan, images may have any height and width."""
        (count, height, width), channels = _EXAMPLE, self._pixels.channels
        stored = getattr(torch, self._pixels.dtype)
        if self._size is None:
            example, free = torch.zeros(count, height, width, channels, dtype=stored), range(3)
        else:
            example, free = torch.zeros(count, channels, *self._size), range(1)
        if self.single:
            example, free = example[:1], free[1:]
        try:
            with torch.no_grad(), quiet():
                shapes = (dict.fromkeys(free, torch.export.Dim.DYNAMIC),)
                # Only strict tracing supports sizes that depend on the number of objects.
                return torch.export.export(self, (example,), dynamic_shapes=shapes, strict=self.single)
        except Exception as error:  # torch.export raises errors of many types
            raise UserError(f"the model cannot be exported: {first_line(error)}. Choose another model.") from error


def program_bytes(program: torch.export.ExportedProgram, metadata: Mapping[str, object]) -> bytes:
    """Serialize a graph for torch.export.load, with metadata as the extra file metadata.json."""
    stream = BytesIO()
    torch.export.save(program, stream, extra_files={"metadata.json": json.dumps(metadata)})
    return stream.getvalue()


def onnx_bytes(program: torch.export.ExportedProgram, served: Served, metadata: Mapping[str, object]) -> bytes:
    """Convert a graph to ONNX. The values of the metadata are stored as JSON."""
    try:
        with quiet():
            made = torch.onnx.export(
                program, input_names=[INPUT], output_names=list(served.outputs), dynamo=True, verbose=False
            )
    except Exception as error:  # as in `Served.export`
        raise UserError(f"the ONNX export failed: {first_line(error)}. Choose another model.") from error
    assert made is not None
    model = made.model_proto
    # Replace the exporter's names of axes, such as s34.
    sides = zip(model.graph.input[0].type.tensor_type.shape.dim, ("batch", "height", "width"), strict=False)
    axes = {axis.dim_param: name for axis, name in sides if axis.dim_param}
    del model.graph.value_info[:]
    for node in model.graph.node:
        del node.metadata_props[:]  # notes of the exporter, including paths of this machine
    for value in (*model.graph.input, *model.graph.output):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.dim_param = axes.get(axis.dim_param, "objects")
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=json.dumps(value))
    return bytes(model.SerializeToString())


def halved(network: nn.Module) -> nn.Module:
    """Return a copy that computes in float16, with inputs and outputs in float32.

    The mean and standard deviation of regression targets stay in float32. In a detector, the parts that compute with
    coordinates stay in float32, for example to decode boxes.
    """
    network = deepcopy(network)
    kept = {name: buffer for name, buffer in network.named_buffers(recurse=False) if name in (MEAN, STD)}
    for part in _parts(network):
        part.half()
        part.register_forward_pre_hook(lambda _, given: tree_map_only(torch.Tensor, torch.Tensor.half, given))
        part.register_forward_hook(
            lambda _part, _given, output: tree_map_only(torch.Tensor, torch.Tensor.float, output)
        )
    for name, buffer in kept.items():
        setattr(network, name, buffer)
    return network


def _parts(network: Any) -> Iterator[nn.Module]:
    """Yield the network, or the parts of a detector that do not compute with coordinates."""
    for part in network.detector.children() if hasattr(network, "detector") else (network,):
        # Parts with a box coder compute with coordinates between their layers.
        inner = part.children() if hasattr(part, "box_coder") else (part,)
        yield from (module for module in inner if any(True for _ in module.parameters()))


def quantized(model: bytes, inputs: Iterable[NDArray[Any]]) -> bytes:
    """Convert an ONNX model to int8. The range of an activation is its minimum and maximum over the inputs.

    Weights have a scale per channel. The first and last layers are not quantized, because rounding their outputs, such
    as the edges of boxes, would cost more accuracy than these layers save in size.

    Raises:
        UserError: onnxruntime cannot quantize the model.
    """
    import onnx
    from onnxruntime.quantization import quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    feeds = ({INPUT: images} for images in inputs)
    reader = SimpleNamespace(get_next=lambda: next(feeds, None))  # as a `CalibrationDataReader`
    with TemporaryDirectory() as folder:
        given, prepared, written = (Path(folder, f"{name}.onnx") for name in ("given", "prepared", "int8"))
        given.write_bytes(model)
        try:
            quant_pre_process(given, prepared, skip_symbolic_shape=True)  # folds batch norms into convolutions
            nodes = _inner_nodes(onnx.load(prepared).graph)
            quantize_static(
                prepared,
                written,
                reader,
                nodes_to_quantize=nodes,
                op_types_to_quantize=_WITH_WEIGHTS + _CLIPS,
                per_channel=True,
            )
        except Exception as error:  # onnxruntime raises errors of many types
            raise UserError(
                f"int8: onnxruntime cannot quantize the model: {first_line(error)}. Remove int8 from --variants."
            ) from error
        return written.read_bytes()


def _inner_nodes(graph: Any) -> list[str]:
    """Return the names of the layers to quantize: nodes with weights that lead to other such nodes, and their clips.

    The first sixteenth of these layers is left out. These layers are small, and rounding them costs as much accuracy as
    rounding all the others. A layer and its clip share a range. Otherwise, a ReLU6 after a layer with outputs from -40
    to 40 would get only a few of the 256 levels.
    """
    weights, used, found = {tensor.name for tensor in graph.initializer}, set[str](), []
    for node in reversed(graph.node):
        weighted = node.op_type in _WITH_WEIGHTS and node.input[1] in weights
        inner = not used.isdisjoint(node.output)
        if weighted and inner:
            found.append(node)
        if weighted or inner:
            used.update(node.input)
    kept = found[: len(found) - len(found) // _FIRST]
    outputs = {name for node in kept for name in node.output}
    clips = (node for node in graph.node if node.op_type in _CLIPS and node.input[0] in outputs)
    return [node.name for node in (*kept, *clips)]


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings of the exporters about their own code."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
