"""Read the folders of many runs, which may come from strangers: nothing in them is run, imported or followed."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from augment.support.errors import UserError, first_line
from augment.support.files import near_file
from augment.support.nested import section_of
from augment.support.reading import contents, read_object, regular
from augment.support.yaml_files import read_list
from trainer.callbacks.recorder import METRICS_FILE, read_rows
from trainer.run.config import CONFIG_FILE, load_config
from trainer.run.environment import ENVIRONMENT_FILE
from trainer.run.folder import running_status, user_of
from trainer.run.labels import varied_name
from trainer.run.overrides import OVERRIDES_FILE
from trainer.run.summary import SUMMARY_FILE
from trainer.tasks.display import MetricsRow
from trainer.tasks.registry import learn_metrics, task_of

T = TypeVar("T")

JOB_FILE = "job.json"

PLANNED, RUNNING, FINISHED, FAILED = "planned", "running", "finished", "failed"
INTERRUPTED, PRUNED = "interrupted", "pruned"  # and `KILLED`

# A folder with any of these files is a run's. A config.yaml alone is not: other programs write files of that name.
_MARKS = (Path(JOB_FILE), Path(SUMMARY_FILE), Path(METRICS_FILE), OVERRIDES_FILE)


@dataclass(frozen=True)
class Run:
    """A run, or a job of a sweep, as its folder shows it.

    Attributes:
        folder: its folder, as it was given or found.
        name: what people call it: its name in summary.json, `run.name` of its configuration, what its sweep varies, or
            the name of its folder.
        status: planned, running, finished, failed, interrupted or killed; or pruned: ended by a search.
        overrides: what it was started with, without leading plus signs.
        config: its resolved configuration as plain values, interpolations as text; empty if it has none.
        rows: the rows of metrics.jsonl; only numbers.
        summary: summary.json as plain values.
        environment: environment.json as plain values.
        score: key of the score in the rows, such as val_accuracy.
        sweep: folder of the sweep that it is a job of; None: a single run.
        order: its position among the jobs of the sweep.
        trial: whether it is a trial of a search.
        chooses: whether a search chose by its score, which is therefore too good to be compared.
        notes: what could not be read, by file.
    """

    folder: Path
    name: str
    status: str
    overrides: tuple[str, ...]
    config: Mapping[str, Any]
    rows: tuple[MetricsRow, ...]
    summary: Mapping[str, Any]
    environment: Mapping[str, Any]
    score: str
    sweep: Path | None
    order: int
    trial: bool
    chooses: bool
    notes: Mapping[str, str]

    @property
    def last(self) -> MetricsRow:
        """The row of the last epoch; empty if there is none."""
        return _numbers(self.summary.get("last")) or dict(self.rows[-1] if self.rows else {})

    @property
    def best(self) -> MetricsRow:
        """The row of the best epoch, which was chosen by its score; empty if there is none."""
        return _numbers(self.summary.get("best"))

    @property
    def seconds(self) -> float:
        """Seconds that the last process worked on it; 0 if unknown."""
        return _numbers(self.summary).get("seconds", 0.0)

    @property
    def error(self) -> str:
        """The error of a failed run; empty if there was none."""
        return str(self.summary.get("error") or "")

    @property
    def stopped(self) -> str:
        """Why it was ended before its last epoch; empty if it was not."""
        return str(self.summary.get("stopped") or "")


def find_runs(paths: Iterable[Path]) -> list[Run]:
    """Read all runs in some folders, planned jobs included.

    Symbolic links are followed where they are given, not where they are found.

    Args:
        paths: folders of runs, of sweeps, or above such.

    Returns:
        Each run once, in the order of the paths; those of a path by folder, which for the default names is the order
        in which they began, and the jobs of a sweep in their order.

    Raises:
        UserError: a path is not a folder.
    """
    runs: dict[Path, Run] = {}
    for path in paths:
        if not path.is_dir():
            what, near = ("a file", "") if path.is_file() else ("no such folder", near_file(path, folder=True))
            raise UserError(f"{path}: {what}. Allowed: folders of runs or sweeps, or above them.{near}")
        below = [read_run(folder) for folder in _folders(path)]
        for run in sorted(below, key=_place):
            runs.setdefault(run.folder.resolve(), run)
    return list(runs.values())


def read_run(folder: Path) -> Run:
    """Read the folder of a run; what is missing or damaged stays empty, with a note."""
    notes: dict[str, str] = {}

    def attempt(name: Path | str, read: Callable[[Path], T], otherwise: T) -> T:
        file = folder / name
        try:
            with contents(regular(file, folder)):
                return read(file)
        except FileNotFoundError:
            return otherwise
        except (OSError, UserError) as error:
            notes[str(name)] = first_line(error)
            return otherwise

    nothing: dict[str, Any] = {}
    job = attempt(JOB_FILE, read_object, nothing)
    summary = attempt(SUMMARY_FILE, read_object, nothing)
    learn_metrics(summary.get("metrics"))
    config = attempt(CONFIG_FILE, lambda file: load_config(file.parent), nothing)
    rows = attempt(METRICS_FILE, lambda file: [*map(_numbers, read_rows(file))], list[MetricsRow]())
    given = job.get("overrides")
    if not isinstance(given, list):
        given = attempt(OVERRIDES_FILE, lambda file: read_list(file, folder), list[object]())
    order, varied, trial = job.get("order"), job.get("varied"), job.get("trial") is not None
    derived = varied_name([*map(str, varied)]) if isinstance(varied, list) else ""
    return Run(
        folder=folder,
        name=str(
            summary.get("name")
            or section_of(config, "run").get("name")
            or derived
            or folder.name
            or folder.resolve().name
        ),
        status=_status(folder, summary, began=bool(summary or rows or config or SUMMARY_FILE in notes)),
        overrides=tuple(str(override).lstrip("+") for override in given),
        config=config,
        rows=tuple(rows),
        summary=summary,
        environment=attempt(ENVIRONMENT_FILE, read_object, nothing),
        score=_score([*rows, _numbers(summary.get("last"))], summary),
        sweep=folder.parent if job else None,
        order=order if isinstance(order, int) else 0,
        trial=trial,
        chooses=trial or bool(job.get("finalist")),
        notes=notes,
    )


def _folders(path: Path) -> Iterator[Path]:
    """Yield the folders of runs from a folder on; runs are not searched for further ones, as trackers write there."""
    for folder, names, _ in os.walk(path):
        if any(os.path.lexists(Path(folder) / mark) for mark in _MARKS):
            yield Path(folder)
            names.clear()
        names[:] = [name for name in names if not name.startswith(".")]


def _place(run: Run) -> tuple[Path, int, str]:
    return run.sweep or run.folder, run.order, run.folder.name


def _status(folder: Path, summary: Mapping[str, Any], *, began: bool) -> str:
    status = summary.get("status")
    if status == FINISHED and str(summary.get("stopped")).startswith(PRUNED):
        return PRUNED
    if status in (FINISHED, FAILED, INTERRUPTED):
        return str(status)
    if status == RUNNING:
        return running_status(folder)
    if user_of(folder):
        return RUNNING
    return INTERRUPTED if began else PLANNED


def _score(rows: Iterable[MetricsRow], summary: Mapping[str, Any]) -> str:
    """Return the key of the score: that of the task, if it was measured."""
    measured = [row for row in rows if row]
    own = task_of(measured).monitor
    keys = {key for row in measured for key in row}
    # The task of a plugin, which is not imported here, may have none of the known keys.
    for key in (own, summary.get("monitor"), "val_loss"):
        if isinstance(key, str) and key in keys:
            return key
    return own


def _numbers(values: object) -> MetricsRow:
    """Return the values of a mapping that are numbers, null as NaN; those that no float can hold are left out."""
    if not isinstance(values, Mapping):
        return {}
    known = {str(key): math.nan if value is None else value for key, value in values.items()}
    return {
        key: value
        for key, value in known.items()
        if isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**53)
    }
