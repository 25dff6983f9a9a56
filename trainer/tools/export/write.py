"""Write a run's best model as ONNX, with or without its preprocessing, and compare it with PyTorch."""

import json
import logging
import runpy
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from numpy.typing import NDArray
from PIL import Image
from rich.table import Table
from torch import Tensor, nn

from augment.cli.parser import table_console, writing
from augment.data.dataset import ImageRef, Split
from augment.data.images import name_of, open_image, reader_source, to_rgb
from augment.pipeline.serving.torch_crops import Crop
from augment.pipeline.serving.transform_source import python_source, require_fixed
from augment.recipe.plan import Plan, build_plan
from augment.support.errors import UserError, first_line, import_extra
from augment.support.files import write_atomically, write_json
from augment.support.formatting import amount, list_some, plural, printable
from augment.support.untrusted_files import own_folder
from trainer.callbacks.recorder import Recorder
from trainer.loop.batch_runner import average
from trainer.loop.callback import Callback
from trainer.loop.learner import Learner
from trainer.run.best_model import Trained, load_trained
from trainer.tasks.keypoints import KeypointTask
from trainer.tasks.meter import Meter
from trainer.tasks.segment import Segment
from trainer.tools.evaluate import evaluated_split

INPUT, _FILE = "images", "model.onnx"  # names of the model's input and of its file
_EXAMPLE = 2, 40, 56  # images, height and width to trace with; a 1 or equal numbers would become constants
_CPU = torch.device("cpu")
_PIXELS = 0.01  # share of a mask's pixels that may have another class

# Maps an image to the raw and the activated outputs of an export, (K,) or (K, height, width) each.
RunExport = Callable[[ImageRef], Sequence[NDArray[np.float32]]]


@dataclass(frozen=True)
class Check:
    """The comparison of an export with PyTorch."""

    images: int  # number of images
    pytorch: dict[str, float]  # scores of the model in PyTorch
    exported: dict[str, float]  # scores of the export
    largest: float  # largest absolute difference of a probability or number
    # Names of the images with another top class. A mask differs if more than 1% of its pixels have another class. Empty
    # for tasks that predict numbers.
    differing: tuple[str, ...]


def compare(trained: Trained, split: Split, run: RunExport) -> Check:
    """Compare an export with the model in PyTorch, image by image."""
    recorder, comparison = Recorder(), _Comparison(trained, split, run)
    trained.run_over(split, recorder, comparison, description="comparing")
    return Check(
        images=len(split.files),
        pytorch=recorder.val,
        exported={f"val_{name}": value for name, value in comparison.meter.scores().items()},
        largest=comparison.largest,
        differing=tuple(name_of(split.files[i]) for i in sorted(comparison.differing)),
    )


class _Comparison(Callback):
    """Runs an export on each batch of a pass, because all outputs of masks would not fit into memory."""

    def __init__(self, trained: Trained, split: Split, run: RunExport) -> None:
        self._trained, self._files, self._run = trained, split.files, run
        self._loss = trained.task.make_losses(trained.config.fit, trained.network, _CPU)[1]
        self.largest = 0.0
        self.differing: list[int] = []

    def before_validate(self, learner: Learner) -> None:
        """Measure the same metrics for the export as for the model."""
        self.meter = Meter(learner.task, learner.find(Recorder).metrics, _CPU, keep=True)

    def after_batch(self, learner: Learner) -> None:
        batch, task = learner.batch, learner.task
        indices, targets = batch.indices.tolist(), task.targets_of(batch).cpu()
        exported = torch.stack([torch.from_numpy(np.array(self._run(self._files[i])[0])) for i in indices])
        self.meter.update(self._loss(exported, targets), exported, targets, frames=task.frames_of(batch))
        ours, theirs = task.activate(learner.output.float().cpu()), task.activate(exported)
        self.largest = max(self.largest, (ours - theirs).abs().max().item())
        if task.ranked and len(self._trained.classes) > 1:
            other = (ours.argmax(1) != theirs.argmax(1)).float().reshape(len(indices), -1).mean(1) > _PIXELS
            self.differing += [i for i, differs in zip(indices, other.tolist(), strict=True) if differs]


class Served(nn.Module):
    """Runs a trained model as in validation. It averages views and activates outputs. A plan preprocesses the images.

    Attributes:
        outputs: names of the outputs, which are logits and probabilities, or numbers.
    """

    def __init__(self, trained: Trained, plan: Plan | None = None) -> None:
        super().__init__()
        self.network = trained.network.cpu().eval()
        self.crop = nn.Identity() if plan is None else Crop(plan)
        self._task, self._tta = trained.task, trained.config.fit.tta
        self.outputs = ("logits", "probabilities") if trained.task.ranked else ("numbers",)
        self._size = trained.config.aug.size if plan is None else None

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs, (N, K) each, or (N, K, height, width) for masks.

        Args:
            images: (N, 3, height, width) float32, normalized. With a plan, (N, height, width, 3) uint8 RGB.
        """
        outputs = average(self.network, self.crop(images), self._tta, self._task).float()
        return (outputs, self._task.activate(outputs)) if len(self.outputs) == 2 else (outputs,)

    def export(self) -> torch.export.ExportedProgram:
        """Return the graph for any number of images. With a plan, images may have any height and width."""
        count, height, width = _EXAMPLE
        if self._size is None:
            example, free = torch.zeros(count, height, width, 3, dtype=torch.uint8), range(3)
        else:
            example, free = torch.zeros(count, 3, *self._size), range(1)
        try:
            with torch.no_grad(), _quiet():
                shapes = (dict.fromkeys(free, torch.export.Dim.DYNAMIC),)
                return torch.export.export(self, (example,), dynamic_shapes=shapes)
        except Exception as error:  # it may raise nearly anything
            raise UserError(f"the model cannot be exported: {first_line(error)}.") from error


def onnx_bytes(program: torch.export.ExportedProgram, served: Served, metadata: Mapping[str, object]) -> bytes:
    """Convert a graph to ONNX, with metadata as JSON texts."""
    try:
        with _quiet():
            made = torch.onnx.export(
                program, input_names=[INPUT], output_names=list(served.outputs), dynamo=True, verbose=False
            )
    except Exception as error:  # as in `Served.export`
        raise UserError(f"the model cannot be exported to ONNX: {first_line(error)}.") from error
    assert made is not None
    model = made.model_proto
    # Replace the exporter's names of axes, such as s34.
    symbols = [axis.dim_param for axis in model.graph.input[0].type.tensor_type.shape.dim if axis.dim_param]
    axes = dict(zip(symbols, ("batch", "height", "width"), strict=False))
    del model.graph.value_info[:]
    for value in (*model.graph.input, *model.graph.output):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.dim_param = axes[axis.dim_param]
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=json.dumps(value))
    return bytes(model.SerializeToString())


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters' messages about their own code."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def export(trained: Trained, folder: Path, *, inside: bool = True) -> RunExport:
    """Write a model as ONNX into a folder, and return a function that runs it.

    With `inside`, the model contains its preprocessing. Otherwise, transform.py contains it.
    """
    if trained.task.own_loss:
        raise UserError("export: this model predicts boxes, which cannot be exported. Use a model of another task.")
    plan = build_plan(trained.config.aug, "val")
    require_fixed(plan)
    for package in ("onnx", "onnxruntime", "onnxscript"):
        import_extra("export", package, "export")
    served = Served(trained, plan if inside else None)
    metadata = {"classes": trained.classes, "outputs": served.outputs, "plan": str(plan)}
    model = onnx_bytes(served.export(), served, metadata)
    files: dict[str, bytes | str] = {
        _FILE: model,
        "predict.py": predict_source(
            inside=inside, masks=isinstance(trained.task, Segment), points=isinstance(trained.task, KeypointTask)
        ),
    }
    if not inside:
        files["transform.py"] = python_source(plan)
    with writing(f"--out {folder}"):
        for name, content in files.items():
            write_atomically(folder / name, content)
    if inside:
        return _runner(model, lambda image: np.array(to_rgb(image)))
    return _runner(model, runpy.run_path(str(folder / "transform.py"))["transform"])


def predict_source(*, inside: bool, masks: bool = False, points: bool = False) -> str:
    """Return predict.py, which runs an exported model without this project."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.get_template("predict.jinja")
    reader = reader_source() if inside else ""
    return template.render(file=_FILE, reader=reader, masks=masks, points=points).rstrip() + "\n"


def _runner(model: bytes, prepare: Callable[[Image.Image], NDArray[Any]]) -> RunExport:
    """Return a function that runs an exported model on a single image."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])

    def run(image: ImageRef) -> list[NDArray[np.float32]]:
        with open_image(image) as opened:
            return [values[0] for values in session.run(None, {INPUT: prepare(opened)[None]})]

    return run


def _report(check: Check, trained: Trained, folder: Path) -> None:
    """Print the comparison and write it as export.json."""
    console = table_console()
    table = Table("", "PyTorch", "the export")
    for key, value in check.pytorch.items():
        table.add_row(key, f"{value:.4f}", f"{check.exported[key]:.4f}")
    console.print(table)
    what = "probability" if trained.task.ranked else "number"
    text = f"{amount(check.images, 'image')}: the largest difference of a {what} is {check.largest:.2g}"
    if count := len(check.differing):
        text += f"; {amount(count, 'image')} {plural(count, 'has', 'have')} another top class: "
        text += list_some(check.differing)
    elif trained.task.ranked:
        text += "; all have the same top class"
    console.print(text, highlight=False, soft_wrap=True)
    with writing(f"--out {folder}"):
        write_json(folder / "export.json", vars(check))


def export_run(options: Namespace, run: Path, images: Path | None, overrides: Sequence[str]) -> None:
    """Export a run's model, and print the comparison with PyTorch."""
    own = images is None and not options.unchecked
    # bfloat16 would differ too much from the export.
    trained = load_trained(run, ["fit.precision=fp32", *overrides], trust=options.trust, data=own)
    split = None if options.unchecked else evaluated_split(trained, images)
    folder = options.out or own_folder(run / "export-onnx")
    inside = options.preprocessing == "inside"
    runner = export(trained, folder, inside=inside)
    if split is not None:
        _report(compare(trained, split, runner), trained, folder)
    sys.stdout.write(printable(f"{folder}\n"))
