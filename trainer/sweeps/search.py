"""Search for a good configuration, then compare it with the starting configuration on fresh seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from optuna.trial import FrozenTrial, TrialState

from augment.cli.parser import table_console
from augment.cli.trust import UntrustedError
from augment.support.errors import UserError, describe_error
from augment.support.files import write_atomically, write_json
from augment.support.formatting import amount
from augment.support.nested import grouped
from trainer.run.folder.reader import RunFolder
from trainer.run.folder.run_names import score_sort_key
from trainer.run.folder.summary import FAILED, RUNNING
from trainer.run.jobs import check_configs
from trainer.sweeps.comparison import Comparison, compare_runs
from trainer.sweeps.launchers import Launcher
from trainer.sweeps.ledger import Job, plan_jobs, read_ledger, unfinished
from trainer.sweeps.run_groups import group_runs
from trainer.sweeps.search_space import SearchPlan, Value, overrides_of, suggest_from
from trainer.sweeps.trials import Trial
from trainer.sweeps.verdict import Metric
from trainer.sweeps.verdict_text import Part, format_score, markdown_page, present
from trainer.sweeps.workers import Worker, time_left
from trainer.tasks.registry import range_of

REPORT_FILE, VALUES_FILE = "search.md", "search.json"

# Distance between the seeds that choose the winner and the seeds that confirm it.
_FRESH = 1000

# The number of invalid trials in a row after which a search ends. Its space may come from a stranger.
_MAX_INVALID = 100

# The part of a search that chooses among its best trials.
_FINALISTS = "finalists"

Chosen = Mapping[str, Value]  # the values that a trial chose, by key


def search(plan: SearchPlan, launcher: Launcher, worker: Worker) -> int:
    """Run the trials, then the finalists, then the confirmation. Return the exit code."""
    worker = replace(worker, search=plan, estimate=partial(_time_left, plan))
    _run_trials(plan, launcher, worker)
    trials, settings = plan.frozen(), plan.settings
    states = [trial.state for trial in trials]
    words = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}
    counts = [f"{states.count(state)} {word}" for state, word in words.items()]
    lines = [f"{', '.join([amount(len(states), 'trial'), *counts])}."]
    best = _best(plan, trials)[: max(1, settings.finalists)]
    if not best:
        present(worker.console, [*lines, "No trial finished."])
        return 1
    reached = format_score(Metric(plan.metric, within=range_of(plan.metric)), best[0].value or 0.0)
    lines += [
        f"Best of the search: {plan.metric} {reached} with {_joined(best[0].params, plan)}.",
        "That score is too optimistic, because it is the best of all trials.",
    ]
    parts: tuple[Part, ...] = (lines,)
    compared = None
    if settings.finalists:
        finalists = [trial.params for trial in best]
        winner = _choose(plan, finalists, launcher, worker)
        compared = _confirm(plan, winner, launcher, worker)
        lines.append(f"Best of {amount(len(finalists), 'finalist')}: {_joined(winner, plan)}")
        if compared is None:
            lines.append("No verdict: no run of the starting configuration with a fresh seed has finished.")
        else:
            lines.append("The scores below are not too optimistic, because their seeds are new.")
            parts = lines, compared.table(), compared.lines()
    present(table_console(), *parts)
    write_atomically(plan.folder / REPORT_FILE, markdown_page(*parts))
    verdicts = compared.lines() if compared else []
    plain = {"lines": [*lines, *verdicts], "comparison": compared and compared.plain()}
    write_json(plan.folder / VALUES_FILE, plain)
    present(worker.console, [str(plan.folder / REPORT_FILE)])
    return 0


def _run_trials(plan: SearchPlan, launcher: Launcher, worker: Worker) -> None:
    """Run trials until there are enough."""
    jobs: list[Job] = []
    while True:
        begun = _started_jobs(plan)
        jobs = unfinished(jobs)
        known = {job.id for job in jobs}
        jobs += [job for job in begun if job.id not in known and job.status() != RUNNING]
        while len(jobs) < launcher.at_a_time and (job := _plan_next(plan, worker)) is not None:
            jobs.append(job)
        if not jobs:
            jobs = begun  # other processes run these
        if not jobs:
            return
        launcher.run(jobs, worker, until_one_ends=True)


def _plan_next(plan: SearchPlan, worker: Worker) -> Job | None:
    """Plan the job of a new trial. Return None if there are enough trials.

    Raises:
        UserError: many trials in a row are invalid.
    """
    for _ in range(_MAX_INVALID):
        with plan.locked():
            trials = plan.frozen()
            if len(trials) >= plan.settings.n_trials:
                return None
            chosen = suggest_from(plan.study(trials).ask(), plan.space)
            try:
                check_configs([config := plan.config(chosen)])
            except UntrustedError:  # all other trials would raise the same error
                raise
            except UserError as error:
                worker.say(f"trial {len(trials)} is invalid: {describe_error(error)}", "red")
                plan.add(Trial(chosen, ""))
                continue
            overrides = [*plan.fixed, *overrides_of(chosen, plan.space)]
            (job,) = plan_jobs(plan.folder, [(config, overrides)], plan.fixed, trial=len(trials))
            plan.add(Trial(chosen, job.id))
        return job
    raise UserError(
        f"{_MAX_INVALID} trials in a row are invalid, see the messages above. Start a new search with another space."
    )


def _started_jobs(plan: SearchPlan) -> list[Job]:
    """Return the jobs of the trials that have started but not ended."""
    jobs = {job.id: job for job in unfinished(read_ledger(plan.folder))}
    trials = {trial.job: trial for trial in plan.recorded().trials if trial.job in jobs}
    # The folder may come from a stranger, so the configuration in it is not used.
    return [replace(jobs[name], config=plan.config(trial.chosen).resolved) for name, trial in trials.items()]


def _best(plan: SearchPlan, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the complete trials, the best first. Each job counts once."""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    complete.sort(key=lambda trial: score_sort_key(plan.metric, trial.value or 0.0))
    of_job = grouped((trial.user_attrs["job"], trial) for trial in complete)
    return [same[0] for same in of_job.values()]


def _time_left(plan: SearchPlan, jobs: Sequence[Job], at_a_time: int) -> str:
    """Estimate how long some jobs will take. If they are trials, include the trials that are still to come."""
    if jobs[0].trial is None:
        return time_left(jobs, at_a_time)
    further = max(0, plan.settings.n_trials - len(plan.recorded().trials))
    jobs = [job for job in read_ledger(plan.folder) if job.trial is not None]
    return time_left(jobs, at_a_time, further)


def _choose(plan: SearchPlan, finalists: Sequence[Chosen], launcher: Launcher, worker: Worker) -> Chosen:
    """Run the finalists with more seeds. Return the one with the best mean among those with the fewest failed runs."""
    if len(finalists) == 1:
        return finalists[0]
    first = plan.base.seed + 1
    jobs = _run_seeds(_FINALISTS, plan, finalists, range(first, first + plan.settings.seeds), launcher, worker)
    by_folder = {job.folder: number for number, same in enumerate(jobs) for job in same}
    failures = [sum(job.status() == FAILED for job in same) for same in jobs]
    runs = [RunFolder(folder) for folder in by_folder]
    for run in runs:
        run.candidate = False  # otherwise these scores would not count
    compared, _ = compare_runs(runs, key=plan.metric)
    if compared is None:
        return finalists[0]
    found = [by_folder[row.runs[0].folder] for row in compared.rows]
    return finalists[min(found, key=failures.__getitem__)]


def _confirm(plan: SearchPlan, winner: Chosen, launcher: Launcher, worker: Worker) -> Comparison | None:
    """Compare the winner with the starting configuration on fresh seeds. Return None without a baseline run."""
    first = plan.base.seed + 1 + _FRESH
    fresh = range(first, first + plan.settings.confirm)
    jobs = _run_seeds("confirmation", plan, [{}, winner], fresh, launcher, worker)
    base, others = ([RunFolder(job.folder) for job in same] for same in jobs)
    kept, _ = group_runs([run.scored_by(plan.metric) for run in base])
    return compare_runs([*base, *others], key=plan.metric)[0] if kept else None


def _run_seeds(
    part: str, plan: SearchPlan, configurations: Sequence[Chosen], seeds: range, launcher: Launcher, worker: Worker
) -> list[list[Job]]:
    """Run configurations with several seeds, as one part of a search. Return the jobs of each configuration."""
    jobs = []
    for chosen in configurations:
        overrides = [[*plan.fixed, *overrides_of(chosen, plan.space), f"++seed={seed}"] for seed in seeds]
        configs = [plan.config(chosen, seed) for seed in seeds]
        check_configs(configs)
        pairs = zip(configs, overrides, strict=True)
        jobs.append(plan_jobs(plan.folder, pairs, plan.fixed, finalist=part == _FINALISTS))
    distinct = list({job.id: job for same in jobs for job in same}.values())
    if unfinished(distinct):
        worker.say(f"{part}: {amount(len(distinct), 'job')} with seeds {seeds[0]} to {seeds[-1]}")
    launcher.run(distinct, worker)
    return jobs


def _joined(chosen: Chosen, plan: SearchPlan) -> str:
    return " ".join(override.lstrip("+") for override in overrides_of(chosen, plan.space))
