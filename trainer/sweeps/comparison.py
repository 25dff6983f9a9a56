"""Compare groups of runs with a baseline, for `python -m trainer compare` and for the end of a sweep."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console

from augment.cli.parser import writing
from augment.support.errors import UserError, nearest
from augment.support.files import write_atomically, write_json
from augment.support.formatting import amount, list_some
from augment.support.nested import grouped
from trainer.run.folder.reader import RunFolder, find_runs
from trainer.run.folder.run_names import job_sort_key, score_of, score_sort_key, value_of
from trainer.run.folder.summary import FINISHED, PRUNED
from trainer.sweeps.run_groups import CORRUPTIONS, FOLD, SEED, RunGroup, first_difference, group_runs, per_replicate
from trainer.sweeps.trials import TRIALS_FILE
from trainer.sweeps.verdict import Metric, compare
from trainer.sweeps.verdict_text import (
    Part,
    Table,
    format_score,
    format_signed,
    left_out,
    markdown_page,
    p_value,
    present,
    verdict,
)
from trainer.tasks.registry import LOSS_SETTINGS, range_of

# The default smallest difference worth detecting: points for scores in [0, 1], else a share of the baseline's mean.
POINTS, RELATIVE = 0.5, 0.01


@dataclass(frozen=True)
class Comparison:
    """Groups of runs, each compared with a baseline."""

    rows: tuple[RunGroup, ...]  # all groups, the best first
    baseline: RunGroup
    why: str  # why this group is the baseline
    detect: float  # the smallest difference worth detecting, as a difference of scores
    notes: tuple[str, ...] = ()  # sentences, for example about runs that were left out
    test: str = ""  # the key of test scores to show, see `with_test`

    def lines(self) -> list[str]:
        if len(self.rows) == 1:
            lines = ["There is only one configuration, so nothing is compared."]
            if len(self.baseline.replicates.samples) == 1:
                lines.append("One seed cannot rule out chance. Also run seed=1,2,3,4.")
        else:
            lines = [f"Compared with {self.baseline.name}, {self.why}:"]
            same = grouped((group.verdict, group.name) for group in self.rows if group is not self.baseline)
            lines += [f"{list_some(names, separator='; ')}: {text}." for text, names in same.items()]
        return [*lines, *self.notes]

    def with_test(self) -> "Comparison":
        """Return the comparison with a column of test scores. They change neither the order nor the verdicts.

        Raises:
            UserError: no run has test scores.
        """
        shown = replace(self, test=f"test_{self.baseline.metric.key.removeprefix('val_')}")
        if not any(map(shown.tested, self.rows)):
            raise UserError(
                f"--split test: no run has {shown.test}. Score a run with: python -m trainer evaluate RUN --split test"
            )
        return replace(
            shown,
            notes=(
                *self.notes,
                f"{shown.test} is the mean over the best epochs of n seeds or folds. It changes neither order nor "
                "verdicts.",
            ),
        )

    def tested(self, group: RunGroup) -> list[float]:
        """Return the test scores of a group, one for each replicate that has a test score."""
        found = ((run, run.test_scores[self.test]) for run in group.runs if self.test in run.test_scores)
        return [*per_replicate(found).values()]

    def table(self) -> Table:
        head = ["configuration", "n", "mean", "std", "95% interval of the mean", "difference", "p"]
        head += [self.test] if self.test else []
        return f"last {self.baseline.metric.key}", [head, *map(self._cells, self.rows)]

    def _cells(self, group: RunGroup) -> list[str]:
        replicates = group.replicates
        text = partial(format_score, group.metric, like=replicates.mean)
        n = str(len(replicates.scores))
        if len(replicates.samples) < len(replicates.scores):
            n += f" in {len(replicates.samples)} folds"
        std = "" if replicates.std is None else text(replicates.std)
        bounds = replicates.interval(group.metric)
        interval = "" if bounds is None else f"{text(bounds[0])}..{text(bounds[1])}"
        difference, p = "baseline" if group is self.baseline else "", ""
        if group.difference is not None:
            difference = format_signed(group.difference, group.metric)
            p = p_value(group.difference.corrected).removeprefix("p ").removeprefix("= ")
        cells = [group.name, n, text(replicates.mean), std, interval, difference, p]
        if self.test:
            found = self.tested(group)
            cells.append(f"{text(mean(found))} (n = {len(found)})" if found else "")
        return cells

    def plain(self) -> dict[str, Any]:
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
                **({self.test: self.tested(group)} if self.test else {}),
            }
            for group in self.rows
        ]
        return {"baseline": self.baseline.name, "detect": self.detect, "groups": groups, "notes": [*self.notes]}


def compare_runs(
    runs: Sequence[RunFolder], baseline: str | None = None, key: str | None = None, detect: float | None = None
) -> tuple[Comparison | None, str]:
    """Compare the configurations of some runs. Runs of the same configuration are its replicates.

    Args:
        runs: the runs, in the order of `find_runs`.
        baseline: see `choose_baseline`.
        key: the score to compare by, which runs of other tasks may lack. None: see `score_of`.
        detect: the smallest difference worth detecting, in points for scores in [0, 1]. None: 0.5 points, or 1% of
            the baseline's mean for other scores.

    Returns:
        The comparison, or None if no run counts, and a sentence on the runs that do not count.
    """
    key = key or score_of(runs)
    groups, left = group_runs([run.scored_by(key) for run in runs])
    missing = left_out((run.name, reason) for run, reason in left)
    if not groups:
        return None, missing
    base, why = choose_baseline(groups, baseline)
    metric = base.metric
    if detect is None:
        detect = POINTS if metric.share else RELATIVE * abs(base.replicates.mean)
    if metric.share:
        detect /= 100
    others = [group for group in groups if group is not base]
    mismatched = [replace(group, verdict=_mismatch(group, base)) for group in others]
    rows = [base, *(group for group in mismatched if group.verdict)]
    comparable = [group for group in mismatched if not group.verdict]
    found = compare(base.replicates, [group.replicates for group in comparable], metric, detect)
    for group, difference in zip(comparable, found, strict=True):
        text = verdict(difference, group.replicates, base.replicates, metric, detect)
        rows.append(replace(group, difference=difference, verdict=text))
    rows.sort(key=lambda group: score_sort_key(key, group.replicates.mean))
    joined = any(len(group.runs) > len(group.replicates.scores) for group in groups)
    early = [group.name for group in groups if group.runs[0].summary.stopped]
    notes = (
        "Runs with the same seed count as one, with their mean score." if joined else "",
        f"All runs of {list_some(early, 5, '; ')} stopped early, so their last epochs differ." if early else "",
        missing,
    )
    return Comparison(tuple(rows), base, why, detect, tuple(filter(None, notes))), missing


def choose_baseline(groups: Sequence[RunGroup], text: str | None) -> tuple[RunGroup, str]:
    """Return the group to compare with, and why.

    Args:
        groups: the groups, in the order in which their runs were found.
        text: the name of a configuration, or the name or folder of one of its runs. None: the starting configuration
            if a search comes first. Otherwise the first configuration with several seeds, or the first configuration.
    """
    if text is not None:
        return find_group(groups, text), "the baseline"
    if any(map(_starts_search, groups[0].runs)):
        return groups[0], "the starting configuration"
    base = next((group for group in groups if len(group.replicates.samples) > 1), groups[0])
    seeds = "" if base is groups[0] else " with several seeds"
    return base, f"the first configuration{seeds} in the order of the runs"


def _starts_search(run: RunFolder) -> bool:
    """Return whether a run has the starting configuration of a search, apart from the seed."""
    if run.job is None or not (run.folder.parent / TRIALS_FILE).is_file():
        return False
    return all(override.lstrip("+").startswith(f"{SEED}=") for override in run.job["varied"])


def find_group(groups: Sequence[RunGroup], text: str) -> RunGroup:
    """Find a group by its name, or by the name or folder of one of its runs."""
    folder = text.rstrip("/")
    found = []
    for group in groups:
        names = {name for run in group.runs for name in (run.name, run.folder.name, str(run.folder))}
        if text == group.name or folder in names:
            found.append(group)
    if len(found) != 1:
        known = [group.name for group in groups]
        raise UserError(
            f"--baseline {text} matches {amount(len(found), 'configuration')}.{nearest(text, known)} Choose one, such "
            f"as {list_some(known, 5, '; ')}, or the folder of one of its runs."
        )
    return found[0]


def _mismatch(group: RunGroup, baseline: RunGroup) -> str:
    """Return why a group cannot be compared with the baseline, or "" if it is comparable."""
    sides = group.replicates, baseline.replicates
    ours, theirs = (dict.fromkeys(fold for _, fold in each.scores) for each in sides)
    units = {each.unit for each in sides if len(each.samples) > 1}  # seeds of one fold do not vary like folds
    found = first_difference(group.basis, baseline.basis)
    if found is None and (len(units) > 1 or not ours.keys() & theirs.keys()):
        found = FOLD, ",".join(ours), ",".join(theirs)
    if found is None:
        return ""
    key, value, expected = found
    if key == CORRUPTIONS:
        return (
            "not compared, because the corruptions of the stress tests differ. To compare them, run python -m trainer "
            "stress RUN for both, with the same --ops"
        )
    values = f"{key}={value} here, {expected} in the baseline"
    if key in LOSS_SETTINGS:
        return f"not compared, because the losses differ: {values}. Choose another score with compare --metric"
    return f"not compared, because the validation images differ: {values}"


TABLE_FILE, VALUES_FILE = "sweep.md", "sweep.json"


def report_sweep(folder: Path, console: Console, *, write: bool = True) -> bool:
    """Print the tables of a sweep and write them into its folder.

    Returns:
        Whether all jobs have finished or were pruned.
    """
    runs = [run for run in find_runs([folder]) if run.folder.parent == folder]  # without sweeps inside the folder
    key = score_of(runs)
    jobs = sorted(runs, key=partial(job_sort_key, key))
    compared, _ = compare_runs(runs)
    if compared is not None and all(len(group.runs) == 1 for group in compared.rows):
        compared = None  # the table of jobs already has these scores
    lines = compared.lines() if compared else []
    searched = any(run.trial for run in runs)  # a search repeats its best trials with more seeds
    if not compared and not searched and sum(run.status == FINISHED for run in runs) > 1:
        lines.append("One seed cannot rule out chance. To compare settings, add seed=0,1,2,3,4 to the sweep.")
    lines += _errors(jobs)
    parts: list[Part] = [_job_table(jobs, key)]
    if compared:
        parts.append(compared.table())
    if lines:
        parts.append(lines)
    present(console, *parts, [str(folder)])
    if write:
        plain = {
            "jobs": [_plain_job(run, key) for run in jobs],
            **({"comparison": compared.plain()} if compared else {}),
        }
        with writing(str(folder / TABLE_FILE)):
            write_atomically(folder / TABLE_FILE, markdown_page(*parts))
            write_json(folder / VALUES_FILE, plain)
    return all(run.status in (FINISHED, PRUNED) for run in runs)


def _plain_job(run: RunFolder, key: str) -> dict[str, Any]:
    return {
        "name": run.folder.name,
        "overrides": run.overrides,
        "status": run.status,
        "last": value_of(run.last, key),
        "best": value_of(run.summary.best, key),
        "seconds": run.summary.seconds,
        "error": run.summary.error,
        "score": key,
    }


def _job_table(jobs: Sequence[RunFolder], key: str) -> Table:
    everywhere = set.intersection(*(set(run.overrides) for run in jobs)) if jobs else set()
    metric = Metric(key, within=range_of(key))
    rows = [["job", "varied settings", "last", "best", "seconds", "status"]]
    for run in jobs:
        varied = " ".join(override for override in run.overrides if override not in everywhere)
        values = (value_of(row, key) for row in (run.last, run.summary.best))
        scores = ("" if value is None else format_score(metric, value) for value in values)
        rows.append([run.folder.name, varied, *scores, f"{run.summary.seconds:.0f}", run.status])
    return f"{amount(len(jobs), 'job')} by {key} of the last epoch, best first", rows


def _errors(runs: Sequence[RunFolder]) -> list[str]:
    """Return each error once, with the jobs that it ended."""
    failures = (((run.status, run.summary.error), run.folder.name) for run in runs if run.summary.error)
    return [f"{status} ({list_some(names)}): {error}" for (status, error), names in grouped(failures).items()]
