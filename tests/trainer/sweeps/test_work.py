"""Workers: they run what is left, once, and name what fails."""

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from jobs import FakeRuns, runs

from augment.support.errors import UserError
from trainer.loop.checkpoint import LAST, FitState, load
from trainer.run.config import Config, load_config
from trainer.run.jobs import check_jobs
from trainer.run.summary import read_summary
from trainer.sweeps.ledger import Job, plan_jobs
from trainer.sweeps.work import Worker, watch

__all__ = ["runs"]


@pytest.fixture
def jobs(tmp_path: Path, runs: FakeRuns) -> list[Job]:
    overrides = [[f"++seed={seed}"] for seed in range(4)]
    return plan_jobs(tmp_path, zip(check_jobs(overrides), overrides, strict=True))


def test_each_job_runs_once_in_order(runs: FakeRuns, jobs: list[Job]) -> None:
    runs.worker().work(jobs[:3])
    assert runs.runs == [(job.id, False) for job in jobs[:3]]
    assert runs.plans == [True, False, False]  # more of them would bury the scores
    runs.worker().work(jobs)
    assert runs.runs[3:] == [(jobs[3].id, False)]


def test_a_failed_job_is_named_and_left_alone_until_it_is_retried(runs: FakeRuns, jobs: list[Job]) -> None:
    runs.fail = lambda config: ValueError("no luck") if config["seed"] == 1 else None
    runs.worker().work(jobs)
    runs.worker().work(jobs)
    assert [job.status() for job in jobs] == ["finished", "failed", "finished", "finished"]
    ending = read_summary(jobs[1].folder)
    assert ending is not None
    assert ending.error == "ValueError: no luck"
    assert len(runs.runs) == 4
    jobs[1].retry()
    runs.fail = lambda config: None
    runs.worker().work(jobs)
    assert runs.runs[4:] == [(jobs[1].id, False)]


def test_an_interrupted_job_is_resumed_in_its_folder(runs: FakeRuns, jobs: list[Job]) -> None:
    (jobs[0].folder / LAST).touch()
    (jobs[0].folder / "summary.json").write_text('{"status": "running"}')
    (jobs[1].folder / "summary.json").write_text('{"status": "interrupted"}')
    runs.worker().work(jobs[:2])
    assert runs.runs == [(jobs[0].id, True), (jobs[1].id, False)]
    assert load_config(jobs[0].folder)["fit"]["resume"] == str(jobs[0].folder)


def test_a_check_names_the_first_mistake_if_no_job_can_run_that_no_other_process_runs(
    runs: FakeRuns, jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    (jobs[0].folder / LAST).touch()
    checked = []

    def config(self: Worker, job: Job, resumed: bool) -> None:
        checked.append((job.id, resumed))
        if job not in jobs[2:]:
            raise UserError(f"seed {job.order} cannot run.")

    monkeypatch.setattr(Worker, "_config", config)
    runs.worker().check(jobs)
    assert checked == [(job.id, job is jobs[0]) for job in jobs[:3]]
    with pytest.raises(UserError, match="seed 0 cannot run"):
        runs.worker().check(jobs[:2])
    monkeypatch.setattr(Job, "worker", lambda self: "process 17 on HOST")
    runs.worker().check(jobs[:2])


def test_a_job_whose_folder_was_deleted_is_not_waited_for(runs: FakeRuns, jobs: list[Job]) -> None:
    shutil.rmtree(jobs[1].folder)
    runs.worker().work(jobs[:3])
    assert list(watch(jobs[:3], runs.worker(), 1)) == []
    assert [job.status() for job in jobs] == ["finished", "deleted", "finished", "planned"]


def test_a_job_whose_checkpoint_is_damaged_fails(
    runs: FakeRuns, jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if no other is left."""

    def check_resume(config: Config) -> None:
        if config.fit.resume:
            load(Path(config.fit.resume, LAST), FitState)

    monkeypatch.setattr("trainer.run.resume.check_resume", check_resume)
    (jobs[0].folder / LAST).write_text("damaged")
    worker = runs.worker()
    worker.check(jobs[:1])
    worker.work(jobs[:2])
    assert [job.status() for job in jobs[:2]] == ["failed", "finished"]
    ending = read_summary(jobs[0].folder)
    assert ending is not None
    assert ending.error.endswith(
        f"{LAST}: not a checkpoint, or cut short. Allowed: delete it, and the job begins again."
    )


def test_a_signal_ends_the_work_after_the_current_job(runs: FakeRuns, jobs: list[Job]) -> None:
    worker = runs.worker()

    def ask(config: object) -> float:
        worker.signals.asked = len(runs.runs) == 2
        return 0.5

    runs.score = ask
    with pytest.raises(KeyboardInterrupt, match=r"^stopped; no further job was started$"):
        worker.work(jobs)
    assert len(runs.runs) == 2


def test_a_job_whose_processes_die_again_and_again_has_failed(runs: FakeRuns, jobs: list[Job]) -> None:
    (jobs[0].folder / ".attempts").write_text("0\n" * 5)
    runs.worker().work(jobs[:2])
    assert [job.status() for job in jobs[:2]] == ["failed", "finished"]
    ending = read_summary(jobs[0].folder)
    assert ending is not None
    assert "5 processes in a row died while running it" in ending.error


def test_a_configuration_that_changed_since_is_not_run(runs: FakeRuns, jobs: list[Job]) -> None:
    other = Job(jobs[0].folder, 0, ("++seed=7",))
    runs.worker().work([other])
    ending = read_summary(other.folder)
    assert ending is not None
    assert "its configuration has changed since the sweep was planned" in ending.error
    assert runs.runs == []


def test_jobs_of_others_are_waited_for(runs: FakeRuns, jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    claim = ExitStack()
    claim.enter_context(jobs[0].claimed())
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            claim.close()  # its process has died

    monkeypatch.setattr("trainer.sweeps.work.time.sleep", wait)
    worker, at_a_time = runs.worker(), []
    worker.left = lambda jobs, count: at_a_time.append(count) or ""
    worker.work(jobs[:2])
    assert runs.runs == [(jobs[1].id, False), (jobs[0].id, False)]
    assert len(waits) == 3
    assert at_a_time == [2, 1]  # with the other process, and without it
