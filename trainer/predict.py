"""`python -m trainer.predict RUN FILES_OR_FOLDERS...`: what a run's best model takes pictures for."""

import csv
import json
import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from io import StringIO
from pathlib import Path
from typing import ClassVar

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from augment.check import check_files
from augment.command import Parser, one_of, readable_errors, writing
from augment.dataset import Split
from augment.errors import UserError
from augment.files import write_whole
from augment.folder import find_pictures
from augment.stored import name_of
from trainer.callback import Callback
from trainer.learner import Learner
from trainer.trained import Trained, load_trained
from trainer.tta import TTA

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
        classes: the most probable classes with their probabilities, in [0, 1], the best first.
        error: why the picture cannot be used; then there are no classes.
    """

    file: Path
    classes: tuple[tuple[str, float], ...] = ()
    error: str = ""


def predict(
    run: Path, files: Sequence[Path], *, top: int = 3, tta: str | None = None, overrides: Sequence[str] = ()
) -> list[Prediction]:
    """Let the best model of a run look at pictures, prepared exactly as in validation.

    Args:
        run: folder of the run.
        files: pictures, and folders that are searched for pictures at any depth.
        top: how many classes to name of each picture.
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
        raise UserError(f"none of {len(pictures)} pictures can be used; the first: {name_of(file)} {reason}")
    found = iter(_predict(trained, good, top))
    return [
        Prediction(picture, error=problems[picture]) if picture in problems else Prediction(picture, next(found))
        for picture in pictures
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
            raise UserError(f"{path}: there is no such file or folder.{_near(path)}")
        pictures += found
    if not pictures:
        raise UserError("no pictures are given. Allowed: files, and folders that hold pictures.")
    return pictures


def _near(path: Path) -> str:
    if not path.parent.is_dir():
        return ""
    near = get_close_matches(path.name, [other.name for other in path.parent.iterdir()], n=1)
    return f" Did you mean {path.with_name(near[0])}?" if near else ""


class _Best(Callback):
    """Keeps the most probable classes of every picture, on the device until the pass is over."""

    order: ClassVar[int] = 0

    def __init__(self, top: int) -> None:
        self._top = top
        self._kept: list[tuple[Tensor, Tensor, Tensor]] = []

    def after_batch(self, learner: Learner) -> None:
        """Add the batch."""
        shares, classes = learner.output.float().softmax(dim=1).topk(self._top, dim=1)
        self._kept.append((learner.batch.indices, shares, classes))

    def by_index(self) -> tuple[Tensor, Tensor]:
        """Return probabilities and classes, (N, top) each on the CPU, in the order of the split's files."""
        indices, shares, classes = (torch.cat(kept).cpu() for kept in zip(*self._kept, strict=True))
        order = indices.argsort()
        return shares[order], classes[order]


def _predict(trained: Trained, files: tuple[Path, ...], top: int) -> list[tuple[tuple[str, float], ...]]:
    best = _Best(min(top, len(trained.classes)))
    # The targets are needed and not looked at.
    trained.look_at(Split(files, (0,) * len(files)), best, what="predicting")
    shares, classes = best.by_index()
    return [
        tuple((trained.classes[index], share) for index, share in zip(*row, strict=True))
        for row in zip(classes.tolist(), shares.tolist(), strict=True)
    ]


def as_json(predictions: Sequence[Prediction]) -> str:
    """Write predictions as JSON, `[{"file": ..., "classes": [{"class": ..., "probability": ...}]}]`."""
    rows = []
    for prediction in predictions:
        classes = [{"class": name, "probability": share} for name, share in prediction.classes]
        row = {"file": str(prediction.file)}
        rows.append(row | ({"error": prediction.error} if prediction.error else {"classes": classes}))
    return json.dumps(rows, indent=2) + "\n"


def as_csv(predictions: Sequence[Prediction]) -> str:
    """Write predictions as CSV: file, error, class_1, probability_1, class_2, ..."""
    top = max(len(prediction.classes) for prediction in predictions)
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [f"{what}_{place}" for place in range(1, top + 1) for what in ("class", "probability")]
    writer.writerow(["file", "error", *columns])
    for prediction in predictions:
        values = [value for name, share in prediction.classes for value in (name, f"{share:.6g}")]
        writer.writerow([prediction.file, prediction.error, *values])
    return text.getvalue()


def _print(predictions: Sequence[Prediction], console: Console) -> None:
    top = max(len(prediction.classes) for prediction in predictions)
    table = Table("picture", *("class" if not place else "" for place in range(top)))
    for prediction in predictions:
        cells = [f"{name} {share:.1%}" for name, share in prediction.classes]
        if cells:  # Text, as the console takes [words] for its own markup
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


def _parser() -> Parser:
    description = "Say what the best model of a run takes pictures for."
    parser = Parser("trainer.predict", description, _EXAMPLES, arguments="RUN FILE_OR_FOLDER ... [key=value ...]")
    parser.add_argument("--top", type=_count, default=3, metavar="N", help="how many classes to name, default 3")
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
        predictions = predict(paths[0], paths[1:], top=options.top, tta=options.tta, overrides=plus)
        bad = [prediction for prediction in predictions if prediction.error]
        for flag, file, text in (("--csv", options.csv, as_csv), ("--json", options.json, as_json)):
            if file:
                _write(text(predictions), file, flag)
        if not options.csv and not options.json:
            _print(predictions, Console())
        elif STDOUT not in (options.csv, options.json):
            sys.stdout.write(f"{len(predictions) - len(bad)} pictures; {options.csv or options.json}\n")
        for prediction in bad:
            sys.stderr.write(f"{prediction.file} {prediction.error}\n")
        if bad:
            sys.stderr.write(f"error: {len(bad)} of {len(predictions)} pictures cannot be used.\n")
    return FAILED if bad else 0


if __name__ == "__main__":
    sys.exit(main())
