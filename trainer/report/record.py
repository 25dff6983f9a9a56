"""What the folder of a run tells, read once; whatever is missing or cannot be read is left empty, with a note."""

import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from augment.dataset import Dataset, Task
from augment.errors import UserError, first_line
from augment.sources import load_dataset, notes_of
from trainer.checkpoint import BEST, load
from trainer.config import Config, parse_config
from trainer.models import count_parameters
from trainer.outputs import LabelScore, Outputs, label_scores
from trainer.recorder import LOOKS_FILE, METRICS_FILE, read_metrics
from trainer.report import Ending
from trainer.run import CONFIG_FILE, ENVIRONMENT_FILE, PLAN_FILE
from trainer.summary import SUMMARY_FILE
from trainer.tasks import JUDGING, Judging, Row, best_row, task_of

# What reading a file that is broken, or one of another version of this program, may end in.
_UNREADABLE = (
    *(UserError, OSError, OmegaConfBaseException, YAMLError),
    *(AttributeError, LookupError, RuntimeError, TypeError, ValueError),
)

T = TypeVar("T")


@dataclass(frozen=True)
class Samples:
    """The best epoch's validation pictures, one by one; each array is (pictures,).

    Attributes:
        index: into the files of the val split.
        target: the true class.
        prediction: the class that was predicted.
        confidence: its probability.
    """

    index: NDArray[np.int64]
    target: NDArray[np.int64]
    prediction: NDArray[np.int64]
    confidence: NDArray[np.float64]


@dataclass
class Record:
    """A run as its folder tells.

    Attributes:
        folder: where the run lies.
        ending: how it ended.
        rows: a row an epoch.
        best: the best epoch's row; empty if there is none.
        confusion: the best epoch's, (classes, classes), rows are targets.
        classes: their names.
        samples: its pictures one by one, where each has one class.
        outputs: the same where they have labels or numbers.
        task: what the targets are.
        normed: training batches that the best epoch's batch norms have seen; None if it has none.
        steps: samples within epochs, each with "seconds", "step" and more.
        config: the configuration, if it can still be parsed.
        dataset: the pictures, if they are still there.
        parameters: of the model.
        environment: versions and devices.
        overrides: of the command line.
        texts: config.yaml and plan.txt as they are, by their names.
        notes: what could not be read, by file or section, and why.
        warnings: what was said when the pictures were loaded.
    """

    folder: Path
    ending: Ending
    rows: list[Row] = field(default_factory=list)
    best: Row = field(default_factory=dict)
    confusion: NDArray[np.int64] | None = None
    classes: tuple[str, ...] = ()
    samples: Samples | None = None
    outputs: Outputs | None = None
    task: Task = "classify"
    normed: int | None = None
    steps: list[Row] = field(default_factory=list)
    config: Config | None = None
    dataset: Dataset | None = None
    parameters: int | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def judging(self) -> Judging:
        """What the run is judged by."""
        return JUDGING[self.task]

    @cached_property
    def label_scores(self) -> list[LabelScore]:
        """How well each label is told, in their order; empty where pictures have none."""
        if self.outputs is None or self.task != "multilabel":
            return []
        return label_scores(self.outputs, self.classes)

    @property
    def epochs(self) -> int | None:
        """Epochs that were asked for."""
        return self.config.fit.epochs if self.config else None

    @property
    def batches_before(self) -> NDArray[np.int64] | None:
        """Training batches before each epoch and, last, of the whole fit: (epochs + 1,); None if nobody knows."""
        if self.config is None or self.dataset is None:
            return None
        fit, count = self.config.fit, len(self.dataset.train)
        stages = [(stage.epochs, stage.batch_size) for stage in fit.full_stages(self.config.aug.size)]
        batches = []
        for epochs, batch_size in stages or [(fit.epochs, fit.batch_size)]:
            full, rest = divmod(count, batch_size)
            length = full if fit.drop_last and full else full + bool(rest)
            batches += epochs * [length if fit.limit_batches is None else min(length, fit.limit_batches)]
        return np.cumsum([0, *batches])


def read_record(folder: Path, ending: Ending | None = None) -> Record:
    """Read the folder of a run.

    Args:
        folder: of the run.
        ending: how it ended; None: as summary.json has it.
    """
    texts = {name: _text(folder / name) for name in (CONFIG_FILE, PLAN_FILE)}
    record = Record(folder, ending or _ending(folder), texts=texts)

    def attempt(name: str, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except _UNREADABLE as error:
            record.notes[name] = first_line(error)
            return otherwise

    if (folder / METRICS_FILE).is_file():
        record.rows = attempt(METRICS_FILE, lambda: read_metrics(folder), [])
    record.steps = attempt(LOOKS_FILE, lambda: _json_lines(folder / LOOKS_FILE), [])
    record.environment = attempt(ENVIRONMENT_FILE, lambda: _json(folder / ENVIRONMENT_FILE), {})
    record.overrides = attempt("overrides.yaml", lambda: _overrides(folder), ())
    if texts[CONFIG_FILE]:
        record.config = attempt(CONFIG_FILE, lambda: _config(folder), None)
    if record.config is not None:
        source = record.config.data
        record.dataset = attempt("data", lambda: load_dataset(source), None)
        if record.dataset is not None:
            record.warnings = tuple(n.getMessage() for n in notes_of(source) if n.levelno >= logging.WARNING)
    if (folder / BEST).is_file():
        attempt(BEST, lambda: _take_best(record, load(folder / BEST)), None)
    elif record.dataset is not None:
        record.task = record.dataset.task
    else:
        record.task = task_of(record.rows)
    if not record.classes and record.dataset is not None:
        record.classes = record.dataset.classes
    if not record.best:
        record.best = best_row(record.rows, record.judging.monitor)
    if record.config is not None and record.classes:
        config = record.config
        record.parameters = attempt("model", lambda: _parameters(config, len(record.classes)), None)
    return record


def _take_best(record: Record, best: Mapping[str, Any]) -> None:
    record.best = dict(best.get("row", {}))
    record.classes = tuple(best.get("classes", ()))
    record.task = best.get("task", "classify")
    normed = [int(count) for name, count in best.get("model", {}).items() if name.endswith("num_batches_tracked")]
    record.normed = min(normed, default=None)
    confusion, samples = best.get("confusion"), best.get("samples")
    if confusion is not None and confusion.shape == (len(record.classes),) * 2 and int(confusion.sum()):
        record.confusion = confusion.numpy().astype(np.int64)
    if samples is not None and record.task != "classify":
        record.outputs = Outputs(**samples) if len(samples["index"]) else None
    elif samples is not None:
        index, target, prediction = (samples[key].numpy().astype(np.int64) for key in ("index", "target", "prediction"))
        record.samples = Samples(index, target, prediction, samples["confidence"].double().numpy())


def _ending(folder: Path) -> Ending:
    try:
        summary = _json(folder / SUMMARY_FILE)
        return Ending(summary["status"], summary["seconds"], summary.get("error", ""), summary.get("stopped", ""))
    except (OSError, ValueError, LookupError):
        return Ending("not ended", None)


def _config(folder: Path) -> Config:
    given = OmegaConf.to_container(OmegaConf.load(folder / CONFIG_FILE))
    if not isinstance(given, dict):
        raise UserError(f"{CONFIG_FILE}: not the configuration of a run.")
    return parse_config({str(key): value for key, value in given.items()})


def _parameters(config: Config, classes: int) -> int:
    with torch.device("meta"):
        return count_parameters(config.model.untrained().build(classes, config.aug.size))


def _overrides(folder: Path) -> tuple[str, ...]:
    file = folder / ".hydra" / "overrides.yaml"
    # The plus signs of `augment.compose.normalize` are put back by it.
    return tuple(str(o).replace("++", "", 1) for o in OmegaConf.load(file)) if file.is_file() else ()


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.is_file() else ""


def _json(file: Path) -> dict[str, Any]:
    values = json.loads(file.read_text()) if file.is_file() else {}
    if not isinstance(values, dict):
        raise ValueError(f"{file.name}: no JSON object")
    return values


def _json_lines(file: Path) -> list[Row]:
    lines = file.read_text().splitlines() if file.is_file() else []
    records = []
    for line in lines:
        try:
            values = json.loads(line)
        except json.JSONDecodeError:  # the last line of a run that was killed
            continue
        records.append({key: math.nan if value is None else value for key, value in values.items()})
    return records
