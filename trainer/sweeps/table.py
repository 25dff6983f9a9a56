"""The table of a finished sweep: all jobs, the best first, means over seeds and folds, and verdicts."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from augment.cli.parser import writing
from augment.support.files import write_atomically, write_json
from augment.support.text import amount, list_some
from trainer.run.run_folder import RunFolder, find_runs
from trainer.run.summary import FINISHED, PRUNED
from trainer.sweeps.comparison import compare_groups, one_of, plain_group, rank
from trainer.sweeps.groups import REPEATED, group_runs, scored
from trainer.sweeps.verdict import Metric
from trainer.sweeps.words import Table, left_out, markdown_lines, markdown_table, print_lines, print_table, score
from trainer.tasks.registry import DEFAULT, range_of, task_named

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
