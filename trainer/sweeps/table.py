"""The table of a finished sweep: all jobs, the best first, means over seeds and folds, and verdicts."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import starmap
from pathlib import Path
from typing import Any

from rich.console import Console

from augment.cli.parser import writing
from augment.support.files import write_atomically, write_json
from augment.support.text import amount, list_some
from trainer.sweeps.comparison import MEANS, compare_groups, mean_cells, one_of, plain_group, rank
from trainer.sweeps.groups import (
    REPEATED,
    Group,
    counted,
    make_group,
    name_groups,
    same_configuration,
    score_keys,
    without_chosen,
)  # fmt: skip
from trainer.sweeps.runs import FINISHED, PRUNED, Run, find_runs
from trainer.sweeps.show import Table, markdown_lines, markdown_table, print_lines, print_table
from trainer.sweeps.verdict import Metric
from trainer.sweeps.words import left_out, score
from trainer.tasks.registry import DEFAULT, range_of, task_named

TABLE_FILE, VALUES_FILE = "sweep.md", "sweep.json"

# The beginnings of overrides that repeat an experiment.
_REPEATED = tuple(f"{key}=" for key in REPEATED)


def _best_first(runs: Sequence[Run]) -> list[tuple[Run, str]]:
    """Return runs with the keys of their scores, the best score of the last epoch first, those without a score last."""

    def place(job: tuple[Run, str]) -> tuple[bool, str, float]:
        run, key = job
        score = _value(run.last, key)
        return score is None, *rank(key, score or 0.0)

    return sorted(zip(runs, score_keys(runs), strict=True), key=place)


def _plain(run: Run, key: str) -> dict[str, Any]:
    return {
        "name": run.folder.name,
        "overrides": run.overrides,
        "status": run.status,
        "last": _value(run.last, key),
        "best": _value(run.best, key),
        "seconds": run.summary.seconds,
        "error": run.summary.error,
        "score": key,
    }


def _value(row: Mapping[str, float], key: str) -> float | None:
    value = row.get(key)
    return None if value is None or math.isnan(value) else value


def report_sweep(folder: Path, console: Console, *, write: bool = True) -> bool:
    """Print the tables of a sweep, and write them into its folder; return whether all its jobs finished or were pruned.

    Args:
        folder: the folder.
        console: where to print.
        write: whether to write.
    """
    runs = [run for run in find_runs([folder]) if run.folder.parent == folder]  # not those of a sweep in it
    jobs, varied = _best_first(runs), _varied(runs)
    groups, left = _over_seeds(runs, varied)
    means = sorted(
        (group for group in groups if len(group.runs) > 1),
        key=lambda group: rank(group.metric.key, group.mean),
    )
    compared = compare_groups(groups, [left_out(left)] if left else []) if means else None
    tables = [_job_table(jobs, varied), *([_mean_table(means, varied)] if means else [])]
    for table in tables:
        print_table(console, table)
    lines = _advice(runs, varied) if compared is None else compared.lines() if len(groups) > 1 else compared.notes
    lines = [*lines, *_errors([run for run, _ in jobs])]
    print_lines(console, lines)
    console.print(str(folder), highlight=False, soft_wrap=True, markup=False)
    if write:
        plain: dict[str, Any] = {"jobs": [*starmap(_plain, jobs)], "means": [*map(plain_group, means)]}
        plain |= {"comparison": compared.plain()} if compared else {}
        with writing(str(folder / TABLE_FILE)):
            texts = [*map(markdown_table, tables), *([markdown_lines(lines)] if lines else [])]
            write_atomically(folder / TABLE_FILE, "\n".join(texts))
            write_json(folder / VALUES_FILE, plain)
    return all(run.status in (FINISHED, PRUNED) for run in runs)


def _job_table(jobs: Sequence[tuple[Run, str]], varied: set[str]) -> Table:
    shown = one_of({key for run, key in jobs if _value(run.last, key) is not None} or {task_named(DEFAULT).monitor})
    rows = [["job", "what it varies", "last", "best", "seconds", "status"]]
    for run, key in jobs:
        which = f"{key} " if shown == "score" else ""
        values, metric = (_value(row, key) for row in (run.last, run.best)), Metric(key, within=range_of(key))
        scores = ("" if value is None else which + score(metric, value) for value in values)
        rows.append([run.folder.name, " ".join(_kept(run, varied)), *scores, f"{run.summary.seconds:.0f}", run.status])
    return f"{amount(len(jobs), 'job')} by {shown} of the last epoch, the best first", rows


def _mean_table(means: Sequence[Group], varied: set[str]) -> Table:
    key = one_of({group.metric.key for group in means})
    rows = [["what it varies", *MEANS], *(mean_cells(group, named=key == "score") for group in means)]
    if not any(group.name for group in means):  # nothing but seeds or folds
        rows = [cells[1:] for cells in rows]
    over = [name for key, name in REPEATED.items() if any(override.startswith(f"{key}=") for override in varied)]
    return f"last {key} over {' and '.join(over)}", rows


def _errors(runs: Sequence[Run]) -> list[str]:
    """Return each error once, with the jobs that it ended."""
    names: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for run in runs:
        if run.summary.error:
            names[run.status, run.summary.error].append(run.folder.name)
    return [f"{status} ({list_some(some)}): {error}" for (status, error), some in names.items()]


def _varied(runs: Sequence[Run]) -> set[str]:
    """Return the overrides that not all jobs have."""
    everywhere = set.intersection(*[set(run.overrides) for run in runs]) if runs else set()
    return {override for run in runs for override in run.overrides} - everywhere


def _kept(run: Run, varied: set[str]) -> list[str]:
    return [override for override in run.overrides if override in varied]


def _over_seeds(runs: Sequence[Run], varied: set[str]) -> tuple[list[Group], list[tuple[str, str]]]:
    """Group jobs that differ in their seed or fold alone, in their order; with those that do not count, and why."""
    if not any(override.startswith(_REPEATED) for override in varied):
        return [], []  # the same job several times
    runs, chosen = without_chosen(runs)
    left = [(run.folder.name, reason) for run, reason in chosen]
    keys = score_keys(runs)
    of_run = dict(zip((run.folder for run in runs), keys, strict=True))
    kept: list[list[Run]] = []
    for same in same_configuration(runs, keys):
        good, bad = counted(same, [of_run[run.folder] for run in same])
        kept += [good] if good else []
        left += [(run.folder.name, reason) for run, reason in bad]
    names = [" ".join(o for o in _kept(rows[0], varied) if not o.startswith(_REPEATED)) for rows in kept]
    if len({*names}) < len(names):  # a file was changed between two commands
        names = name_groups(kept)
    return [make_group(name, rows, of_run[rows[0].folder]) for name, rows in zip(names, kept, strict=True)], left


def _advice(runs: Sequence[Run], varied: set[str]) -> list[str]:
    """Return what to do if a sweep has no replicates; a search makes its own."""
    settings = {override for override in varied if not override.startswith(_REPEATED)}
    if len([run for run in runs if run.status == FINISHED]) < 2 or not settings or any(run.trial for run in runs):
        return []
    return ["One seed says nothing about chance: to compare, add seed=0,1,2,3,4 to the sweep."]
