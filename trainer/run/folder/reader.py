"""The only reader of run folders.

Reading needs no images and no model. Folders may come from strangers, so reading never runs or imports what they hold,
and never follows links.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from augment.support.errors import UserError, first_line
from augment.support.files import near_file
from augment.support.nested import section_of
from augment.support.untrusted_files import (
    MAX_VALUES,
    damage_errors,
    explained_damage,
    is_result,
    read_as,
    read_bytes,
    read_object,
    regular,
)
from augment.support.yaml_files import read_list
from trainer.callbacks.recorder import METRICS_FILE, STEPS_FILE
from trainer.loop.settings import MAX_EPOCHS
from trainer.run.config.schema import CONFIG_FILE, load_config, varied_name
from trainer.run.folder.facts import ENVIRONMENT_FILE, FACTS_FILE, Facts
from trainer.run.folder.locks import status_of
from trainer.run.folder.summary import OVERRIDES_FILE, SUMMARY_FILE, Summary
from trainer.tasks.metric import MetricsRow
from trainer.tasks.registry import learn_metrics, task_of

T = TypeVar("T")
JOB_FILE = "job.json"
_MAX_JOB = 2**16  # maximum bytes of a job file. Tables of a sweep show the job's overrides
STRESS_FILE, STRESS = "stress.json", "stress"  # the result of a stress test, and the key of its mean score
TEST_NAME = "test_scores"  # base name of what `python -m trainer evaluate RUN --split test` writes

# A folder with any of these files belongs to a run. Other programs also write files called config.yaml.
_MARKS = (Path(JOB_FILE), Path(SUMMARY_FILE), Path(METRICS_FILE), OVERRIDES_FILE)


class RunFolder:
    """A run or a job of a sweep, read from its folder. Each property reads its file at the first access.

    Properties of missing files are empty. Damaged files, links, and files larger than a run writes count as missing,
    and get a note.

    Attributes:
        notes: why a file could not be read, by file name.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: dict[str, str] = {}

    def attempt(self, name: Path | str, read: Callable[[Path], T], otherwise: T) -> T:
        """Return what `read` returns for a file, or `otherwise` if it is missing. After an error, also add a note."""
        file = self.folder / name
        try:
            with explained_damage(regular(file, self.folder)):
                return read(file)
        except FileNotFoundError:
            return otherwise
        except (OSError, UserError) as error:
            self.notes[str(name)] = first_line(error)
            return otherwise

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The configuration as plain values, with interpolations as text."""
        return self.attempt(CONFIG_FILE, lambda file: load_config(file.parent), {})

    @cached_property
    def facts(self) -> Facts:
        """The contents of run.json."""
        return self.attempt(FACTS_FILE, partial(read_as, Facts), Facts())

    @cached_property
    def summary(self) -> Summary:
        """The contents of summary.json. Its status is empty if the file is missing or damaged."""
        read = partial(read_as, Summary, folder=self.folder)
        return self.attempt(SUMMARY_FILE, read, Summary("", self.folder))

    @cached_property
    def rows(self) -> list[MetricsRow]:
        """The numbers in the rows of metrics.jsonl."""
        return self.attempt(METRICS_FILE, _read_rows, [])

    @cached_property
    def steps(self) -> list[MetricsRow]:
        """The numbers in the rows of steps.jsonl."""
        return self.attempt(STEPS_FILE, _read_rows, [])

    def versions(self, digits: int | None = None) -> dict[str, str]:
        """Return the contents of environment.json as strings: git revision (its first `digits`), versions and GPUs."""
        return self.attempt(ENVIRONMENT_FILE, lambda file: _versions(read_object(file), digits), {})

    @cached_property
    def job(self) -> Mapping[str, Any] | None:
        """The job of a sweep, see `load_job`, or None for a single run."""
        return self.attempt(JOB_FILE, load_job, None)

    @cached_property
    def overrides(self) -> tuple[str, ...]:
        """The overrides of the run, without leading plus signs."""
        if self.job:
            given: Iterable[object] = self.job["overrides"]
        else:
            given = self.attempt(OVERRIDES_FILE, lambda file: read_list(file, self.folder), list[object]())
        return tuple(override.lstrip("+") for override in map(str, given))

    @cached_property
    def name(self) -> str:
        """The run's configured name. Default: the overrides that its sweep varies, or the name of its folder."""
        name = self.summary.name or section_of(self.config, "run").get("name")
        name = name or (varied_name(self.job["varied"]) if self.job else "")
        return str(name or self.folder.name or self.folder.resolve().name)

    @cached_property
    def status(self) -> str:
        """The run's status: planned, running, finished, failed, interrupted, killed or pruned."""
        return status_of(self.folder, self.summary)

    @cached_property
    def score(self) -> str:
        """The key of the score in the rows, such as val_accuracy. The main score of the task is preferred."""
        measured = [row for row in (*self.rows, self.summary.last) if row]
        own = task_of(measured).monitor
        # Plugins are not imported here, so the rows of a plugin's task may lack the score of the assumed task.
        keys = (own, self.summary.monitor, "val_loss")
        return next((key for key in keys if any(key in row for row in measured)), own)

    @cached_property
    def test_scores(self) -> MetricsRow:
        """The numbers in test_scores.json, or an empty mapping. Scores of an earlier best epoch do not count."""
        found = self.attempt(f"{TEST_NAME}.json", partial(read_object, folder=self.folder), dict[str, Any]())
        numbers = {key: value for key, value in found.items() if isinstance(value, float | int) and abs(value) < 2**53}
        return numbers if numbers.get("epoch") == self.summary.best.get("epoch") else {}

    def scored_by(self, score: str) -> RunFolder:
        """Return a copy of the run with a different score."""
        run = copy(self)
        run.score = score
        return run

    @property
    def last(self) -> MetricsRow:
        """The row of the last epoch, or an empty one. A stress test adds its mean score."""
        row = self.summary.last or dict(self.rows[-1] if self.rows else {})
        return row | ({STRESS: self.stress["mean"]} if self.stress else {})

    @cached_property
    def stress(self) -> Mapping[str, Any]:
        """The mean score of a stress test and a description of the test, or an empty mapping."""
        return self.attempt(STRESS_FILE, _read_stress, {})

    @property
    def sweep(self) -> Path | None:
        """The folder of the run's sweep, or None for a single run."""
        return None if self.job is None else self.folder.parent

    @property
    def trial(self) -> bool:
        return self.job is not None and self.job["trial"] is not None

    @cached_property
    def candidate(self) -> bool:
        """Whether a search chose a configuration by this run's score. Such scores are too optimistic to be compared."""
        return self.trial or bool(self.job and self.job["finalist"])

    @property
    def started(self) -> str:
        """The local time at which the configuration was written, or an empty string before the start."""
        file = self.folder / CONFIG_FILE
        try:
            return datetime.fromtimestamp(file.lstat().st_mtime).strftime("%Y-%m-%d %H:%M")
        except (OSError, ValueError, OverflowError):
            return ""


def find_runs(paths: Iterable[Path]) -> list[RunFolder]:
    """Find all runs in and below folders, including planned jobs of sweeps.

    The paths may be symbolic links, but links inside them are not followed.

    Returns:
        Each run once, in the order of the paths. Runs below a path are sorted by folder. The jobs of a sweep keep
        their order.

    Raises:
        UserError: a path is not a folder.
    """
    runs: dict[Path, RunFolder] = {}
    for path in paths:
        if not path.is_dir():
            what, near = ("a file", "") if path.is_file() else ("no such folder", near_file(path, folder=True))
            raise UserError(f"{path}: {what}. Pass the folder of a run or a sweep, or a folder above them.{near}")
        for run in sorted(map(RunFolder, _folders(path)), key=_sort_key):
            runs.setdefault(run.folder.resolve(), run)
            learn_metrics(run.summary.metrics)
    return list(runs.values())


def load_job(file: Path) -> dict[str, Any]:
    """Read the file of a job: its overrides, its order in the sweep, and its role in a search.

    Raises:
        UserError: the file is damaged, or a link.
        OSError: the file is missing.
    """
    found = read_object(file, file.parent.parent, _MAX_JOB)
    with explained_damage(file):
        return {
            "order": int(found["order"]),
            "overrides": tuple(map(str, found["overrides"])),
            "varied": tuple(map(str, found.get("varied", ()))),
            "trial": None if found.get("trial") is None else int(found["trial"]),
            "finalist": bool(found.get("finalist")),
        }


def _versions(found: Mapping[str, Any], digits: int | None) -> dict[str, str]:
    git, gpus = found.get("git") or {}, found.get("gpus")
    changed = ", with uncommitted changes" if git.get("modified") else ""
    facts = {
        "git revision": f"{str(git['revision'])[:digits]}{changed}" if git else "",
        "Python": found.get("python"),
        **(found.get("packages") or {}),
        "GPU": None if gpus is None else ", ".join(gpus) or "none",
    }
    return {str(name): str(value) for name, value in facts.items() if value}


def _folders(path: Path) -> Iterator[Path]:
    """Yield the folders of runs in and below a folder. The folders inside a run are not searched."""
    for folder, names, _ in os.walk(path):
        if any(os.path.lexists(Path(folder) / mark) for mark in _MARKS):
            yield Path(folder)
            names.clear()
        names[:] = [name for name in names if not name.startswith(".")]


def _sort_key(run: RunFolder) -> tuple[Path, int, str]:
    return run.sweep or run.folder, run.job["order"] if run.job else 0, run.folder.name


def _read_stress(file: Path) -> dict[str, Any]:
    found = read_object(file)
    learn_metrics({STRESS: found["metric"]})
    return {"mean": float(found["mean"]), "tested": str(found["tested"])}


def _read_rows(file: Path) -> list[MetricsRow]:
    """Read the numbers of each row, with NaN for null. An incomplete last row is ignored.

    Raises:
        UserError: another line is not a row.
        OSError: the file is missing.
    """
    rows = []
    content = read_bytes(file)
    # Each number in a row comes with a colon, and with a comma or a brace.
    if sum(map(content.count, (b",", b"[", b"{", b":"))) > 2 * MAX_VALUES or content.count(b"\n") > MAX_EPOCHS:
        limits = f"{MAX_EPOCHS:,} lines and {MAX_VALUES:,} values"
        raise UserError(f"{file}: the file is too large. The limits are {limits}.")
    lines = content.split(b"\n")  # as bytes, because a power failure may leave any bytes at the end
    for number, line in enumerate(lines, start=1):
        try:
            if line.strip(b"\0"):
                row = {key: math.nan if value is None else value for key, value in json.loads(line).items()}
                rows.append({key: v for key, v in row.items() if isinstance(v, float | int) and is_result(v)})
        except damage_errors() as error:
            if any(rest.strip(b"\0") for rest in lines[number:]):
                raise UserError(f"{file}: line {number} is not a row of metrics ({first_line(error)}).") from None
    return rows
