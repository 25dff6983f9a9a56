"""The end of a sweep: a table of all its jobs, the best first, and means over seeds."""

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainer.run import SUMMARY_FILE

# Folders of the sweeps that this process started.
STARTED: list[Path] = []


class SweepFolder(Callback):
    """Hydra's callback that tells where a sweep begins; named in conf/config.yaml."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Remember the folder."""
        STARTED.append(Path(config.hydra.sweep.dir))


@dataclass(frozen=True)
class Job:
    """A job of a sweep, as its folder tells.

    Attributes:
        name: of its folder.
        overrides: what it was started with.
        status: finished, interrupted, failed or missing.
        accuracy: best val_accuracy, or None.
        seconds: it took.
        error: what it failed of.
    """

    name: str
    overrides: tuple[str, ...]
    status: str
    accuracy: float | None
    seconds: float
    error: str


def read_jobs(folder: Path) -> list[Job]:
    """Read the jobs of a sweep's folder, the best first, those without a score last."""
    jobs = [_read_job(run.parent) for run in folder.glob("*/.hydra")]
    return sorted(jobs, key=lambda job: (job.accuracy is None, -(job.accuracy or 0.0), len(job.name), job.name))


def _read_job(folder: Path) -> Job:
    overrides = tuple(str(o).lstrip("+") for o in OmegaConf.load(folder / ".hydra" / "overrides.yaml"))
    try:
        summary = json.loads((folder / SUMMARY_FILE).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return Job(folder.name, overrides, "missing", None, 0.0, "")
    accuracy = summary["best"].get("val_accuracy")
    if accuracy is not None and math.isnan(accuracy):
        accuracy = None
    return Job(folder.name, overrides, summary["status"], accuracy, summary["seconds"], summary["error"])


def print_table(folder: Path, console: Console) -> bool:
    """Print the table of a sweep; return whether all its jobs finished."""
    jobs = read_jobs(folder)
    varied = _varied(jobs)
    table = Table(title=f"{len(jobs)} jobs, the best first", title_justify="left")
    for title in ("job", "what it varies", "best val_accuracy", "seconds", "status"):
        table.add_column(title, justify="right" if title in ("best val_accuracy", "seconds") else "left")
    for job in jobs:
        score = "" if job.accuracy is None else f"{job.accuracy:.4f}"
        status = f"{job.status}: {job.error}" if job.error else job.status
        cells = (job.name, " ".join(_kept(job, varied)), score, f"{job.seconds:.0f}", status)
        table.add_row(*map(Text, cells))  # brackets are no markup here
    console.print(table)
    if groups := _over_seeds(jobs, varied):
        table = Table(title="over seeds", title_justify="left")
        for title in ("what it varies", "n", "mean", "std"):
            table.add_column(title, justify="left" if title == "what it varies" else "right")
        for name, scores in groups:
            table.add_row(Text(name), str(len(scores)), f"{mean(scores):.4f}", f"{stdev(scores):.4f}")
        console.print(table)
    console.print(str(folder), highlight=False, soft_wrap=True, markup=False)
    return all(job.status == "finished" for job in jobs)


def _varied(jobs: Sequence[Job]) -> set[str]:
    """Return the overrides that not all jobs have."""
    everywhere = set.intersection(*[set(job.overrides) for job in jobs]) if jobs else set()
    return {override for job in jobs for override in job.overrides} - everywhere


def _kept(job: Job, varied: set[str]) -> list[str]:
    return [override for override in job.overrides if override in varied]


def _over_seeds(jobs: Sequence[Job], varied: set[str]) -> list[tuple[str, list[float]]]:
    """Return the scores of jobs that differ in their seed alone, the best mean first; none for single seeds."""
    groups: defaultdict[str, list[float]] = defaultdict(list)
    for job in jobs:
        if job.accuracy is not None and job.status == "finished":
            name = " ".join(o for o in _kept(job, varied) if not o.startswith("seed="))
            groups[name].append(job.accuracy)
    several = [(name, scores) for name, scores in groups.items() if len(scores) > 1]
    return sorted(several, key=lambda group: -mean(group[1]))
