"""Compare groups of runs with a baseline: what `python -m trainer compare` and the end of a sweep show."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from augment.cli.parser import writing
from augment.support.errors import UserError, nearest
from augment.support.files import write_atomically, write_json
from augment.support.text import amount, list_some
from trainer.run.folder import FINISHED, PRUNED
from trainer.run.run_folder import RunFolder, find_runs
from trainer.sweeps.groups import OF_LOSSES, REPEATED, Group, group_runs, scored
from trainer.sweeps.verdict import Metric, compare
from trainer.sweeps.words import (
    Table,
    left_out,
    markdown_lines,
    markdown_table,
    p_value,
    print_lines,
    print_table,
    score,
    signed,
    verdict,
)
from trainer.tasks.registry import DEFAULT, range_of, smaller_is_better, task_named

# The smallest difference worth detecting, by default: half a point; of other scores, a share of the baseline's mean.
POINTS, RELATIVE = 0.5, 0.01


@dataclass(frozen=True)
class Comparison:
    """Groups of runs, compared with one of them."""

    rows: tuple[Group, ...]  # the groups, the best first
    baseline: Group  # the group that the others are compared with
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
            same: dict[str, list[str]] = {}
            for group in self.rows:
                if group is not self.baseline:
                    same.setdefault(group.verdict, []).append(group.name)
            lines += [f"{list_some(names, separator='; ')}: {text}." for text, names in same.items()]
        return [*lines, *self.notes]

    def table(self) -> Table:
        """Return the means and the differences."""
        keys, cells = {group.metric.key for group in self.rows}, []
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
            mean = f"{group.metric.key} " * (len(keys) > 1) + text(group.replicates.mean)
            cells.append([group.name, n, mean, std, about, difference, p])
        head = ["configuration", "n", "mean", "std", "95% interval of the mean", "difference", "p"]
        return f"last {one_of(keys)}", [head, *cells]

    def plain(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        groups = [
            plain_group(group) | {"difference": group.difference and asdict(group.difference), "verdict": group.verdict}
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
        key: the score to compare by; None: that of the task.
        detect: the smallest difference worth detecting, in points for scores in [0, 1]; None: .5 points, or 1%
            of the baseline's mean.

    Returns:
        The comparison, None if no run counts; and why runs do not count.
    """
    groups, left = group_runs(scored(runs, key))
    missing = left_out((run.name, reason) for run, reason in left)
    if not groups:
        return None, missing
    chosen = None if baseline is None else find_group(groups, baseline)
    return compare_groups(groups, [missing] if missing else [], chosen, detect), missing


def compare_groups(
    groups: Sequence[Group], notes: Sequence[str] = (), baseline: Group | None = None, detect: float | None = None
) -> Comparison:
    """Compare groups with one of them, as far as they can be compared; see `compare_runs`.

    Without a baseline it is the first one, of those with several seeds or folds if there are any.
    """
    why = "the baseline"
    if baseline is None:
        several = [group for group in groups if len(group.replicates.samples) > 1]
        baseline = (several or groups)[0]
        why = "the first configuration" + ("" if baseline is groups[0] else " with several seeds")
    metric = baseline.metric
    if detect is None:
        detect = POINTS if metric.share else RELATIVE * abs(baseline.replicates.mean)
    detect /= 100 if metric.share else 1
    refused = {group.name: _refusal(group, baseline) for group in groups if group is not baseline}
    judged = [group for group in groups if refused.get(group.name) == ""]
    found = compare(baseline.replicates, [group.replicates for group in judged], metric, detect)
    rows = [baseline, *(replace(group, verdict=refused[group.name]) for group in groups if refused.get(group.name))]
    for group, one in zip(judged, found, strict=True):
        text = verdict(one, group.replicates, baseline.replicates, metric, detect)
        rows.append(replace(group, difference=one, verdict=text))
    rows.sort(key=lambda group: (group.metric.key != metric.key, *rank(group.metric.key, group.replicates.mean)))
    noted = []
    if any(len(group.runs) > len(group.replicates.scores) for group in groups):
        noted.append("Runs that repeat a seed count as one, with their mean.")
    if early := [group.name for group in groups if group.runs[0].summary.stopped]:
        noted.append(f"All runs stopped early, so that their last epochs differ: {list_some(early, 5, '; ')}.")
    return Comparison(tuple(rows), baseline, why, detect, (*noted, *notes))


def rank(score: str, value: float) -> tuple[str, float]:
    """Return the sort key of a score: by kind, the best of each kind first."""
    return score, value if smaller_is_better(score) else -value


def find_group(groups: Sequence[Group], text: str) -> Group:
    """Return the group of a name, or that of a run of a name or folder.

    Raises:
        UserError: there is none, or there are several.
    """
    names, folder = [group.name for group in groups], text.rstrip("/")
    runs = [{name for run in group.runs for name in (run.name, run.folder.name, str(run.folder))} for group in groups]
    found = [group for group, own in zip(groups, runs, strict=True) if text == group.name or folder in own]
    if len(found) != 1:
        raise UserError(
            f"--baseline {text}: {amount(len(found), 'configuration')} of this name.{nearest(text, names)} "
            f"Allowed: the name of one, such as {list_some(names, 5, '; ')}; or the folder of one of its runs."
        )
    return found[0]


def plain_group(group: Group) -> dict[str, Any]:
    """Return what is known of a group as plain values."""
    replicates = group.replicates
    return {
        "name": group.name,
        "score": group.metric.key,
        "runs": [str(run.folder) for run in group.runs],
        "replicates": [{"seed": seed, "fold": fold} for seed, fold in replicates.scores],
        "scores": list(replicates.scores.values()),
        "n": len(replicates.scores),
        "mean": replicates.mean,
        "std": replicates.std,
        "interval": replicates.interval(group.metric),
    }


def one_of(keys: set[str]) -> str:
    """Return the score that all rows have; "score" if they differ."""
    return next(iter(keys)) if len(keys) == 1 else "score"


def _refusal(group: Group, baseline: Group) -> str:
    """Return why a group cannot be compared; empty if it can."""
    if group.metric.key != baseline.metric.key:
        return f"not compared, as it is scored by {group.metric.key}, and the baseline by {baseline.metric.key}"
    for key in {**group.basis, **baseline.basis}:
        ours, theirs = (one.basis.get(key) or "null" for one in (group, baseline))
        if ours != theirs:
            what = "losses are of different kinds" if key in OF_LOSSES else "validation images differ"
            return f"not compared, as {what}: {key}={ours}, of the baseline {theirs}"
    return ""


TABLE_FILE, VALUES_FILE = "sweep.md", "sweep.json"

# The beginnings of overrides that repeat an experiment.
_REPEATED = tuple(f"{key}=" for key in REPEATED)


def report_sweep(folder: Path, console: Console, *, write: bool = True) -> bool:
    """Print the tables of a sweep, and write them into its folder; return whether all jobs finished or were pruned."""
    runs = scored([run for run in find_runs([folder]) if run.folder.parent == folder])  # not those of a sweep in it
    jobs, varied = sorted(runs, key=_place), _varied(runs)
    repeats = any(override.startswith(_REPEATED) for own in varied.values() for override in own)
    groups, left = group_runs(runs) if repeats else ([], [])  # otherwise it is the same job several times
    missing = [left_out((run.folder.name, reason) for run, reason in left)] if left else []
    compared = compare_groups(groups, missing) if any(len(group.runs) > 1 for group in groups) else None
    tables = [_job_table(jobs, varied), *([compared.table()] if compared else [])]
    for table in tables:
        print_table(console, table)
    lines = [*(compared.lines() if compared else _advice(runs, varied)), *_errors(jobs)]
    print_lines(console, lines)
    console.print(str(folder), highlight=False, soft_wrap=True, markup=False)
    if write:
        means = [plain_group(group) for group in (compared.rows if compared else ()) if len(group.runs) > 1]
        plain = {"jobs": [*map(_plain, jobs)], "means": means} | ({"comparison": compared.plain()} if compared else {})
        with writing(str(folder / TABLE_FILE)):
            texts = [*map(markdown_table, tables), *([markdown_lines(lines)] if lines else [])]
            write_atomically(folder / TABLE_FILE, "\n".join(texts))
            write_json(folder / VALUES_FILE, plain)
    return all(run.status in (FINISHED, PRUNED) for run in runs)


def _place(run: RunFolder) -> tuple[bool, str, float]:
    """Return the sort key of a job: the best score of the last epoch first, those without a score last."""
    value = _value(run.last, run.score)
    return value is None, *rank(run.score, value or 0.0)


def _value(row: Mapping[str, float], key: str) -> float | None:
    value = row.get(key)
    return None if value is None or math.isnan(value) else value


def _plain(run: RunFolder) -> dict[str, Any]:
    return {
        "name": run.folder.name,
        "overrides": run.overrides,
        "status": run.status,
        "last": _value(run.last, run.score),
        "best": _value(run.summary.best, run.score),
        "seconds": run.summary.seconds,
        "error": run.summary.error,
        "score": run.score,
    }


def _varied(runs: Sequence[RunFolder]) -> dict[Path, list[str]]:
    """Return the overrides of each run that not all runs have, by its folder."""
    everywhere = set.intersection(*(set(run.overrides) for run in runs)) if runs else set()
    return {run.folder: [override for override in run.overrides if override not in everywhere] for run in runs}


def _job_table(jobs: Sequence[RunFolder], varied: Mapping[Path, Sequence[str]]) -> Table:
    shown = one_of(
        {run.score for run in jobs if _value(run.last, run.score) is not None} or {task_named(DEFAULT).monitor}
    )
    rows = [["job", "what it varies", "last", "best", "seconds", "status"]]
    for run in jobs:
        which, metric = f"{run.score} " if shown == "score" else "", Metric(run.score, within=range_of(run.score))
        values = (_value(row, run.score) for row in (run.last, run.summary.best))
        scores = ("" if value is None else which + score(metric, value) for value in values)
        rows.append([run.folder.name, " ".join(varied[run.folder]), *scores, f"{run.summary.seconds:.0f}", run.status])
    return f"{amount(len(jobs), 'job')} by {shown} of the last epoch, the best first", rows


def _errors(runs: Sequence[RunFolder]) -> list[str]:
    """Return each error once, with the jobs that it ended."""
    names: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for run in runs:
        if run.summary.error:
            names[run.status, run.summary.error].append(run.folder.name)
    return [f"{status} ({list_some(some)}): {error}" for (status, error), some in names.items()]


def _advice(runs: Sequence[RunFolder], varied: Mapping[Path, Sequence[str]]) -> list[str]:
    """Return what to do if a sweep has no replicates; a search makes its own."""
    finished = sum(run.status == FINISHED for run in runs)
    settings = any(not override.startswith(_REPEATED) for own in varied.values() for override in own)
    if finished < 2 or not settings or any(run.trial for run in runs):
        return []
    return ["One seed says nothing about chance: to compare, add seed=0,1,2,3,4 to the sweep."]
