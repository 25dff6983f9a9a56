"""Write a run's best model as ONNX, and compare it with PyTorch."""

import inspect
import runpy
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from numpy.typing import NDArray
from PIL import Image
from rich.table import Table

from augment.cli.parser import table_console, writing
from augment.data.dataset import ImageRef, Split
from augment.data.images import name_of, open_image, to_rgb
from augment.pipeline.serving.transform_source import python_source, require_fixed
from augment.recipe.plan import build_plan
from augment.support.errors import UserError
from augment.support.files import installed_version, write_atomically, write_json
from augment.support.reading import check_folder
from augment.support.text import amount, list_some, plural
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import Callback
from trainer.loop.learner import Learner
from trainer.run.trained import Trained, load_trained
from trainer.tasks.metric import Meter
from trainer.tasks.segment import Segment
from trainer.tools.evaluate import evaluated_split
from trainer.tools.export.served import INPUT, Served, onnx_bytes, require_onnx

_CPU = torch.device("cpu")
_PIXELS = 0.01  # share of pixels, of those of masks, in which the highest output may be another one

# The outputs of an export for an image, (K,) or (K, height, width) each: what the model returns, and its activation.
RunExport = Callable[[ImageRef], Sequence[NDArray[np.float32]]]


@dataclass(frozen=True)
class Check:
    """How an export compares with PyTorch on some images."""

    images: int
    pytorch: dict[str, float]  # the scores of the model in PyTorch
    exported: dict[str, float]  # the scores of the export
    largest: float  # the largest absolute difference of an activated output: of a probability, or of a number
    # Names of the images whose highest output is another one, of masks in more than a hundredth of the pixels; none
    # where outputs are not ranked
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
    """Runs an export on the images of each batch of a pass, as all outputs of masks would not fit in memory."""

    def __init__(self, trained: Trained, split: Split, run: RunExport) -> None:
        self._trained, self._files, self._run = trained, split.files, run
        self._loss = trained.task.make_losses(trained.config.fit, trained.network, _CPU)[1]
        self.largest = 0.0
        self.differing: list[int] = []

    def before_validate(self, learner: Learner) -> None:
        """Measure what is measured of the model."""
        self.meter = Meter(learner.task, learner.find(Recorder).metrics, _CPU, keep=True)

    def after_batch(self, learner: Learner) -> None:
        """Compare the outputs of a batch."""
        batch, task = learner.batch, learner.task
        indices, targets = batch.indices.tolist(), task.targets_of(batch).cpu()
        exported = torch.stack([torch.from_numpy(np.array(self._run(self._files[i])[0])) for i in indices])
        self.meter.update(self._loss(exported, targets), exported, targets, frames=task.frames_of(batch))
        ours, theirs = task.activate(learner.output.float().cpu()), task.activate(exported)
        self.largest = max(self.largest, (ours - theirs).abs().max().item())
        if task.ranked and len(self._trained.classes) > 1:
            other = (ours.argmax(1) != theirs.argmax(1)).float().reshape(len(indices), -1).mean(1) > _PIXELS
            self.differing += [i for i, differs in zip(indices, other.tolist(), strict=True) if differs]


_FILE = "model.onnx"
_PACKAGES = ("torch", "onnx", "onnxruntime", "onnxscript", "pillow", "numpy")


def export(trained: Trained, folder: Path, *, inside: bool = True) -> RunExport:
    """Write a model as ONNX into a folder; return what runs it.

    It contains its preprocessing if that is `inside`; otherwise transform.py does it.
    """
    if trained.task.own_loss:
        raise UserError(
            "export: this model predicts boxes. Allowed: models of classes, labels, numbers, masks or points."
        )
    plan = build_plan(trained.config.aug, "val")
    require_fixed(plan)
    require_onnx()
    served = Served(trained, plan if inside else None)
    metadata = {"classes": trained.classes, "outputs": served.outputs, "plan": str(plan)}
    model = onnx_bytes(served.export(), served, metadata)
    source = predict_source(inside=inside, masks=isinstance(trained.task, Segment))
    files: dict[str, bytes | str] = {_FILE: model, "predict.py": source}
    if not inside:
        files["transform.py"] = python_source(plan)
    with writing(f"--out {folder}"):
        for name, content in files.items():
            write_atomically(folder / name, content)
    if inside:
        return _runner(model, lambda image: np.array(to_rgb(image)))
    return _runner(model, runpy.run_path(str(folder / "transform.py"))["transform"])


def predict_source(*, inside: bool, masks: bool = False) -> str:
    """Return predict.py, which runs an exported model without this project."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = inspect.getsource(to_rgb) if inside else ""
    template = environment.get_template("predict.jinja")
    return template.render(file=_FILE, to_rgb=source, masks=masks).rstrip() + "\n"


def _runner(model: bytes, prepare: Callable[[Image.Image], NDArray[Any]]) -> RunExport:
    """Return a function that runs an exported model on an image, as a batch of one."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])

    def run(image: ImageRef) -> list[NDArray[np.float32]]:
        with open_image(image) as opened:
            return [values[0] for values in session.run(None, {INPUT: prepare(opened)[None]})]

    return run


def _report(check: Check, trained: Trained, facts: Mapping[str, object], folder: Path) -> None:
    """Print the comparison and write it as export.json."""
    console = table_console()
    table = Table("", "PyTorch", "the export")
    for key, value in check.pytorch.items():
        table.add_row(key, f"{value:.4f}", f"{check.exported[key]:.4f}")
    console.print(table)
    what = "probability" if trained.task.ranked else "number"
    lines = [f"{amount(check.images, 'image')}: the largest difference of a {what} is {check.largest:.2g}"]
    if count := len(check.differing):
        ones = f"{amount(count, 'image')} {plural(count, 'has', 'have')} another top class"
        lines.append(f"{ones}: {list_some(check.differing)}")
    elif trained.task.ranked:
        lines.append("all have the same top class")
    console.print("; ".join(lines), highlight=False, soft_wrap=True)
    with writing(f"--out {folder}"):
        write_json(folder / "export.json", {**facts, **vars(check)})


def export_run(options: Namespace, run: Path, images: Path | None, overrides: Sequence[str]) -> None:
    """Export as the command line asks, and print how the export compares."""
    check_folder(options.out or run)
    own = images is None and not options.unchecked
    # bfloat16 would differ by more than an export may.
    trained = load_trained(run, ["fit.precision=fp32", *overrides], trust=options.trust, data=own)
    split = None if options.unchecked else evaluated_split(trained, images)
    folder = options.out or run / "export-onnx"
    inside = options.preprocessing == "inside"
    runner = export(trained, folder, inside=inside)
    facts = {
        "to": "onnx",
        "preprocessing": options.preprocessing,
        "classes": trained.classes,
        "versions": {name: installed_version(name) for name in _PACKAGES},
    }
    if split is not None:
        _report(compare(trained, split, runner), trained, facts, folder)
    sys.stdout.write(f"{folder}\n")
