"""Compare groups of runs with a baseline: what `python -m trainer compare` and the end of a sweep show."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from augment.support.errors import UserError, nearest
from augment.support.text import amount, list_some
from trainer.run.run_folder import RunFolder
from trainer.sweeps.groups import OF_LOSSES, Group, group_runs, scored
from trainer.sweeps.verdict import compare
from trainer.sweeps.words import Table, left_out, p_value, score, signed, verdict
from trainer.tasks.registry import smaller_is_better

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
            replicates, text = group.replicates, partial(score, group.metric, like=group.mean)
            bounds, n = replicates.interval(group.metric), str(len(replicates.scores))
            if len(replicates.samples) < len(replicates.scores):
                n += f" in {len(replicates.samples)} folds"
            about = "" if bounds is None else f"{text(bounds[0])}..{text(bounds[1])}"
            std = "" if replicates.std is None else text(replicates.std)
            mean = f"{group.metric.key} " * (len(keys) > 1) + text(group.mean)
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
    """Compare runs, those of the same configuration as replicates of it.

    Args:
        runs: the runs, in the order of `find_runs`.
        baseline: what to compare with: the name of a group or a run, or its folder; None: the first one.
        key: the score to compare by; None: that of the task.
        detect: the smallest difference worth detecting, in points for scores in [0, 1]; None: .5 points, or 1%
            of the baseline's mean.

    Returns:
        The comparison, None if no run counts; and why runs do not count.

    Raises:
        UserError: the baseline is not among the runs.
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
    """Compare groups with one of them, as far as they can be compared.

    Args:
        groups: the groups, in the order of `find_runs`.
        notes: sentences about runs that were left out.
        baseline: one of the groups; None: the first one, of those with several seeds or folds if there are any.
        detect: see `compare_runs`.
    """
    why = "the baseline"
    if baseline is None:
        several = [group for group in groups if len(group.replicates.samples) > 1]
        baseline = (several or groups)[0]
        why = "the first configuration" + ("" if baseline is groups[0] else " with several seeds")
    metric = baseline.metric
    if detect is None:
        detect = POINTS if metric.share else RELATIVE * abs(baseline.mean)
    detect /= 100 if metric.share else 1
    refused = {group.name: _refusal(group, baseline) for group in groups if group is not baseline}
    judged = [group for group in groups if refused.get(group.name) == ""]
    found = compare(baseline.replicates, [group.replicates for group in judged], metric, detect)
    rows = [baseline, *(replace(group, verdict=refused[group.name]) for group in groups if refused.get(group.name))]
    for group, one in zip(judged, found, strict=True):
        text = verdict(one, group.replicates, baseline.replicates, metric, detect)
        rows.append(replace(group, difference=one, verdict=text))
    rows.sort(key=lambda group: (group.metric.key != metric.key, *rank(group.metric.key, group.mean)))
    return Comparison(tuple(rows), baseline, why, detect, (*_notes(groups), *notes))


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


def _notes(groups: Sequence[Group]) -> list[str]:
    notes = []
    if any(len(group.runs) > len(group.replicates.scores) for group in groups):
        notes.append("Runs that repeat a seed count as one, with their mean.")
    if early := [group.name for group in groups if group.runs[0].summary.stopped]:
        notes.append(f"All runs stopped early, so that their last epochs differ: {list_some(early, 5, '; ')}.")
    return notes
