"""Compare groups of runs with a baseline: what `python -m trainer compare` and the end of a sweep show."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mode
from typing import Any

from rich.console import Console

from augment.cli.parser import writing
from augment.support.errors import UserError, nearest
from augment.support.files import write_atomically, write_json
from augment.support.formatting import amount, list_some
from augment.support.nested import grouped
from trainer.run.folder.ownership import FINISHED, PRUNED
from trainer.run.folder.reader import RunFolder, find_runs
from trainer.sweeps.run_groups import OF_LOSSES, RunGroup, first_difference, group_runs
from trainer.sweeps.verdict import Metric, compare
from trainer.sweeps.verdict_text import Part, Table, left_out, markdown_page, p_value, present, score, signed, verdict
from trainer.tasks.registry import DEFAULT, range_of, smaller_is_better, task_named

# The smallest difference worth detecting, by default: half a point; of other scores, a share of the baseline's mean.
POINTS, RELATIVE = 0.5, 0.01


@dataclass(frozen=True)
class Comparison:
    """Groups of runs, compared with one of them."""

    rows: tuple[RunGroup, ...]  # the groups, the best first
    baseline: RunGroup  # the group that the others are compared with
    why: str  # why it is the baseline
    detect: float  # the smallest difference worth detecting, as a difference of scores
    notes: tuple[str, ...] = ()  # sentences about runs that were left out, and what else to know

    def lines(self) -> list[str]:
        """Return the verdicts and the notes."""
        if len(self.rows) == 1:
            lines = ["One configuration: nothing to compare it with."]
            if len(self.baseline.replicates.samples) == 1:
                lines.append("One seed says nothing about chance; run seed=1,2,3,4 as well.")
        else:
            lines = [f"Compared with {self.baseline.name}, {self.why}:"]
            same = grouped((group.verdict, group.name) for group in self.rows if group is not self.baseline)
            lines += [f"{list_some(names, separator='; ')}: {text}." for text, names in same.items()]
        return [*lines, *self.notes]

    def table(self) -> Table:
        """Return the means and the differences."""
        cells = []
        for group in self.rows:
            difference, p = "baseline" if group is self.baseline else "", ""
            if (found := group.difference) is not None:
                p = p_value(found.corrected).removeprefix("p ").removeprefix("= ")
                difference = signed(found, group.metric)
            replicates, text = group.replicates, partial(score, group.metric, like=group.replicates.mean)
            bounds, n = replicates.interval(group.metric), str(len(replicates.scores))
            if len(replicates.samples) < len(replicates.scores):
                n += f" in {len(replicates.samples)} folds"
            about = "" if bounds is None else f"{text(bounds[0])}..{text(bounds[1])}"
            std = "" if replicates.std is None else text(replicates.std)
            cells.append([group.name, n, text(replicates.mean), std, about, difference, p])
        head = ["configuration", "n", "mean", "std", "95% interval of the mean", "difference", "p"]
        return f"last {self.baseline.metric.key}", [head, *cells]

    def plain(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        groups = [
            {
                "name": group.name,
                "score": group.metric.key,
                "runs": [str(run.folder) for run in group.runs],
                "replicates": [{"seed": seed, "fold": fold} for seed, fold in group.replicates.scores],
                "scores": list(group.replicates.scores.values()),
                "n": len(group.replicates.scores),
                "mean": group.replicates.mean,
                "std": group.replicates.std,
                "interval": group.replicates.interval(group.metric),
                "difference": group.difference and asdict(group.difference),
                "verdict": group.verdict,
            }
            for group in self.rows
        ]
        return {"baseline": self.baseline.name, "detect": self.detect, "groups": groups, "notes": [*self.notes]}


def compare_runs(
    runs: Sequence[RunFolder], baseline: str | None = None, key: str | None = None, detect: float | None = None
) -> tuple[Comparison | None, str]:
    """Compare runs, in the order of `find_runs`, those of the same configuration as replicates of it.

    Args:
        runs: the runs.
        baseline: what to compare with: the name of a group or a run, or its folder; None: the first one.
        key: the score to compare by, which runs of other tasks may lack; None: see `score_of`.
        detect: the smallest difference worth detecting, in points for scores in [0, 1]; None: .5 points, or 1%
            of the baseline's mean.

    Returns:
        The comparison, None if no run counts; and why runs do not count.
    """
    key = key or score_of(runs)
    groups, left = group_runs([run.scored_by(key) for run in runs])
    missing = left_out((run.name, reason) for run, reason in left)
    if not groups:
        return None, missing
    if baseline is not None:
        base, why = find_group(groups, baseline), "the baseline"
    else:
        base = next((group for group in groups if len(group.replicates.samples) > 1), groups[0])
        why = "the first configuration" + ("" if base is groups[0] else " with several seeds")
    metric = base.metric
    if detect is None:
        detect = POINTS if metric.share else RELATIVE * abs(base.replicates.mean)
    detect /= 100 if metric.share else 1
    refused = {group.name: _refusal(group, base) for group in groups if group is not base}
    judged = [group for group in groups if refused.get(group.name) == ""]
    found = compare(base.replicates, [group.replicates for group in judged], metric, detect)
    rows = [base, *(replace(group, verdict=refused[group.name]) for group in groups if refused.get(group.name))]
    for group, one in zip(judged, found, strict=True):
        text = verdict(one, group.replicates, base.replicates, metric, detect)
        rows.append(replace(group, difference=one, verdict=text))
    rows.sort(key=lambda group: rank(key, group.replicates.mean))
    noted = []
    if any(len(group.runs) > len(group.replicates.scores) for group in groups):
        noted.append("Runs that repeat a seed count as one, with their mean.")
    if early := [group.name for group in groups if group.runs[0].summary.stopped]:
        noted.append(f"All runs stopped early, so that their last epochs differ: {list_some(early, 5, '; ')}.")
    return Comparison(tuple(rows), base, why, detect, (*noted, *filter(None, [missing]))), missing


def score_of(runs: Sequence[RunFolder]) -> str:
    """Return the score of most runs that finished, by their tasks."""
    own = [run.score for run in runs if run.status == FINISHED and _value(run.last, run.score) is not None]
    return mode(own or [task_named(DEFAULT).monitor])


def rank(score: str, value: float) -> float:
    """Return the sort key of a score, the best one first."""
    return value if smaller_is_better(score) else -value


def find_group(groups: Sequence[RunGroup], text: str) -> RunGroup:
    """Return the group of a name, or that of a run of a name or folder, if there is exactly one."""
    names, folder = [group.name for group in groups], text.rstrip("/")
    runs = [{name for run in group.runs for name in (run.name, run.folder.name, str(run.folder))} for group in groups]
    found = [group for group, own in zip(groups, runs, strict=True) if text == group.name or folder in own]
    if len(found) != 1:
        raise UserError(
            f"--baseline {text}: {amount(len(found), 'configuration')} of this name.{nearest(text, names)} "
            f"Allowed: the name of one, such as {list_some(names, 5, '; ')}; or the folder of one of its runs."
        )
    return found[0]


def _refusal(group: RunGroup, baseline: RunGroup) -> str:
    """Return why a group cannot be compared; empty if it can."""
    if (found := first_difference(group.basis, baseline.basis)) is None:
        return ""
    key, ours, theirs = found
    what = "losses are of different kinds" if key in OF_LOSSES else "validation images differ"
    other = "; compare --metric takes another score" if key in OF_LOSSES else ""
    return f"not compared, as {what}: {key}={ours}, of the baseline {theirs}{other}"


TABLE_FILE, VALUES_FILE = "sweep.md", "sweep.json"


def report_sweep(folder: Path, console: Console, *, write: bool = True) -> bool:
    """Print the tables of a sweep, and write them into its folder; return whether all jobs finished or were pruned."""
    runs = [run for run in find_runs([folder]) if run.folder.parent == folder]  # not those of a sweep in it
    key, everywhere = score_of(runs), set.intersection(*(set(run.overrides) for run in runs)) if runs else ()
    jobs = sorted(runs, key=partial(_place, key))
    varied = {run.folder: [override for override in run.overrides if override not in everywhere] for run in runs}
    compared, _ = compare_runs(runs)
    if compared is not None and all(len(group.runs) == 1 for group in compared.rows):
        compared = None  # the table of jobs says all
    lines = compared.lines() if compared else []
    # A search makes its own replicates.
    if not compared and sum(run.status == FINISHED for run in runs) > 1 and not any(run.trial for run in runs):
        lines.append("One seed says nothing about chance: to compare, add seed=0,1,2,3,4 to the sweep.")
    lines += _errors(jobs)
    parts: list[Part] = [
        _job_table(jobs, varied, key),
        *([compared.table()] if compared else []),
        *([lines] if lines else []),
    ]
    present(console, *parts, [str(folder)])
    if write:
        plain: dict[str, Any] = {
            "jobs": [
                {
                    "name": run.folder.name,
                    "overrides": run.overrides,
                    "status": run.status,
                    "last": _value(run.last, key),
                    "best": _value(run.summary.best, key),
                    "seconds": run.summary.seconds,
                    "error": run.summary.error,
                    "score": key,
                }
                for run in jobs
            ]
        }
        if compared:
            plain["comparison"] = compared.plain()
        with writing(str(folder / TABLE_FILE)):
            write_atomically(folder / TABLE_FILE, markdown_page(*parts))
            write_json(folder / VALUES_FILE, plain)
    return all(run.status in (FINISHED, PRUNED) for run in runs)


def _place(key: str, run: RunFolder) -> tuple[bool, float]:
    """Return the sort key of a job: the best score of the last epoch first, those without a score last."""
    value = _value(run.last, key)
    return value is None, rank(key, value or 0.0)


def _value(row: Mapping[str, float], key: str) -> float | None:
    value = row.get(key)
    return None if value is None or math.isnan(value) else value


def _job_table(jobs: Sequence[RunFolder], varied: Mapping[Path, Sequence[str]], key: str) -> Table:
    rows, metric = (
        [["job", "what it varies", "last", "best", "seconds", "status"]],
        Metric(key, within=range_of(key)),
    )
    for run in jobs:
        values = (_value(row, key) for row in (run.last, run.summary.best))
        scores = ("" if value is None else score(metric, value) for value in values)
        rows.append([run.folder.name, " ".join(varied[run.folder]), *scores, f"{run.summary.seconds:.0f}", run.status])
    return f"{amount(len(jobs), 'job')} by {key} of the last epoch, the best first", rows


def _errors(runs: Sequence[RunFolder]) -> list[str]:
    """Return each error once, with the jobs that it ended."""
    names = grouped(((run.status, run.summary.error), run.folder.name) for run in runs if run.summary.error)
    return [f"{status} ({list_some(some)}): {error}" for (status, error), some in names.items()]
