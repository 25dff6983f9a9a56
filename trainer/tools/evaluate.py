"""`python -m trainer evaluate RUN`: score a run's best model on its validation or test data, or on other images."""

import math
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import zip_longest
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from augment.cli.parser import Parser, one_of, readable_errors, table_console, writing
from augment.data.check import check_files, leave_out
from augment.data.dataset import NO_VAL, Dataset, Split, same_outputs
from augment.data.formats.folder import scan_split
from augment.data.rasters import in_format
from augment.data.sources import Source, load_dataset
from augment.data.sources.loading import describe_foreign, log_notices
from augment.data.sources.registry import ListedSource
from augment.data.targets.boxes import BOXES
from augment.data.targets.classification import CLASSES
from augment.support.errors import UserError
from augment.support.files import json_line, write_json
from augment.support.secrets import masked
from augment.support.untrusted_files import append
from trainer.callbacks.recorder import Recorder
from trainer.loop.settings import TTA
from trainer.run.best_model import LoadedModel, load_best_model
from trainer.run.config.schema import check_same, load_config
from trainer.run.folder.reader import TEST_NAME, RunFolder
from trainer.run.folder.run_names import RunParser
from trainer.tasks.display import Evaluation

_EXAMPLES = """\
  RUN                              on the run's own validation data
  RUN --split test                 on the run's own test data
  RUN DIR                          on DIR/<class>/* or DIR/val/<class>/*, or in the layout of the training data
  RUN test.csv                     on a file in the format of the run's training data
  RUN data=folder data.root=DIR    on another source's validation data
  RUN --tta flip                   average over each image and its mirror image
  RUN DIR fit.device=cpu fit.batch_size=256

RUN is the folder of a run, or last, best, SWEEP:last or SWEEP:best. The scores are written to evaluation.json or
evaluation-<name of DIR>.json in that folder, and test scores to test_scores.json. Each evaluation also adds a line to
evaluations.jsonl.

The table of a detector or a multi-label model contains the threshold with the best F1 score on the evaluated images.
Scores that begin with run_ use the thresholds that the run chose on its validation data, as predict does."""


def evaluate(
    run: Path,
    folder: Path | None = None,
    overrides: Sequence[str] = (),
    *,
    split: str = "val",
    tta: str | None = None,
    trust: bool = False,
) -> Evaluation:
    """Score the best model of a run. Keys of test scores begin with `test_`.

    Args:
        run: folder of the run.
        folder: folder or file, see `evaluated_split`. Default: a split of the run's own data.
        overrides: `key=value` overrides of the run's configuration.
        split: the split of the run's own data: val or test.
        tta: test-time augmentation, a name in `trainer.loop.settings.TTA`. Default: the run's.
        trust: whether the run may name code to import, see `augment.cli.trust`.

    Raises:
        UserError: the folder is not a run or has no checkpoint, or the images cannot be used.
    """
    trained = load_best_model(run, overrides, tta=tta, trust=trust, data=folder is None)
    recorder = Recorder(everything=True)
    trained.run_over(evaluated_split(trained, folder, split), recorder, description="evaluating")
    scores: Evaluation = trained.task.evaluate(recorder.val, recorder.samples, trained.classes)
    if trained.thresholds:
        scores = trained.task.at_thresholds(scores, recorder.samples, trained.classes, trained.thresholds)
    if split == "test":
        scores = replace(
            scores,
            values=_with_test_keys(scores.values),
            others=_with_test_keys(scores.others),
            sentence=re.sub("^val_", "test_", scores.sentence),
        )
    return replace(scores, tta=trained.config.fit.tta)


def _with_test_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    return {re.sub("^val_", "test_", key): value for key, value in values.items()}


def evaluated_split(trained: LoadedModel, folder: Path | None, split: str = "val") -> Split:
    """Return the images of a folder or a file, or a split of the run's own data.

    Args:
        trained: the model.
        folder: for classification, a folder that `scan_split` reads. Otherwise, data in the format of the run's source,
            see `augment.data.sources.Source.of_folder`.
        split: the split of the run's own data: val or test.

    Raises:
        UserError: no images, images that cannot be decoded, or targets that do not fit the model.
    """
    task, classes, source = trained.task, trained.classes, trained.config.data
    has_folders = folder is not None and folder.is_dir() and any(path.is_dir() for path in folder.iterdir())
    if folder is not None and task.kind is CLASSES and (has_folders or not isinstance(source, ListedSource)):
        listed = in_format(scan_split(folder, classes), trained.config.aug.pixels)
        log_notices([describe_foreign(Dataset(classes, listed, NO_VAL))])
        return leave_out(listed, "val", check_files(listed.files), skip_bad=False)
    if folder is not None:
        dataset = _load_fitting(source.of_folder(folder), trained)
    elif split == "test":
        if source.test_fraction is not None:  # with other settings, test images may include training images
            check_same(source, load_config(trained.run), "data", ("test_fraction", "split_seed", "group"), "the run")
        dataset = _load_fitting(source.with_test(), trained)
    else:
        dataset = load_dataset(source)
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
    return dataset.val if folder is None else dataset.train


def _load_fitting(source: Source, trained: LoadedModel) -> Dataset:
    """Load a dataset with the classes of the model, even if its images have only some of them."""
    if getattr(source, "task", "") is None and not getattr(source, "multilabel", False):
        source = replace(source, task=trained.task.kind.task)  # type: ignore[call-arg]  # a field of subclasses
    load = partial(load_dataset, needs_val=source.split_names[1] == "test")
    dataset = load(source)
    if getattr(source, "classes", "") is not None or same_outputs(dataset.classes, names := trained.classes):
        return dataset
    with NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write("\n".join(names[1:] if dataset.kind.task == BOXES.task else names))
        file.flush()
        return load(replace(source, classes=file.name))  # type: ignore[call-arg]


def _print_scores(scores: Evaluation, console: Console) -> None:
    """Print a table of the units, a table of other scores, and the main score."""
    if scores.table.rows:
        head = [name.replace("_", " ") for name in scores.table.head]  # a narrow terminal breaks lines at spaces
        padding = (0, 1) if len(head) < 8 else 0  # a table with many columns must fit a terminal
        table = Table(*head, caption=scores.table.title or None, padding=padding)
        for row in scores.table.rows:
            table.add_row(*map(Text, row))
        console.print(table)
    others = Table("metric", "score")
    for key, value in scores.others.items():
        if not math.isnan(value):
            others.add_row(key, f"{value:.4f}")
    if others.rows:
        console.print(others)
    views = "" if scores.tta == "none" else f", tta {scores.tta}"
    console.print(f"{scores.sentence}{views}", highlight=False, soft_wrap=True)


def _write_scores(scores: Evaluation, run: Path, folder: Path | None, overrides: Sequence[str], split: str) -> str:
    """Write the scores and the figure into the folder of a run. Return the paths of both files as text."""
    name = "evaluation"
    first: dict[str, Any] = {"data": folder and str(folder.resolve())}
    if split == "test":
        name, first = TEST_NAME, {"epoch": RunFolder(run).summary.best.get("epoch")}
    elif folder is not None:
        name = f"evaluation-{folder.resolve().name.removesuffix('.json')}"
    values: dict[str, Any] = {
        **first,
        "overrides": list(map(masked, overrides)),
        "images": scores.images,
        "tta": scores.tta,
        **scores.values,
    }
    with writing(f"{run / name}.json"):
        rates = {"class_rates": scores.class_rates} if scores.class_rates else {}
        write_json(run / f"{name}.json", values | {"per_class": scores.per_class} | rates)
        append(run / "evaluations.jsonl", json_line({"time": f"{datetime.now():%Y-%m-%d %H:%M:%S}", **values}))
        if scores.figure is not None:
            from trainer.figures.batches import plot_outputs

            plot_outputs(scores.figure, run / f"{name}.png")
    return f"{run / name}.json" if scores.figure is None else f"{run / name}.json, .png"


def run_and_images(parser: Parser, given: Sequence[str]) -> tuple[Namespace, Path, Path | None, list[str]]:
    """Parse `RUN [DIR] [key=value ...]` into options, the run folder, the image folder if given, and overrides."""
    options, (run, *images), overrides = parser.split_paths(given)
    return options, run, images[0] if images else None, [override.lstrip("+") for override in overrides]


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code."""
    description = "Score the best model of a run on its validation data, its test data or on other images."
    parser = RunParser("trainer evaluate", description, _EXAMPLES, arguments="RUN [DIR] [key=value ...]")
    parser.add_argument("--tta", type=one_of(*TTA), metavar="|".join(TTA),
                        help="views of each image to average (default: the run's setting)")  # fmt: skip
    parser.add_argument("--split", type=one_of("val", "test"), default="val", metavar="val|test",
                        help="split of the run's own data (default: val)")  # fmt: skip
    parser.add_trust_flag()
    with readable_errors():
        options, run, folder, overrides = run_and_images(parser, arguments)
        if options.split == "test" and folder:
            raise UserError(f"--split test has no effect on {folder}. Remove one of them.")
        scores = evaluate(run, folder, overrides, split=options.split, tta=options.tta, trust=options.trust)
        _print_scores(scores, console := table_console())
        files = _write_scores(scores, run, folder, overrides, options.split)
        console.print(files, highlight=False, soft_wrap=True)
    return 0
