"""Export a run's best model, and compare the exports with PyTorch on the images of a split."""

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table
from torch import Tensor
from torch.nn.functional import pad

from augment.cli.parser import table_console, writing
from augment.data.dataset import ImageRef, Split
from augment.data.images import name_of
from augment.data.sources.loading import load_dataset
from augment.support.errors import UserError
from augment.support.files import write_json
from augment.support.formatting import amount, list_some, plural, printable, short_number
from augment.support.untrusted_files import unlinked_folder
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import Callback
from trainer.loop.learner import Learner
from trainer.models.torchvision_detector import DETECTIONS
from trainer.predictions.masks import upright
from trainer.run.best_model import LoadedModel, load_best_model
from trainer.tasks.detect import Detect, boxes_at
from trainer.tasks.meter import Meter
from trainer.tasks.segment import Segment
from trainer.tools.evaluate import evaluated_split
from trainer.tools.export.write import FILE, Exported, export

CALIBRATION = 100  # default number of training images that define the ranges of int8
_FEWEST = 10  # fewer images would miss a large part of the ranges
_CPU = torch.device("cpu")
_PIXEL_SHARE = 0.01  # largest share of a mask's pixels that may have a different class
_MIN_IOU = 0.5  # lowest IoU of boxes that show the same object

# Maps an image to the outputs of an export, without a batch dimension. The first output is (K,) or (K, height, width),
# before the activation. Detectors return boxes, (K, 4), scores and labels.
RunExport = Callable[[ImageRef], Sequence[NDArray[Any]]]


@dataclass(frozen=True)
class Check:
    """The comparison of an export with PyTorch."""

    images: int  # number of images
    pytorch: dict[str, float]  # scores of the model in PyTorch
    exported: dict[str, float]  # scores of the export
    largest: float  # largest absolute difference of a probability, a number or an object's score
    # Names of the images with a different top class. In segmentation, images with different classes in more than 1% of
    # their pixels. In detection, images in which only one side finds an object. Empty for tasks that do not rank
    # classes.
    differing: tuple[str, ...]
    pixels: float | None = None  # largest absolute difference of the edges of boxes, in detection

    def values(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


def compare(trained: LoadedModel, split: Split, exports: Mapping[str, RunExport]) -> dict[str, Check]:
    """Compare exports with the model in PyTorch, image by image. Return the comparison of each export by its name."""
    recorder = Recorder()
    kind = _ObjectComparison if trained.task.own_loss else _OutputComparison
    comparisons = {name: kind(trained, split, run) for name, run in exports.items()}
    trained.run_over(split, recorder, *comparisons.values(), description="comparing")
    return {name: comparison.result(recorder) for name, comparison in comparisons.items()}


class _Comparison(Callback):
    """Compares an export with the model batch by batch, because the masks of a whole pass do not fit into memory."""

    def __init__(self, trained: LoadedModel, split: Split, run: RunExport) -> None:
        self._trained, self._files, self._run = trained, split.files, run
        self._loss = trained.task.make_losses(trained.config.fit, trained.network, _CPU)[1]
        self.largest, self.pixels = 0.0, 0.0
        self.differing: list[int] = []

    def before_validate(self, learner: Learner) -> None:
        """Prepare to compute the model's metrics for the export as well."""
        # Exports return the masks of objects only as small grids, so metrics that need masks are left out.
        metrics = tuple(metric for metric in learner.find(Recorder).metrics if not metric.needs)
        self.meter = Meter(learner.task, metrics, _CPU, keep=True)

    def result(self, recorder: Recorder) -> Check:
        exported = {f"val_{name}": value for name, value in self.meter.scores().items()}
        return Check(
            images=len(self._files),
            pytorch={key: value for key, value in recorder.val.items() if key in exported},
            exported=exported,
            largest=self.largest,
            differing=tuple(name_of(self._files[i]) for i in sorted(self.differing)),
            pixels=self.pixels if self._trained.task.own_loss else None,
        )


class _OutputComparison(_Comparison):
    """Compares outputs of a fixed shape."""

    def after_batch(self, learner: Learner) -> None:
        batch, task = learner.batch, learner.task
        indices, targets = batch.indices.tolist(), task.targets_of(batch).cpu()
        exported = torch.stack([torch.from_numpy(np.array(self._run(self._files[i])[0])) for i in indices])
        self.meter.update(self._loss(exported, targets), exported, targets, frames=task.frames_of(batch))
        ours, theirs = task.activate(learner.output.float().cpu()), task.activate(exported)
        self.largest = max(self.largest, (ours - theirs).abs().max().item())
        if task.ranked and len(self._trained.classes) > 1:
            other = (ours.argmax(1) != theirs.argmax(1)).float().reshape(len(indices), -1).mean(1) > _PIXEL_SHARE
            self.differing += [i for i, differs in zip(indices, other.tolist(), strict=True) if differs]


class _ObjectComparison(_Comparison):
    """Compares objects in pixels of the upright images, as `predict` returns them."""

    def after_batch(self, learner: Learner) -> None:
        batch, task = learner.batch, cast(Detect, learner.task)
        targets: Any = [{name: value.cpu() for name, value in target.items()} for target in task.targets_of(batch)]
        frames, rows = cast(Tensor, task.frames_of(batch)).cpu(), []
        for i, output, frame in zip(batch.indices.tolist(), learner.output.float().cpu(), frames, strict=True):
            turn, size = upright(self._files[i])
            found = task.objects(output, frame @ turn, size, self._trained.classes)
            ours = torch.tensor([(*shown.box, shown.label, shown.score) for shown in found]).reshape(-1, 6)
            boxes, scores, labels = (torch.from_numpy(values) for values in self._run(self._files[i])[:3])
            theirs = torch.cat([boxes, labels[:, None], scores[:, None]], dim=1)
            if not all([self._match(ours, theirs), self._match(theirs, ours)]):
                self.differing.append(i)
            row = torch.cat([boxes_at(boxes, frame @ turn), labels[:, None], scores[:, None]], dim=1).float()
            rows.append(pad(row, (0, 0, 0, DETECTIONS - len(row))))
        exported = torch.stack(rows)
        self.meter.update(self._loss(exported, targets), exported, targets, frames=frames)

    def _match(self, objects: Tensor, others: Tensor) -> bool:
        """Match each shown object, (K, 6), with the closest of the others, (M, 6), in its class.

        The closest object has the largest IoU minus the difference of the scores, because neighbors may overlap a tiny
        box more than the same box in the other result. Update the largest differences. Return whether each shown object
        has a match with an IoU of at least 0.5.
        """
        from torchvision.ops import box_iou

        shown = objects[objects[:, 5] >= torch.tensor(self._trained.used_thresholds)[objects[:, 4].long()]]
        if not len(shown) or not len(others):
            return not len(shown)
        overlaps = box_iou(shown[:, :4], others[:, :4]) * (shown[:, 4:5] == others[:, 4])
        nearest = (overlaps - (shown[:, 5:] - others[:, 5]).abs()).argmax(dim=1)
        known = overlaps.gather(1, nearest[:, None])[:, 0] >= _MIN_IOU
        apart = (shown - others[nearest])[known].abs()
        if len(apart):
            self.largest = max(self.largest, apart[:, 5].max().item())
            self.pixels = max(self.pixels, apart[:, :4].max().item())
        return bool(known.all())


def export_run(options: Namespace, run: Path, images: Path | None, overrides: Sequence[str]) -> None:
    """Export a run's model, and print the comparison with PyTorch."""
    int8 = "int8" in options.variants
    if options.calibrate is not None and not int8:
        raise UserError("--calibrate: only int8 is calibrated. Add int8 to --variants, or remove --calibrate.")
    own = images is None and not options.unchecked
    # bfloat16 would differ too much from the export.
    trained = load_best_model(run, ["fit.precision=fp32", *overrides], trust=options.trust, data=own or int8)
    split = None if options.unchecked else evaluated_split(trained, images)
    folder = options.out or unlinked_folder(run / "export-onnx")
    exports = export(
        trained,
        folder,
        inside=options.preprocessing == "inside",
        variants=options.variants,
        calibration=_calibration(trained, options.calibrate or CALIBRATION) if int8 else (),
    )
    if split is not None:
        _report(compare(trained, split, exports), exports, trained, split, folder)
    sys.stdout.write(printable(f"{folder}\nto predict: python {folder / 'predict.py'} IMAGE_OR_FOLDER\n"))


def _calibration(trained: LoadedModel, number: int) -> Sequence[ImageRef]:
    """Return evenly spaced training images, or all if there are fewer than `number`.

    Raises:
        UserError: there are too few training images.
    """
    files = load_dataset(trained.config.data).train.files
    if len(files) < _FEWEST:
        raise UserError(
            f"--variants int8: the data has {amount(len(files), 'training image')}, but the ranges of int8 need at "
            f"least {_FEWEST}. Set other data with overrides, or remove int8."
        )
    return [files[i] for i in np.linspace(0, len(files) - 1, min(number, len(files))).astype(int)]


def _report(
    checks: Mapping[str, Check], exports: Mapping[str, Exported], trained: LoadedModel, split: Split, folder: Path
) -> None:
    """Print the comparison and write it as export.json."""
    console, check = table_console(), checks[FILE]
    table = Table("metric", "PyTorch", "export")
    for key, value in check.pytorch.items():
        table.add_row(key, f"{value:.4f}", f"{check.exported[key]:.4f}")
    console.print(table)
    console.print(_sentence(check, trained), highlight=False, soft_wrap=True)
    report = check.values()
    if len(exports) > 1:
        table, report["files"] = _compare_files(checks, exports, trained, split)
        console.print(table)
    with writing(f"--out {folder}"):
        write_json(folder / "export.json", report)


def _sentence(check: Check, trained: LoadedModel) -> str:
    what, other, same = "number", "", ""
    if trained.task.ranked:
        what, other, same = "probability", "a different top class", "the same top class"
    if isinstance(trained.task, Segment):
        other = f"other classes in more than {_PIXEL_SHARE:.0%} of the pixels"
        same = f"the same class in at least {1 - _PIXEL_SHARE:.0%} of the pixels"
    if check.pixels is not None:
        what, other, same = f"box is {check.pixels:.2g} px, and in a score", "different objects", "the same objects"
    text = f"{amount(check.images, 'image')}: the largest difference in a {what} is {check.largest:.2g}"
    if count := len(check.differing):
        return f"{text}. {amount(count, 'image')} {plural(count, 'has', 'have')} {other}: {list_some(check.differing)}"
    return f"{text}. All images have {same}." if same else f"{text}."


def _compare_files(
    checks: Mapping[str, Check], exports: Mapping[str, Exported], trained: LoadedModel, split: Split
) -> tuple[Table, dict[str, Any]]:
    """Return the size, score and speed of each file, as a table and for export.json."""
    task = trained.task
    display, key, before = task.display(trained.classes), f"val_{task.score}", checks[FILE].pytorch
    lost = "points lost" if display.share else "lost"
    table = Table("file", "MB", task.score_title, lost, "largest difference", "images/s")
    table.add_row("PyTorch", "", f"{before[key]:.4f}")
    facts = {}
    for name, exported in exports.items():
        found = checks[name].values()
        score = found["exported"][key]
        worse = score - before[key] if display.smaller else before[key] - score
        worse *= 100 if display.share else 1
        size, speed = len(exported.content), exported.images_per_second(split.files)
        cells = f"{size / 1e6:.1f}", f"{score:.4f}", f"{worse:.2f}", f"{found['largest']:.2g}", short_number(speed)
        table.add_row(name, *cells)
        facts[name] = {**found, "bytes": size, "lost": worse, "images_per_second": speed}
    return table, facts
