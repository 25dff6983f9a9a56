"""The table of a finished sweep: all jobs, the best first, and means over seeds and folds; printed and written."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from augment.cli.parser import writing
from augment.support.files import write_atomically, write_json
from augment.support.text import amount
from augment.support.yaml_files import read_list
from trainer.run.folder import user_of
from trainer.run.summary import RUNNING, SUMMARY_FILE
from trainer.tasks.registry import DEFAULT, smaller_is_better, task_named, task_of

TABLE_FILE, VALUES_FILE = "sweep.md", "sweep.json"

# Overrides that change what the loss of numbers is.
_OF_LOSSES = ("fit.regression_loss=", "fit.standardize=")


@dataclass(frozen=True)
class Job:
    """A job of a sweep, as read from its folder.

    Attributes:
        name: name of its folder.
        overrides: what it was started with.
        status: finished, interrupted, failed, running, killed, or missing if it never began.
        last: score of the last epoch, or None.
        best: score of the best epoch, which was chosen by it, or None.
        seconds: duration.
        error: the error of a failed job.
        score: what the scores are, such as val_accuracy.
    """

    name: str
    overrides: tuple[str, ...]
    status: str
    last: float | None
    best: float | None
    seconds: float
    error: str
    score: str = task_named(DEFAULT).monitor


@dataclass(frozen=True)
class Mean:
    """The last scores of jobs that differ only in their seed or fold of cross-validation.

    The interval over folds is a little too narrow: they share training images, so that their scores are not
    independent, and no unbiased estimate of the variance exists (Bengio and Grandvalet 2004).

    Attributes:
        name: what else the sweep varies.
        scores: the last score of each job.
        score: what the scores are, such as val_accuracy.
        folds: the fold of each job; empty if the sweep does not vary the fold.
    """

    name: str
    scores: tuple[float, ...]
    score: str = task_named(DEFAULT).monitor
    folds: tuple[str, ...] = ()

    @property
    def samples(self) -> tuple[float, ...]:
        """What counts as a sample: the scores, or the means of folds with several scores, which resemble each other."""
        if len(set(self.folds)) < 2:
            return self.scores
        of_fold: defaultdict[str, list[float]] = defaultdict(list)
        for fold, score in zip(self.folds, self.scores, strict=True):
            of_fold[fold].append(score)
        return tuple(map(mean, of_fold.values()))

    @property
    def mean(self) -> float:
        """The mean."""
        return mean(self.scores)

    @property
    def std(self) -> float:
        """The standard deviation of one job."""
        return stdev(self.scores)

    def interval(self) -> tuple[float, float]:
        """Return the 95 % confidence interval of the mean over all seeds, or over folds (Student's t)."""
        from scipy.stats import t  # takes a while

        samples = self.samples
        half = float(t.ppf(0.975, len(samples) - 1)) * stdev(samples) / math.sqrt(len(samples))
        return self.mean - half, self.mean + half

    def plain(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return asdict(self) | {"n": len(self.scores), "mean": self.mean, "std": self.std, "interval": self.interval()}


def read_jobs(folder: Path) -> list[Job]:
    """Read the jobs of a sweep's folder, the best last epoch first, those without a score last."""
    overrides = {
        run.parent: tuple(str(o).lstrip("+") for o in read_list(run / "overrides.yaml"))
        for run in folder.glob("*/.hydra")
    }
    # Losses of different kinds cannot be compared.
    losses = {tuple(o for o in given if o.startswith(_OF_LOSSES)) for given in overrides.values()}
    jobs = [_read_job(run, given, one_loss=len(losses) < 2) for run, given in overrides.items()]
    return sorted(jobs, key=lambda job: (job.last is None, *_rank(job.score, job.last or 0.0), len(job.name), job.name))


def _rank(score: str, value: float) -> tuple[str, float]:
    """Return the sort key of a score: by kind, the best of each kind first."""
    return score, value if smaller_is_better(score) else -value


def _score(rows: Sequence[Job | Mean]) -> str:
    """Return the score that all of some rows have; empty if they differ."""
    scores = {row.score for row in rows if isinstance(row, Mean) or row.last is not None}
    return "" if len(scores) > 1 else next(iter(scores), task_named(DEFAULT).monitor)


def _read_job(folder: Path, overrides: tuple[str, ...], *, one_loss: bool) -> Job:
    try:
        summary = json.loads((folder / SUMMARY_FILE).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return Job(folder.name, overrides, "missing", None, None, 0.0, "")
    if summary["status"] == RUNNING:
        return Job(folder.name, overrides, "running" if user_of(folder) else "killed", None, None, 0.0, "")
    task = task_of([summary["last"], summary["best"]])
    score = task.monitor if one_loss or task.monitor != "val_loss" else f"val_{task.score}"
    last, best = (_value(summary[row], score) for row in ("last", "best"))
    return Job(folder.name, overrides, summary["status"], last, best, summary["seconds"], summary["error"], score)


def _value(row: Mapping[str, float | None], key: str) -> float | None:
    value = row.get(key)
    return None if value is None or math.isnan(value) else value


def print_table(folder: Path, console: Console) -> bool:
    """Print the table of a sweep and write it into its folder; return whether all its jobs finished."""
    jobs = read_jobs(folder)
    varied = _varied(jobs)
    means = _over_seeds(jobs, varied)
    tables = [_job_table(jobs, varied), *([_mean_table(means, varied)] if means else [])]
    for title, rows in tables:
        table = Table(title=title, title_justify="left")
        for name in rows[0]:
            table.add_column(name, justify="left" if name in _WORDS else "right", overflow="fold")
        for row in rows[1:]:
            table.add_row(*map(Text, row))  # brackets are no markup here
        console.print(table)
    console.print(str(folder), highlight=False, soft_wrap=True, markup=False)
    plain = {"jobs": [asdict(job) for job in jobs], "means": [row.plain() for row in means]}
    with writing(str(folder / TABLE_FILE)):
        write_atomically(folder / TABLE_FILE, "\n".join(_markdown(title, rows) for title, rows in tables))
        write_json(folder / VALUES_FILE, plain)
    return all(job.status == "finished" for job in jobs)


# A title, and the rows of a table, of which the first one holds the names of its columns.
Rows = tuple[str, list[list[str]]]
_WORDS = ("job", "what it varies", "status")

# Overrides that repeat an experiment, and what they go over.
_FOLD = "data.fold="
_REPEATED = {"seed=": "seeds", _FOLD: "folds"}


def _job_table(jobs: Sequence[Job], varied: set[str]) -> Rows:
    key = _score(jobs)
    rows = [["job", "what it varies", f"last {key or 'score'}", f"best {key or 'score'}", "seconds", "status"]]
    for job in jobs:
        which = "" if key else f"{job.score} "
        scores = ("" if score is None else f"{which}{score:.4f}" for score in (job.last, job.best))
        status = f"{job.status}: {job.error}" if job.error else job.status
        rows.append([job.name, " ".join(_kept(job, varied)), *scores, f"{job.seconds:.0f}", status])
    return f"{amount(len(jobs), 'job')}, the best last epoch first", rows


def _mean_table(means: Sequence[Mean], varied: set[str]) -> Rows:
    key = _score(means)
    rows = [["what it varies", "n", "mean", "std", "95 % interval of the mean"]]
    for row in means:
        low, high = row.interval()
        mean_score = f"{row.mean:.4f}" if key else f"{row.score} {row.mean:.4f}"
        n = str(len(row.scores)) + (f" in {len(row.samples)} folds" if len(row.samples) < len(row.scores) else "")
        rows.append([row.name, n, mean_score, f"{row.std:.4f}", f"{low:.4f}..{high:.4f}"])
    over = [name for key, name in _REPEATED.items() if any(override.startswith(key) for override in varied)]
    return f"last {key or 'score'} over {' and '.join(over)}", rows


def _markdown(title: str, rows: Sequence[Sequence[str]]) -> str:
    head, *body = [[cell.replace("|", r"\|").replace("\n", " ") for cell in row] for row in rows]
    align = ["---" if name in _WORDS else "---:" for name in head]
    return f"{title}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in (head, align, *body))


def _varied(jobs: Sequence[Job]) -> set[str]:
    """Return the overrides that not all jobs have."""
    everywhere = set.intersection(*[set(job.overrides) for job in jobs]) if jobs else set()
    return {override for job in jobs for override in job.overrides} - everywhere


def _kept(job: Job, varied: set[str]) -> list[str]:
    return [override for override in job.overrides if override in varied]


def _over_seeds(jobs: Sequence[Job], varied: set[str]) -> list[Mean]:
    """Return the means over jobs that differ in their seed or fold alone, the best first; none for single ones."""
    groups: defaultdict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    if not any(override.startswith(tuple(_REPEATED)) for override in varied):
        return []  # the same job several times
    for job in jobs:
        if job.last is not None and job.status == "finished":
            name = " ".join(o for o in _kept(job, varied) if not o.startswith(tuple(_REPEATED)))
            fold = next((o for o in _kept(job, varied) if o.startswith(_FOLD)), "")
            groups[name, job.score].append((job.last, fold))
    means = [
        Mean(name, tuple(score for score, _ in rows), of, tuple(fold for _, fold in rows))
        for (name, of), rows in groups.items()
        if len(rows) > 1
    ]
    return sorted(means, key=lambda row: _rank(row.score, row.mean))
