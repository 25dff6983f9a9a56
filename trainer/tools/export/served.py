"""A trained model as one graph, with or without its preprocessing, as ONNX."""

import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module

import torch
from torch import Tensor, nn

from augment.pipeline.serving.torch_crops import Crop
from augment.recipe.plan import Plan
from augment.support.errors import UserError, first_line, missing_package
from trainer.loop.runner import average
from trainer.run.trained import Trained

INPUT = "images"
_EXAMPLE = 2, 40, 56  # images, height and width to trace with; none is 1 or repeated, which would fix them


class Served(nn.Module):
    """A trained model as validation runs it, after its plan if there is one: views averaged, outputs activated.

    Attributes:
        outputs: names of the outputs: logits and probabilities, or numbers.
    """

    def __init__(self, trained: Trained, plan: Plan | None = None) -> None:
        super().__init__()
        self.network = trained.network.cpu().eval()
        self.crop = nn.Identity() if plan is None else Crop(plan)
        self._task, self._tta = trained.task, trained.config.fit.tta
        self.outputs = ("logits", "probabilities") if trained.task.ranked else ("numbers",)
        self._size = trained.config.aug.size if plan is None else None

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs, (N, K) each, or (N, K, height, width) of masks.

        Args:
            images: (N, 3, height, width) float32, normalized; or with a plan (N, height, width, 3) uint8 RGB.
        """
        outputs = average(self.network, self.crop(images), self._tta, self._task).float()
        return (outputs, self._task.activate(outputs)) if len(self.outputs) == 2 else (outputs,)

    def export(self) -> torch.export.ExportedProgram:
        """Return the graph, for any number of images and, with a plan, of any height and width."""
        count, height, width = _EXAMPLE
        any_length = torch.export.Dim.DYNAMIC
        if self._size is None:
            example, free = torch.zeros(count, height, width, 3, dtype=torch.uint8), range(3)
        else:
            example, free = torch.zeros(count, 3, *self._size), range(1)
        try:
            with torch.no_grad(), _quiet():
                shapes = (dict.fromkeys(free, any_length),)
                return torch.export.export(self, (example,), dynamic_shapes=shapes)
        # It raises nearly anything, by what it meets.
        except Exception as error:
            raise UserError(f"the model cannot be exported: {first_line(error)}.") from error


def onnx_bytes(program: torch.export.ExportedProgram, served: Served, metadata: Mapping[str, object]) -> bytes:
    """Return a graph as ONNX, with metadata as JSON texts."""
    require_onnx()
    try:
        with _quiet():
            made = torch.onnx.export(
                program, input_names=[INPUT], output_names=list(served.outputs), dynamo=True, verbose=False
            )
    except Exception as error:  # as in `Served.export`
        raise UserError(f"the model cannot be exported to ONNX: {first_line(error)}.") from error
    assert made is not None
    model = made.model_proto
    # The exporter calls them s34 and the like.
    symbols = [axis.dim_param for axis in model.graph.input[0].type.tensor_type.shape.dim if axis.dim_param]
    axes = dict(zip(symbols, ("batch", "height", "width"), strict=False))
    del model.graph.value_info[:]
    for value in (*model.graph.input, *model.graph.output):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.dim_param = axes[axis.dim_param]
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=json.dumps(value))
    content: bytes = model.SerializeToString()
    return content


def require_onnx() -> None:
    """Check that the packages for ONNX are there."""
    try:
        for package in ("onnx", "onnxruntime", "onnxscript"):
            import_module(package)
    except ImportError as error:
        raise missing_package("export", error.name, "export") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what exporters say about their own code."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
