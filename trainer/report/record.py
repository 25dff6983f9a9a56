"""The contents of a run folder, read once; what is missing or unreadable stays empty, with a note."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from omegaconf.errors import OmegaConfBaseException

from augment.cli.trust import UntrustedError, with_overrides
from augment.data.dataset import Dataset
from augment.data.sources import load_dataset
from augment.support.errors import UserError, first_line
from augment.support.reading import read_object, read_text
from augment.support.yaml_files import read_list
from trainer.callbacks.recorder import METRICS_FILE, STEPS_FILE, read_rows
from trainer.loop.checkpoint import BEST, BestModel, load
from trainer.models.registry import count_parameters
from trainer.run.config import CONFIG_FILE, PLAN_FILE, Config, left_out_of, load_config, parse_config
from trainer.run.environment import ENVIRONMENT_FILE
from trainer.run.folder import running_status, user_of
from trainer.run.labels import labels_in
from trainer.run.overrides import OVERRIDES_FILE
from trainer.run.summary import RUNNING, SUMMARY_FILE, Summary
from trainer.tasks.display import MetricsRow
from trainer.tasks.meter import Samples
from trainer.tasks.registry import DEFAULT, best_row, task_named, task_of
from trainer.tasks.task import Task

REPORT_FILE = "report.html"

MISTAKES = 24  # wrong images that are shown by default

# Errors from reading a broken file, or one of another version of this program.
_UNREADABLE = (
    *(UserError, OSError, OmegaConfBaseException),
    *(AttributeError, LookupError, RuntimeError, TypeError, ValueError),
)

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass
class Record:
    """A run as its folder holds it.

    Attributes:
        folder: folder of the run.
        ending: how the run ended; the status of one in progress is "running", that of one whose process is gone
            "killed", and that of one without a summary "not ended"; their seconds are NaN.
        rows: the metrics of each epoch.
        best: the best epoch's row; empty if there is none.
        classes: names of classes, labels or numbers.
        samples: the best epoch's predictions for each validation image; None if there are none.
        task: the task.
        steps: running values within epochs, each with "seconds", "step" and more.
        config: the configuration, if it can still be parsed.
        dataset: the images, if they are still there.
        parameters: number of the model's parameters.
        environment: versions and devices.
        overrides: overrides of the command line.
        texts: config.yaml and plan.txt by name.
        notes: what could not be read, by file or section, and why.
        warnings: warnings from loading the images.
        left: estimated seconds until the end of a run in progress; None: unknown.
    """

    folder: Path
    ending: Summary
    rows: list[MetricsRow] = field(default_factory=list)
    best: MetricsRow = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    samples: Samples | None = None
    task: Task[Any] = field(default_factory=lambda: task_named(DEFAULT))
    steps: list[MetricsRow] = field(default_factory=list)
    config: Config | None = None
    dataset: Dataset | None = None
    parameters: int | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    left: float | None = None

    @property
    def epochs(self) -> int | None:
        """Epochs that were configured."""
        return self.config.fit.epochs if self.config else None

    @property
    def gpu(self) -> str:
        """The GPU that the model was trained on; empty: the CPU, or unknown."""
        device = "auto" if self.config is None else self.config.fit.device
        gpus, number = self.environment.get("gpus") or [], int(device.partition(":")[2] or 0)
        return str(gpus[number]) if device != "cpu" and number < len(gpus) else ""

    @property
    def batches_before(self) -> NDArray[np.int64] | None:
        """Training batches before each epoch and, last, of the whole fit: (epochs + 1,); None if unknown."""
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

    def attempt(self, name: str, read: Callable[[], T], otherwise: T) -> T:
        """Return what a function reads; if that fails, note why, and return something else."""
        try:
            return read()
        except _UNREADABLE as error:
            self.notes[name] = first_line(error)
            if isinstance(error, UntrustedError):
                log.warning("%s: %s", name, error)
            return otherwise

    def add_best(self, read: Callable[[], BestModel | None]) -> None:
        """Add what the best epoch achieved, if a function can read it."""
        self.attempt(BEST, lambda: self._take(read()), None)

    def _take(self, best: BestModel | None) -> None:
        if best is None:
            return
        self.best, self.classes, self.task = best.row, best.classes, task_named(best.task)
        if best.samples is not None and len(best.samples["index"]):
            self.samples = self.task.samples(**best.samples)


def read_record(folder: Path, overrides: Sequence[str] = (), *, trust: bool = False, model: bool = True) -> Record:
    """Read the folder of a run.

    Args:
        folder: folder of the run.
        overrides: `key=value` that replace values of the run's configuration.
        trust: whether the folder may name code to import, see `augment.cli.trust`.
        model: whether to read best.pt, and to build the model in order to count its parameters.
    """
    files = [file for file in (folder / CONFIG_FILE, folder / PLAN_FILE) if file.is_file()]
    record = Record(folder, _ending(folder))
    attempt = record.attempt

    def configured(*, data: bool) -> Config:
        plain = with_overrides(load_config(folder), overrides, folder / CONFIG_FILE, trust=trust, data=data)
        return parse_config(plain)

    def dataset() -> Dataset:
        config = configured(data=True)
        return config.limited(load_dataset(config.data, left_out_of(folder)))

    # A link to a file elsewhere would show it to every reader of the page.
    texts = record.texts = {file.name: attempt(file.name, partial(_text, file), "") for file in files}
    record.rows = attempt(METRICS_FILE, lambda: _rows(folder / METRICS_FILE, "epoch"), [])
    record.steps = attempt(STEPS_FILE, lambda: _rows(folder / STEPS_FILE, "step"), [])
    record.environment = attempt(ENVIRONMENT_FILE, lambda: _environment(folder / ENVIRONMENT_FILE), {})
    record.overrides = attempt(OVERRIDES_FILE.name, lambda: _overrides(folder), ())
    if texts.get(CONFIG_FILE):
        record.config = attempt(CONFIG_FILE, lambda: configured(data=False), None)
    if record.config is not None:
        record.dataset = attempt("data", dataset, None)
        if record.dataset is not None:
            record.warnings = record.dataset.notices
    if model and (folder / BEST).is_file():
        record.add_best(lambda: load(folder / BEST, BestModel))
    elif record.dataset is not None:
        record.task = task_named(record.dataset.task)
    else:
        record.task = task_of(record.rows)
    if not record.classes and record.dataset is not None:
        record.classes = record.dataset.classes
    if not record.best:
        record.best = best_row(record.rows, record.task.monitor)
    if model and record.config is not None and record.classes:
        config = record.config
        import torch

        with torch.device("meta"):
            network = attempt(
                "model", lambda: config.model.untrained().build(len(record.classes), config.aug.size), None
            )
        record.parameters = None if network is None else count_parameters(network)
    return record


def _ending(folder: Path) -> Summary:
    try:
        found = _json(folder / SUMMARY_FILE)
        status, error, stopped = (str(found.get(name, "")) for name in ("status", "error", "stopped"))
        seconds = found.get("seconds")
        known = float(seconds) if isinstance(seconds, int | float) else math.nan
        if status in ("", RUNNING):
            without = RUNNING if user_of(folder) else "not ended"
            status, known = running_status(folder) if status else without, math.nan
        name, tags = labels_in(found)
        return Summary(status, folder, 0, {}, {}, known, error, stopped, name=name, tags=tags)
    except (UserError, OSError):
        return Summary("not ended", folder, 0, {}, {}, math.nan)


def _text(file: Path) -> str:
    return read_text(file, most=2**20)


def _rows(file: Path, counter: str) -> list[MetricsRow]:
    """Read rows of numbers, each with a counter."""
    rows = read_rows(file)
    for row in rows:
        if not all(isinstance(value, int | float) for value in row.values()) or not math.isfinite(row[counter]):
            raise ValueError(f"{file.name}: no rows of numbers with {counter}")
    return rows


def _environment(file: Path) -> dict[str, Any]:
    """Read what is known of an environment, as texts."""
    found = _json(file)
    git, packages, gpus = found.get("git") or {}, found.get("packages") or {}, found.get("gpus") or []
    return {
        "git": {"revision": str(git.get("revision")), "modified": bool(git.get("modified"))} if git else None,
        "python": str(found.get("python", "")),
        "packages": {str(name): str(version) for name, version in packages.items() if version is not None},
        "gpus": list(map(str, gpus)),
    }


def _overrides(folder: Path) -> tuple[str, ...]:
    file = folder / OVERRIDES_FILE
    # `augment.cli.overrides.normalize` adds the plus signs, and will again.
    return tuple(str(o).replace("++", "", 1) for o in read_list(file, folder)) if file.is_file() else ()


def _json(file: Path) -> dict[str, Any]:
    return read_object(file) if file.is_file() else {}
