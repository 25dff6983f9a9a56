"""Names of runs on the command line: `last`, `best`, `SWEEP:last`, `SWEEP:best` and `hf://USER/NAME`."""

import math
import re
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mode

from augment.cli.parser import Parser
from augment.support.errors import UserError
from augment.support.files import shown
from augment.support.formatting import printable
from trainer.run.config.schema import CONFIG_FILE
from trainer.run.folder.reader import RunFolder, find_runs
from trainer.run.folder.summary import FINISHED
from trainer.run.hub import local_run
from trainer.tasks.registry import DEFAULT, smaller_is_better, task_named


class RunParser(Parser):
    """A parser whose first path names a run. If the usage contains `RUN ...`, all paths name runs."""

    def split_paths(self, arguments: Sequence[str]) -> tuple[Namespace, list[Path], list[str]]:
        """Return the values of the flags, the paths, and the overrides. See `named_run` for the names of runs."""
        options, paths, overrides = super().split_paths(arguments)
        count = len(paths) if re.search(r" RUN\w* \.\.\.", str(self.usage)) else 1
        return options, [*map(named_run, paths[:count]), *paths[count:]], overrides


def named_run(given: Path) -> Path:
    """Return the folder of a named run, and print it. A run on the hub is downloaded. Other paths do not change.

    `last` is the run in outputs that started last. `best` is the finished job of the newest sweep with the best score
    in its last epoch. `FOLDER:last` and `SWEEP:best` search only that folder. An existing folder takes precedence over
    a name.

    Raises:
        UserError: the run does not exist.
    """
    if str(given).startswith("hf:"):
        return local_run(given)
    where, colon, name = str(given).rpartition(":")
    if name not in ("last", "best") or given.exists():
        return given
    folder = Path(where) if colon else Path("outputs")
    runs = find_runs([folder]) if colon or folder.is_dir() else []
    runs = [run for run in runs if (run.folder / CONFIG_FILE).is_file()]
    if name == "best":  # only within one sweep, because scores of different data cannot be compared
        runs = [run for run in runs if run.sweep and (run.sweep == folder or not colon)]
    if not runs:
        raise UserError(
            f"{given}: no {'job of a sweep' if name == 'best' else 'run'} has started in {shown(folder)}. Pass the "
            f"folder of a run{', SWEEP:best or last' if name == 'best' else ''}."
        )
    found = max(runs, key=lambda run: (run.folder / CONFIG_FILE).stat().st_mtime_ns)
    if name == "best":
        jobs = [run for run in runs if run.sweep == found.sweep]
        key = score_of(jobs)
        found = min(jobs, key=lambda run: (run.status != FINISHED, *job_sort_key(key, run)))
        if found.status != FINISHED or value_of(found.last, key) is None:
            raise UserError(f"{given}: no run has finished with {key}. Pass the folder of a run, or last.")
    sys.stderr.write(printable(f"{given}: {shown(found.folder)}\n"))
    return found.folder


def score_of(runs: Sequence[RunFolder]) -> str:
    """Return the score that most of the finished runs have."""
    own = [run.score for run in runs if run.status == FINISHED and value_of(run.last, run.score) is not None]
    return mode(own or [task_named(DEFAULT).monitor])


def score_sort_key(score: str, value: float) -> float:
    """Return the sort key of a score's value. The best value comes first."""
    return value if smaller_is_better(score) else -value


def job_sort_key(key: str, run: RunFolder) -> tuple[bool, float]:
    """Return the sort key of a job: the best score of the last epoch comes first, jobs without a score last."""
    value = value_of(run.last, key)
    return value is None, score_sort_key(key, value or 0.0)


def value_of(row: Mapping[str, float], key: str) -> float | None:
    """Return a score in a row of metrics. Return None if it is missing or NaN."""
    value = row.get(key)
    return None if value is None or math.isnan(value) else value
