"""`python -m trainer.evaluate RUN_FOLDER`: score a run's best model on its validation data or on another folder."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text
from torch import Tensor

from augment.check import require_readable
from augment.command import USAGE, Parser, one_of, readable_errors, table_console
from augment.dataset import Split, Task
from augment.errors import UserError
from augment.files import as_line, write_json
from augment.folder import scan_split
from augment.sources import load_dataset
from trainer.confusion_plot import plot_confusion
from trainer.metrics import Predictions, wilson_interval
from trainer.outputs import Outputs, label_scores, number_scores
from trainer.pictures import plot_outputs
from trainer.recorder import Recorder
from trainer.trained import Trained, load_trained
from trainer.tta import TTA

_EXAMPLES = """\
  RUN                              on the run's own validation data
  RUN DIR                          on DIR/<class>/* or DIR/val/<class>/*
  RUN data=folder data.root=DIR    on another source's validation data
  RUN --tta flip                   averaged over each picture and its mirror
  RUN DIR fit.device=cpu fit.batch_size=256

RUN is the folder of a run. The score goes to evaluation.json, or evaluation-<name of DIR>.json, in it, and as a line to
evaluations.jsonl, which keeps earlier ones too."""

HISTORY_FILE = "evaluations.jsonl"


_SHOWN = 60  # classes in a table on the terminal


@dataclass(frozen=True)
class Score:
    """What an evaluation found.

    Attributes:
        loss: mean over the pictures.
        accuracy: in [0, 1].
        calibration_error: how far confidence and accuracy are apart, in mean over 15 equal bins of confidence, weighed
            by their pictures (Guo et al. 2017, arXiv:1706.04599), in [0, 1].
        confusion: (classes, classes), rows are targets.
        classes: their names.
        tta: the test-time augmentation.
    """

    loss: float
    accuracy: float
    calibration_error: float
    confusion: Tensor
    classes: tuple[str, ...]
    tta: str = "none"

    @property
    def pictures(self) -> int:
        """Number of pictures."""
        return int(self.confusion.sum())

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the accuracy (Wilson 1927): what another set of as many pictures might give."""
        return wilson_interval(int(self.confusion.diagonal().sum()), self.pictures)

    @property
    def balanced_accuracy(self) -> float:
        """Mean over the classes that have pictures of the share of theirs that is right, their recall."""
        shares = [right / total for right, total in self.per_class().values() if total]
        return sum(shares) / len(shares)

    def precisions(self) -> dict[str, float]:
        """Return for each class which share of what was taken for it is right; NaN where nothing was."""
        right, taken = self.confusion.diagonal(), self.confusion.sum(dim=0)
        return dict(zip(self.classes, (right / taken).tolist(), strict=True))

    def per_class(self) -> dict[str, tuple[int, int]]:
        """Return for each class how many of its pictures are right, and how many there are."""
        right, total = self.confusion.diagonal().tolist(), self.confusion.sum(dim=1).tolist()
        return {name: (int(r), int(t)) for name, r, t in zip(self.classes, right, total, strict=True)}


@dataclass(frozen=True)
class OutputScore:
    """What an evaluation of labels or numbers found.

    Attributes:
        values: mean over the pictures of the loss, and map, or mae, rmse and r2, as rows of metrics have them.
        outputs: what was said of each picture.
        classes: names of the labels or numbers.
        task: which of the two.
        tta: the test-time augmentation.
    """

    values: Mapping[str, float]
    outputs: Outputs
    classes: tuple[str, ...]
    task: Task
    tta: str = "none"

    @property
    def pictures(self) -> int:
        """Number of pictures."""
        return len(self.outputs.index)

    def per_class(self) -> dict[str, dict[str, float]]:
        """Return the scores of each label or number."""
        if self.task == "regress":
            numbers = number_scores(self.outputs, self.classes)
            return {score.name: {"mae": score.mae, "rmse": score.rmse, "r2": score.r2} for score in numbers}
        return {
            score.name: {
                "average_precision": score.average_precision,
                "threshold": score.threshold,
                "f1": score.f1,
                "pictures": score.pictures,
            }
            for score in label_scores(self.outputs, self.classes)
        }


def evaluate(
    run: Path, folder: Path | None = None, overrides: Sequence[str] = (), *, tta: str | None = None
) -> Score | OutputScore:
    """Score the best model of a run.

    Args:
        run: folder of the run.
        folder: pictures to score it on, see `scan_split`; None: the run's validation data.
        overrides: `key=value` that replace values of the run's configuration.
        tta: test-time augmentation, a name of `trainer.tta.TTA`; None: that of the run.

    Raises:
        UserError: no run, no checkpoint, or pictures that cannot be used.
    """
    trained = load_trained(run, overrides, tta=tta)
    if folder is not None and trained.task != "classify":
        raise UserError(f"{folder}: folders hold one class a picture, and this model tells something else. "
                        "Allowed: data.val=FILE, a list of the run's kind.")  # fmt: skip
    split = _own_split(trained) if folder is None else scan_split(folder, trained.classes)
    if folder is not None:
        split = require_readable(split, "val", skip_bad=False)
    recorder = Recorder()
    trained.look_at(split, recorder, what="evaluating")
    if isinstance(recorder.samples, Outputs):
        return OutputScore(recorder.val, recorder.samples, trained.classes, trained.task, trained.config.fit.tta)
    assert recorder.confusion is not None
    assert recorder.samples is not None
    return Score(
        loss=recorder.val["val_loss"],
        accuracy=recorder.val["val_accuracy"],
        calibration_error=_calibration_error(recorder.samples),
        confusion=recorder.confusion,
        classes=trained.classes,
        tta=trained.config.fit.tta,
    )


def _calibration_error(samples: Predictions) -> float:
    # Takes seconds to import, for it brings torchvision along.
    from torchmetrics.functional.classification import binary_calibration_error

    # Whether the predicted class is right is a question of two answers, whose probability is the confidence.
    right = (samples.prediction == samples.target).int()
    return float(binary_calibration_error(samples.confidence, right, n_bins=15))


def _own_split(trained: Trained) -> Split:
    dataset, classes = load_dataset(trained.config.data), trained.classes
    if dataset.classes != classes:
        raise UserError(
            f"data: its classes are not those of the model any more ({len(dataset.classes)} against {len(classes)}, "
            f"first difference: {_first_difference(dataset.classes, classes)})."
        )
    if dataset.task != trained.task:
        raise UserError(f"data: its targets are of the kind {dataset.task}, those of the model {trained.task}.")
    return dataset.val


def _first_difference(ours: Sequence[str], theirs: Sequence[str]) -> str:
    return next((f"'{a}' against '{b}'" for a, b in zip(ours, theirs, strict=False) if a != b), "their number")


def _worst(per_class: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Return all classes, or if a screen does not hold them those with the lowest recall; all are in the JSON file."""
    if len(per_class) <= _SHOWN:
        return dict(per_class)
    recall = {name: right / total for name, (right, total) in per_class.items() if total}
    return {name: per_class[name] for name in sorted(recall, key=recall.__getitem__)[:_SHOWN]}


def _report(score: Score, run: Path, folder: Path | None, overrides: Sequence[str]) -> None:
    low, high = score.interval
    console = table_console()
    table = Table("class", "right", "of", "recall", "precision")
    precisions = score.precisions()
    shown = _worst(score.per_class())
    for name, (right, total) in shown.items():
        precision = "" if math.isnan(precisions[name]) else f"{precisions[name]:.4f}"
        table.add_row(Text(name), str(right), str(total), f"{right / total:.4f}" if total else "", precision)
    console.print(table)
    if len(shown) < len(score.classes):
        console.print(f"the {len(shown)} of {len(score.classes):,} classes with the lowest recall", highlight=False)
    views = "" if score.tta == "none" else f", tta {score.tta}"
    console.print(
        f"val_accuracy {score.accuracy:.4f} (95 % interval {low:.4f} to {high:.4f}, {score.pictures} pictures), "
        f"balanced accuracy {score.balanced_accuracy:.4f}, val_loss {score.loss:.4f}, "
        f"calibration error {score.calibration_error:.4f}{views}",
        highlight=False,
        soft_wrap=True,
    )
    name = "evaluation" if folder is None else f"evaluation-{folder.resolve().name}"
    values: dict[str, Any] = {
        "data": None if folder is None else str(folder.resolve()),
        "overrides": list(overrides),
        "pictures": score.pictures,
        "tta": score.tta,
        "val_loss": score.loss,
        "val_accuracy": score.accuracy,
        "balanced_accuracy": score.balanced_accuracy,
        "calibration_error": score.calibration_error,
        "interval": [low, high],
        "per_class": score.per_class(),
    }
    _write(values, run, name)
    plot_confusion(score.confusion.numpy(), score.classes, run / f"{name}.png")
    console.print(f"{run / name}.json, .png", highlight=False, soft_wrap=True)


def _report_outputs(score: OutputScore, run: Path, overrides: Sequence[str]) -> None:
    console = table_console()
    per_class = score.per_class()
    columns = list(next(iter(per_class.values())))
    table = Table("label" if score.task == "multilabel" else "number", *columns)
    for name, values in per_class.items():
        shown = (f"{v:.4g}" if isinstance(v, int) else "-" if math.isnan(v) else f"{v:.4f}" for v in values.values())
        table.add_row(Text(name), *shown)
    console.print(table)
    views = "" if score.tta == "none" else f", tta {score.tta}"
    told = ", ".join(f"{key} {value:.4f}" for key, value in score.values.items())
    console.print(f"{told} ({score.pictures} pictures){views}", highlight=False, soft_wrap=True)
    written: dict[str, Any] = {
        "data": None,
        "overrides": list(overrides),
        "pictures": score.pictures,
        "tta": score.tta,
        **score.values,
        "per_class": per_class,
    }
    _write(written, run, "evaluation")
    plot_outputs(score.outputs, score.task, score.classes, run, "evaluation.png")
    console.print(f"{run / 'evaluation'}.json, .png", highlight=False, soft_wrap=True)


def _write(values: Mapping[str, Any], run: Path, name: str) -> None:
    write_json(run / f"{name}.json", values)
    few = {key: value for key, value in values.items() if key != "per_class"}
    with (run / HISTORY_FILE).open("a", encoding="utf-8") as stream:
        stream.write(as_line({"time": f"{datetime.now():%Y-%m-%d %H:%M:%S}", **few}))


def _parser() -> Parser:
    description = "Score the best model of a run on its validation data or on other pictures."
    parser = Parser("trainer.evaluate", description, _EXAMPLES, arguments="RUN [DIR] [key=value ...]")
    parser.add_argument("--tta", type=one_of(*TTA), metavar="|".join(TTA),
                        help="views of each picture that are averaged, by default as the run has it")  # fmt: skip
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    with readable_errors():
        parser = _parser()
        if not given:
            parser.print_help()
            return USAGE
        options, folders, overrides = parser.split_paths(given)
        if not 1 <= len(folders) <= 2:
            raise UserError(f"{len(folders)} folders are given. Allowed: that of the run, and one with pictures.")
        run, folder = folders[0], folders[1] if len(folders) == 2 else None
        score = evaluate(run, folder, [token.lstrip("+") for token in overrides], tta=options.tta)
        if isinstance(score, OutputScore):
            _report_outputs(score, run, overrides)
        else:
            _report(score, run, folder, overrides)
    return 0


if __name__ == "__main__":
    sys.exit(main())
