"""Read the folders of many runs, which may come from strangers: nothing in them is run, imported or followed."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
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
from trainer.run.labels import varied_name
from trainer.run.overrides import OVERRIDES_FILE
from trainer.run.summary import SUMMARY_FILE, Summary, load_summary
from trainer.sweeps.ledger import JOB_FILE, Job, read_job, status_of
from trainer.tasks.display import MetricsRow
from trainer.tasks.registry import learn_metrics, task_of

T = TypeVar("T")

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
        summary: what summary.json says; with an empty status if it is missing or damaged.
        environment: environment.json as plain values.
        score: key of the score in the rows, such as val_accuracy.
        job: the job of a sweep that it is; None: a single run.
        notes: what could not be read, by file.
    """

    folder: Path
    name: str
    status: str
    overrides: tuple[str, ...]
    config: Mapping[str, Any]
    rows: tuple[MetricsRow, ...]
    summary: Summary
    environment: Mapping[str, Any]
    score: str
    job: Job | None
    notes: Mapping[str, str]

    @property
    def last(self) -> MetricsRow:
        """The row of the last epoch; empty if there is none."""
        return self.summary.last or dict(self.rows[-1] if self.rows else {})

    @property
    def sweep(self) -> Path | None:
        """Folder of the sweep that it is a job of; None: a single run."""
        return None if self.job is None else self.folder.parent

    @property
    def trial(self) -> bool:
        """Whether it is a trial of a search."""
        return self.job is not None and self.job.trial is not None

    @property
    def chooses(self) -> bool:
        """Whether a search chose by its score, which is therefore too good to be compared."""
        return self.trial or (self.job is not None and self.job.finalist)

    @property
    def started(self) -> str:
        """When the configuration was written, in local time; empty if it has not begun."""
        file = self.folder / CONFIG_FILE
        try:
            return datetime.fromtimestamp(file.lstat().st_mtime).strftime("%Y-%m-%d %H:%M")
        except (OSError, ValueError, OverflowError):
            return ""


def find_runs(paths: Iterable[Path], read: Callable[[Path], Run] | None = None) -> list[Run]:
    """Read all runs in some folders, planned jobs included.

    Symbolic links are followed where they are given, not where they are found.

    Args:
        paths: folders of runs, of sweeps, or above such.
        read: reads the folder of a run; None: `read_run`.

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
        for run in sorted(map(read or read_run, _folders(path)), key=_place):
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
    job = attempt(JOB_FILE, read_job, None)
    summary = attempt(SUMMARY_FILE, load_summary, Summary("", folder, 0, {}, {}, 0.0))
    learn_metrics(summary.metrics)
    config = attempt(CONFIG_FILE, lambda file: load_config(file.parent), nothing)
    rows = attempt(METRICS_FILE, lambda file: [*map(_numbers, read_rows(file))], list[MetricsRow]())
    given = job.overrides if job else attempt(OVERRIDES_FILE, lambda file: read_list(file, folder), list[object]())
    name = summary.name or section_of(config, "run").get("name") or (varied_name(job.varied) if job else "")
    return Run(
        folder=folder,
        name=str(name or folder.name or folder.resolve().name),
        status=status_of(folder, summary),
        overrides=tuple(str(override).lstrip("+") for override in given),
        config=config,
        rows=tuple(rows),
        summary=summary,
        environment=attempt(ENVIRONMENT_FILE, read_object, nothing),
        score=_score([*rows, summary.last], summary.monitor),
        job=job,
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
    return run.sweep or run.folder, run.job.order if run.job else 0, run.folder.name


def _score(rows: Iterable[MetricsRow], monitor: str) -> str:
    """Return the key of the score: that of the task, if it was measured."""
    measured = [row for row in rows if row]
    own = task_of(measured).monitor
    # The task of a plugin, which is not imported here, may have none of the known keys.
    return next((key for key in (own, monitor, "val_loss") if any(key in row for row in measured)), own)


def _numbers(row: Mapping[str, Any]) -> MetricsRow:
    """Return the values of a row that are numbers, but for those that no float can hold."""
    known = {str(key): value for key, value in row.items() if isinstance(value, int | float)}
    return {key: value for key, value in known.items() if isinstance(value, float) or abs(value) < 2**53}
