"""Search for a good configuration, and find out with fresh seeds whether it is better than the one it began with."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from optuna.trial import TrialState

from augment.cli.parser import table_console
from augment.cli.trust import UntrustedError
from augment.support.errors import UserError, describe_error
from augment.support.files import write_atomically, write_json
from augment.support.formatting import amount
from trainer.run.folder.ownership import FINISHED, PRUNED, RUNNING
from trainer.run.folder.reader import RunFolder
from trainer.run.jobs import check_configs
from trainer.sweeps.comparison import Comparison, compare_runs
from trainer.sweeps.journal import JOB
from trainer.sweeps.launchers import Launcher
from trainer.sweeps.ledger import DELETED, ENDED, Job, plan_jobs, read_ledger, unfinished
from trainer.sweeps.run_groups import group_runs
from trainer.sweeps.search_space import SearchPlan, Value, overrides_of, suggest_from
from trainer.sweeps.study import best_trials, counted
from trainer.sweeps.verdict import Metric
from trainer.sweeps.verdict_text import Part, markdown_page, present, score
from trainer.sweeps.workers import Worker, time_left
from trainer.tasks.registry import range_of

REPORT_FILE, VALUES_FILE = "search.md", "search.json"

# Distance of the seeds that confirm the result from those of the search.
_FRESH = 1000

# The part of a search that chooses among its best trials.
_FINALISTS = "finalists"


def search(plan: SearchPlan, launcher: Launcher, worker: Worker) -> int:
    """Run trials until there are enough, then their finalists, then confirm the winner; return the exit code."""
    worker = replace(worker, search=plan, left=partial(_time_left, plan))
    _run_trials(plan, launcher, worker)
    study, settings = plan.study(), plan.settings
    states = [trial.state for trial in counted(study)]
    words = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}
    counts = [amount(len(states), "trial"), *(f"{states.count(one)} {word}" for one, word in words.items())]
    lines, compared = [f"{', '.join(counts)}."], None
    known = {job.id: job for job in read_ledger(plan.folder)}
    if best := best_trials(study, known)[: max(1, settings.finalists)]:
        metric = Metric(plan.metric, within=range_of(plan.metric))
        reached, top = score(metric, best[0].value or 0.0), _joined(overrides_of(best[0].params, plan.space))
        lines.append(f"Best of the search: {metric.key} {reached} with {top}.")
        lines.append(
            "That score is optimistic, as it was chosen among all trials; only fresh seeds are reported below."
        )
        if settings.finalists:
            candidates = [trial.params for trial in best]
            winner, compared = _finals(plan, candidates, launcher, worker)
            varied = _joined(overrides_of(winner, plan.space))
            lines.append(f"Winner of {amount(len(candidates), 'finalist')}: {varied}")
            if compared is None:
                lines.append("No verdict: no run of the starting configuration with a fresh seed has finished.")
    else:
        present(worker.console, [*lines, "No trial finished."])
        return 1
    parts: tuple[Part, ...] = (lines, compared.table(), compared.lines()) if compared else (lines,)
    present(table_console(), *parts)
    write_atomically(plan.folder / REPORT_FILE, markdown_page(*parts))
    plain = {"lines": [*lines, *(compared.lines() if compared else [])], "comparison": compared and compared.plain()}
    write_json(plan.folder / VALUES_FILE, plain)
    present(worker.console, [str(plan.folder / REPORT_FILE)])
    return 0


def _run_trials(plan: SearchPlan, launcher: Launcher, worker: Worker) -> None:
    jobs: list[Job] = []
    while True:
        begun = _tell(plan)
        jobs = unfinished(jobs)
        known = {job.id for job in jobs}
        jobs += [job for job in begun if job.id not in known and job.status() != RUNNING]
        while len(jobs) < launcher.at_a_time and (job := _next(plan, worker)) is not None:
            jobs.append(job)
        if not jobs and not (jobs := begun):  # of other processes
            return
        launcher.run(jobs, worker, until_one_ends=True)


def _next(plan: SearchPlan, worker: Worker) -> Job | None:
    """Return the job of a new trial; None if there are enough."""
    settings = plan.settings
    while True:
        with plan.locked() as study:
            if len(counted(study)) >= settings.n_trials:
                return None
            study.sampler = plan.sampler(len(study.get_trials(deepcopy=False)))
            trial = study.ask()
            chosen = suggest_from(trial, plan.space)
            overrides = [*plan.fixed, *overrides_of(chosen, plan.space)]
            try:
                check_configs([config := plan.config(chosen)])
            except UntrustedError:  # as of all other trials
                raise
            except UserError as error:
                worker.say(f"trial {trial.number} is not possible: {describe_error(error)}", "red")
                trial.set_user_attr(JOB, "none")  # it counts
                study.tell(trial, state=TrialState.FAIL)
                continue
            (job,) = plan_jobs(plan.folder, [(config, overrides)], plan.fixed, trial=trial.number)
            trial.set_user_attr(JOB, job.id)
        return job


def _tell(plan: SearchPlan) -> list[Job]:
    """Tell the study how trials ended; return the jobs of those that have begun and not ended."""
    study, known = plan.study(), {job.id: job for job in read_ledger(plan.folder)}
    running = []
    for trial in study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
        if (name := trial.user_attrs.get(JOB)) is None:  # another process is about to plan it
            continue
        status = known[name].status() if name in known else DELETED
        if status not in ENDED:  # its folder, which may be a stranger's, does not say what it is
            running.append(replace(known[name], config=plan.config(trial.params).resolved))
            continue
        last = RunFolder(plan.folder / name).last if status == FINISHED else {}
        value = last.get(plan.metric, math.nan)
        ended = TrialState.FAIL if math.isnan(value) else TrialState.COMPLETE
        state = TrialState.PRUNED if status == PRUNED else ended
        study.tell(trial.number, None if math.isnan(value) else value, state=state, skip_if_finished=True)
    return running


def _time_left(plan: SearchPlan, jobs: Sequence[Job], at_a_time: int) -> str:
    """Return how long a part of the search will take, whose jobs are given; of its trials, that of all to come."""
    if jobs[0].trial is None:
        return time_left(jobs, at_a_time)
    further = max(0, plan.settings.n_trials - len(counted(plan.study())))
    jobs = [job for job in read_ledger(plan.folder) if job.trial is not None]
    return time_left(jobs, at_a_time, further)


def _finals(
    plan: SearchPlan, finalists: Sequence[Mapping[str, Value]], launcher: Launcher, worker: Worker
) -> tuple[Mapping[str, Value], Comparison | None]:
    """Choose among the finalists with further seeds; compare the winner with the base on fresh ones."""
    settings, metric = plan.settings, plan.metric
    first = plan.base.seed + 1
    jobs = []
    if len(finalists) > 1:
        jobs = _run_seeds(_FINALISTS, plan, finalists, range(first, first + settings.seeds), launcher, worker)
    runs = [RunFolder(job.folder) for group in jobs for job in group]
    for run in runs:
        run.chooses = False  # this is the choice
    chosen, _ = compare_runs(runs, key=metric)
    winner = finalists[0]
    if chosen is not None:
        best = chosen.rows[0].runs[0].folder.name
        winner = next(o for o, group in zip(finalists, jobs, strict=True) if best in {job.id for job in group})
    fresh = range(first + _FRESH, first + _FRESH + settings.confirm)
    pair = _run_seeds("confirmation", plan, [{}, winner], fresh, launcher, worker)
    base, others = ([RunFolder(job.folder) for job in group] for group in pair)
    kept, _ = group_runs([run.scored_by(metric) for run in base])
    if not kept:
        return winner, None
    return winner, compare_runs([*base, *others], baseline=kept[0].runs[0].folder.name, key=metric)[0]


def _run_seeds(
    part: str,
    plan: SearchPlan,
    configurations: Sequence[Mapping[str, Value]],
    seeds: range,
    launcher: Launcher,
    worker: Worker,
) -> list[list[Job]]:
    """Announce a part of the search, and run configurations with several seeds; return the jobs of each."""
    jobs = []
    for chosen in configurations:
        given = [[*plan.fixed, *overrides_of(chosen, plan.space), f"++seed={seed}"] for seed in seeds]
        configs = [plan.config(chosen, seed) for seed in seeds]
        check_configs(configs)
        pairs = zip(configs, given, strict=True)
        jobs.append(plan_jobs(plan.folder, pairs, plan.fixed, finalist=part == _FINALISTS))
    distinct = list({job.id: job for group in jobs for job in group}.values())
    if unfinished(distinct):
        worker.say(f"{part}: {amount(len(distinct), 'job')} with seeds {seeds[0]} to {seeds[-1]}")
    launcher.run(distinct, worker)
    return jobs


def _joined(overrides: Iterable[str]) -> str:
    return " ".join(override.lstrip("+") for override in overrides)
