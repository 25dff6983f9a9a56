"""`python -m trainer evaluate RUN`: score a run's best model on its validation data or on other images."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from augment.cli.parser import Parser, one_of, readable_errors, table_console, writing
from augment.data.check import check_files, leave_out
from augment.data.dataset import NO_VAL, Dataset, Split, same_outputs
from augment.data.formats.folder import scan_split
from augment.data.sources import load_dataset
from augment.data.sources.loading import describe_foreign, log_notices
from augment.data.targets.classification import CLASSES
from augment.support.errors import UserError
from augment.support.files import json_line, write_json
from augment.support.secrets import masked
from augment.support.untrusted_files import append
from trainer.callbacks.recorder import Recorder
from trainer.loop.settings import TTA
from trainer.run.best_model import Trained, load_trained
from trainer.run.hub import local_run
from trainer.tasks.display import Evaluation

_EXAMPLES = """\
  RUN                              on the run's own validation data
  RUN DIR                          on DIR/<class>/* or DIR/val/<class>/*
  RUN data=folder data.root=DIR    on another source's validation data
  RUN --tta flip                   averages over each image and its mirror image
  RUN DIR fit.device=cpu fit.batch_size=256

RUN is the folder of a run. The scores are written to evaluation.json or evaluation-<name of DIR>.json in that folder.
Each evaluation also adds a line to evaluations.jsonl."""


def evaluate(
    run: Path,
    folder: Path | None = None,
    overrides: Sequence[str] = (),
    *,
    tta: str | None = None,
    trust: bool = False,
) -> Evaluation:
    """Score the best model of a run.

    Args:
        run: folder of the run.
        folder: folder of images, see `scan_split`. Default: the run's validation data.
        overrides: `key=value` overrides of the run's configuration.
        tta: test-time augmentation, a name in `trainer.loop.settings.TTA`. Default: the run's.
        trust: whether the run may name code to import, see `augment.cli.trust`.

    Raises:
        UserError: the folder is not a run, has no checkpoint, or images cannot be used.
    """
    trained = load_trained(run, overrides, tta=tta, trust=trust, data=folder is None)
    recorder = Recorder(everything=True)
    trained.run_over(evaluated_split(trained, folder), recorder, description="evaluating")
    scores: Evaluation = trained.task.evaluate(recorder.val, recorder.samples, trained.classes)
    return replace(scores, tta=trained.config.fit.tta)


def evaluated_split(trained: Trained, folder: Path | None) -> Split:
    """Return the images of a folder, see `scan_split`, or the run's validation data.

    Raises:
        UserError: no images, images that cannot be decoded, or targets that do not fit the model.
    """
    task, classes = trained.task, trained.classes
    if folder is not None:
        if task.kind is not CLASSES:
            raise UserError(
                f"{folder}: a folder defines a class for each image, but this model predicts {task.units}. Set other "
                "data with overrides, such as data.root=DIR or data.val=FILE."
            )
        listed = scan_split(folder, classes)
        log_notices([describe_foreign(Dataset(classes, listed, NO_VAL))])
        return leave_out(listed, "val", check_files(listed.files), skip_bad=False)
    dataset = load_dataset(trained.config.data)
    if not same_outputs(dataset.classes, classes):
        pairs = zip_longest(dataset.classes, classes, fillvalue="none")
        difference = next(f"{ours} instead of {theirs}" for ours, theirs in pairs if ours != theirs)
        raise UserError(
            f"data: the classes differ from the model's (first difference: {difference}). Use data with the "
            "same classes."
        )
    if dataset.task != task.name:
        raise UserError(
            f"data: the targets are for the task {dataset.task}, but the model's task is {task.name}. Use data for the "
            "task of the model."
        )
    return dataset.val


def _report(scores: Evaluation, run: Path, folder: Path | None, overrides: Sequence[str]) -> None:
    """Print the scores and write them to the folder of the run."""
    console = table_console()
    if scores.table.rows:
        table = Table(*scores.table.head, caption=scores.table.title or None)
        for row in scores.table.rows:
            table.add_row(*map(Text, row))
        console.print(table)
    views = "" if scores.tta == "none" else f", tta {scores.tta}"
    console.print(f"{scores.sentence}{views}", highlight=False, soft_wrap=True)
    name = "evaluation" if folder is None else f"evaluation-{folder.resolve().name}"
    values: dict[str, Any] = {
        "data": None if folder is None else str(folder.resolve()),
        "overrides": list(map(masked, overrides)),
        "images": scores.images,
        "tta": scores.tta,
        **scores.values,
    }
    with writing(f"{run / name}.json"):
        write_json(run / f"{name}.json", values | {"per_class": scores.per_class})
        append(run / "evaluations.jsonl", json_line({"time": f"{datetime.now():%Y-%m-%d %H:%M:%S}", **values}))
        if scores.figure is not None:
            from trainer.figures.batches import plot_outputs

            plot_outputs(scores.figure, run / f"{name}.png")
    files = ".json" if scores.figure is None else ".json, .png"
    console.print(f"{run / name}{files}", highlight=False, soft_wrap=True)


def run_and_images(parser: Parser, given: Sequence[str]) -> tuple[Namespace, Path, Path | None, list[str]]:
    """Parse `RUN [DIR] [key=value ...]` into options, the run folder, the image folder if given, and overrides.

    Raises:
        UserError: no folder, or more than two.
    """
    options, folders, overrides = parser.split_paths(given)
    if not 1 <= len(folders) <= 2:
        raise UserError(f"{len(folders)} folders are given. Name the folder of a run, and at most one with images.")
    return options, local_run(folders[0]), folders[1] if len(folders) == 2 else None, [o.lstrip("+") for o in overrides]


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code."""
    description = "Score the best model of a run on its validation data or on other images."
    parser = Parser("trainer evaluate", description, _EXAMPLES, arguments="RUN [DIR] [key=value ...]")
    parser.add_argument("--tta", type=one_of(*TTA), metavar="|".join(TTA),
                        help="views of each image to average (default: the run's)")  # fmt: skip
    parser.add_trust_flag()
    with readable_errors():
        options, run, folder, overrides = run_and_images(parser, arguments)
        scores = evaluate(run, folder, overrides, tta=options.tta, trust=options.trust)
        _report(scores, run, folder, overrides)
    return 0
