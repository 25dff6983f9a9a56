"""`python -m trainer.predict RUN FILES_OR_FOLDERS...`: what a run's best model takes pictures for."""

import csv
import json
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import ClassVar

import torch
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from torch import Tensor

from augment.check import check_files
from augment.command import Parser, one_of, readable_errors, table_console, writing
from augment.dataset import Split, Target
from augment.errors import UserError
from augment.files import near_file, write_whole
from augment.folder import find_pictures
from augment.stored import name_of
from augment.wording import amount
from trainer.callback import Callback
from trainer.learner import Learner
from trainer.tasks import JUDGING
from trainer.trained import Trained, load_trained
from trainer.tta import TTA

_TOP = 3  # classes that are named if nothing else is said
_MAX_COLUMNS = 5  # of classes on the terminal; more stand in one
FAILED = 1  # exit code if some of the pictures cannot be used
STDOUT = "-"

_EXAMPLES = """\
  RUN cat.jpg photos/              pictures, and those at any depth below folders
  RUN photos/ --top 5 --csv FILE   a line a picture; - writes to the terminal
  RUN photos/ --tta flip           averaged over each picture and its mirror
  RUN photos/ fit.device=cpu fit.batch_size=256

RUN is the folder of a run. A picture that cannot be used is named and passed over, and the exit code is 1."""


@dataclass(frozen=True)
class Prediction:
    """What a model takes a picture for.

    Attributes:
        file: the picture.
        classes: the most probable classes, or the labels, with their probabilities, in [0, 1], the best first.
        numbers: what the model predicts, by name, where it predicts numbers.
        error: why the picture cannot be used; then there are no classes.
        kind: what the classes are, "class" or "label".
    """

    file: Path
    classes: tuple[tuple[str, float], ...] = ()
    error: str = ""
    numbers: tuple[tuple[str, float], ...] = ()
    kind: str = "class"


def predict(
    run: Path,
    files: Sequence[Path],
    *,
    top: int | None = None,
    threshold: float | None = None,
    tta: str | None = None,
    overrides: Sequence[str] = (),
) -> list[Prediction]:
    """Let the best model of a run look at pictures, prepared exactly as in validation.

    Args:
        run: folder of the run.
        files: pictures, and folders that are searched for pictures at any depth.
        top: how many classes or labels to name of each picture; None: 3 classes, or the labels above the threshold.
        threshold: probability from which on a label is named; None: 0.5.
        tta: test-time augmentation, a name of `trainer.tta.TTA`; None: that of the run.
        overrides: `key=value` that replace values of the run's configuration.

    Returns:
        One for each picture in the order of `files`, those of a folder sorted by path.

    Raises:
        UserError: no run, no checkpoint, no such file, a folder without pictures, or not one picture that can be used.
    """
    trained, pictures = load_trained(run, overrides, tta=tta), list_pictures(files)
    problems = {problem.file: problem.reason for problem in check_files(pictures)}
    good = tuple(picture for picture in pictures if picture not in problems)
    if not good:
        file, reason = next(iter(problems.items()))
        one = len(pictures) == 1
        none, first = ("the picture cannot", "") if one else (f"none of {len(pictures)} pictures can", "; the first")
        raise UserError(f"{none} be used{first}: {name_of(file)} {reason}")
    found = iter(_predict(trained, good, top, threshold))
    return [
        Prediction(picture, error=problems[picture]) if picture in problems else next(found) for picture in pictures
    ]


def list_pictures(paths: Sequence[Path]) -> list[Path]:
    """Return files as they are and folders as the pictures in them, in order.

    Raises:
        UserError: one does not exist, or is a folder without pictures; or there are none at all.
    """
    pictures: list[Path] = []
    for path in paths:
        found = find_pictures(path) if path.is_dir() else [path]
        if not found:
            raise UserError(f"{path}: holds no pictures.")
        if not path.exists():
            raise UserError(f"{path}: there is no such file or folder.{near_file(path)}")
        pictures += found
    if not pictures:
        raise UserError("no pictures are given. Allowed: files, and folders that hold pictures.")
    return pictures


class _Best(Callback):
    """Keeps the most probable classes of every picture, or its numbers, on the device until the pass is over."""

    order: ClassVar[int] = 0

    def __init__(self, top: int) -> None:
        self._top = top
        self._kept: list[tuple[Tensor, Tensor, Tensor]] = []

    def after_batch(self, learner: Learner) -> None:
        """Add the batch."""
        output = learner.output.float()
        if learner.task == "regress":
            numbers = output.clone()
            self._kept.append(
                (learner.batch.indices, numbers, torch.arange(output.shape[1], device=output.device).expand_as(output))
            )
            return
        shares = output.sigmoid() if learner.task == "multilabel" else output.softmax(dim=1)
        self._kept.append((learner.batch.indices, *shares.topk(self._top, dim=1)))

    def by_index(self) -> tuple[Tensor, Tensor]:
        """Return probabilities and classes, (N, top) each on the CPU, in the order of the split's files."""
        indices, shares, classes = (torch.cat(kept).cpu() for kept in zip(*self._kept, strict=True))
        order = indices.argsort()
        return shares[order], classes[order]


def _predict(
    trained: Trained, files: tuple[Path, ...], top: int | None, threshold: float | None
) -> Iterator[Prediction]:
    names, task = trained.classes, trained.task
    if threshold is not None and task != "multilabel":
        raise UserError("--threshold: this model does not tell labels. Allowed: with a model of data.multilabel=true.")
    few = _TOP if top is None and task == "classify" else top
    best = _Best(len(names) if few is None else min(few, len(names)))
    # The targets are needed and not looked at.
    target: Target = 0 if task == "classify" else (0.0,) * len(names)
    trained.look_at(Split(files, (target,) * len(files)), best, what="predicting")
    values, places = best.by_index()
    least = 0.0 if task != "multilabel" else threshold if threshold is not None else 0.0 if top is not None else 0.5
    for file, row, of in zip(files, values.tolist(), places.tolist(), strict=True):
        pairs = tuple((names[place], value) for place, value in zip(of, row, strict=True))
        if task == "regress":
            yield Prediction(file, numbers=pairs)
        else:
            yield Prediction(file, tuple(pair for pair in pairs if pair[1] >= least), kind=JUDGING[task].kind)


def as_json(predictions: Sequence[Prediction]) -> str:
    """Write predictions as JSON, `[{"file": ..., "classes": [{"class": ..., "probability": ...}]}]`.

    Numbers are `{"file": ..., "numbers": {name: ...}}`.
    """
    rows = []
    for prediction in predictions:
        classes = [{"class": name, "probability": share} for name, share in prediction.classes]
        row = {"file": str(prediction.file)}
        found = {"numbers": dict(prediction.numbers)} if prediction.numbers else {"classes": classes}
        rows.append(row | ({"error": prediction.error} if prediction.error else found))
    return json.dumps(rows, indent=2) + "\n"


def as_csv(predictions: Sequence[Prediction]) -> str:
    """Write predictions as CSV: file, error, class_1, probability_1, class_2, ...; or file, error and the numbers."""
    names = next(([name for name, _ in p.numbers] for p in predictions if p.numbers), [])
    top = max(len(prediction.classes) for prediction in predictions)
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [f"{what}_{place}" for place in range(1, top + 1) for what in ("class", "probability")]
    writer.writerow(["file", "error", *columns, *names])
    for prediction in predictions:
        values = [value for name, share in prediction.classes for value in (name, f"{share:.6g}")]
        writer.writerow([prediction.file, prediction.error, *values, *(f"{n:.6g}" for _, n in prediction.numbers)])
    return text.getvalue()


def _print(predictions: Sequence[Prediction], console: Console) -> None:
    top = max(len(prediction.classes) for prediction in predictions)
    names = next(([name for name, _ in p.numbers] for p in predictions if p.numbers), [])
    kind = next((p.kind for p in predictions if p.classes), "class")
    heads = [kind, *[""] * (top - 1)][: top if top <= _MAX_COLUMNS else 1]
    table = Table("picture", *heads, *(Column(Text(name)) for name in names))
    for prediction in predictions:
        cells = [f"{name} {share:.1%}" for name, share in prediction.classes]
        cells = cells if top <= _MAX_COLUMNS else [", ".join(cells)]
        cells += [f"{number:.4g}" for _, number in prediction.numbers]
        if not prediction.error:  # Text, as the console takes [words] for its own markup
            table.add_row(Text(str(prediction.file), overflow="fold"), *map(Text, cells))
    console.print(table)


def _write(text: str, file: str, flag: str) -> None:
    if file == STDOUT:
        sys.stdout.write(text)
        return
    with writing(f"{flag} {file}"):
        write_whole(Path(file), text.encode(errors="surrogateescape"))  # names of files need not be UTF-8


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"'{text}' is not allowed. Allowed: a whole number of at least 1")
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ArgumentTypeError(f"'{text}' is not allowed. Allowed: a number from 0 to 1")
    return share


def _parser() -> Parser:
    description = "Say what the best model of a run takes pictures for."
    parser = Parser("trainer.predict", description, _EXAMPLES, arguments="RUN FILE_OR_FOLDER ... [key=value ...]")
    parser.add_argument("--top", type=_count, metavar="N", help=f"how many classes to name, default {_TOP}")
    parser.add_argument("--threshold", type=_share, metavar="P",
                        help="of labels: name those of at least this probability, default 0.5")  # fmt: skip
    parser.add_argument("--tta", type=one_of(*TTA), metavar="|".join(TTA),
                        help="views of each picture that are averaged, by default as the run has it")  # fmt: skip
    parser.add_argument("--csv", metavar="FILE", help="write CSV in place of a table; - for the terminal")
    parser.add_argument("--json", metavar="FILE", help="write JSON in place of a table; - for the terminal")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    with readable_errors():
        options, paths, overrides = _parser().split_paths(sys.argv[1:] if arguments is None else arguments)
        if not paths:
            raise UserError("no run is given. Allowed: the folder of a run, then pictures or folders of them.")
        plus = [token.lstrip("+") for token in overrides]
        predictions = predict(
            paths[0], paths[1:], top=options.top, threshold=options.threshold, tta=options.tta, overrides=plus
        )
        bad = [prediction for prediction in predictions if prediction.error]
        for flag, file, text in (("--csv", options.csv, as_csv), ("--json", options.json, as_json)):
            if file:
                _write(text(predictions), file, flag)
        if not options.csv and not options.json:
            _print(predictions, table_console())
        elif STDOUT not in (options.csv, options.json):
            sys.stdout.write(f"{amount(len(predictions) - len(bad), 'picture')}; {options.csv or options.json}\n")
        for prediction in bad:
            sys.stderr.write(f"{prediction.file} {prediction.error}\n")
        if bad:
            sys.stderr.write(f"error: {len(bad)} of {amount(len(predictions), 'picture')} cannot be used.\n")
    return FAILED if bad else 0


if __name__ == "__main__":
    sys.exit(main())
