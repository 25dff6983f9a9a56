"""Jobs of a sweep: the ledger of them, and workers, which run what is left, once, and name what fails."""

import errno
import fcntl
import json
import shutil
import signal
import sys
from contextlib import ExitStack
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from jobs import FakeRuns, runs
from rich.console import Console

from augment.support.errors import UserError
from augment.support.signals import StopSignals
from trainer.loop.checkpoint import LAST, FitState, load
from trainer.loop.ranks import LostRankError
from trainer.run.config.schema import Config, load_config, parse_config
from trainer.run.folder.locks import claimed
from trainer.run.folder.reader import RunFolder
from trainer.run.folder.summary import Summary
from trainer.run.jobs import check_jobs
from trainer.sweeps.ledger import Job, job_id, plan_jobs, read_ledger, unfinished
from trainer.sweeps.workers import Command, Worker, watch

# --- the ledger ---


def config(**sections: Any) -> Config:
    given = {"data": {"source": "sample"}, "model": {"kind": "cnn"}, "aug": None, "fit": {}, "callbacks": {}}
    return parse_config(given | sections)


def test_planning_again_extends_a_sweep(tmp_path: Path) -> None:
    one, two, three = config(), config(seed=1), config(seed=2)
    first = plan_jobs(tmp_path, [(one, ["a=1", "seed=0"]), (two, ["a=1", "seed=1"])], ["a=1"])
    assert [(job.order, job.varied) for job in first] == [(0, ("seed=0",)), (1, ("seed=1",))]
    more = plan_jobs(tmp_path, [(three, ["a=1", "seed=2"]), (two, ["a=1", "seed=1"]), (three, [])], ["a=1"])
    assert [(job.id, job.order) for job in more] == [(job_id(three), 2), (job_id(two), 1)]
    assert read_ledger(tmp_path) == [*first, more[0]]


def test_the_command_decides_what_a_job_is(tmp_path: Path) -> None:
    """Whoever can write to the folder must not choose the overrides that a trusted command runs."""
    (job,) = plan_jobs(tmp_path, [(config(), ["seed=0"])])
    file = job.folder / "job.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"overrides": ["plugins=[evil]"]}))
    assert plan_jobs(tmp_path, [(config(), ["seed=0"])]) == [job] == read_ledger(tmp_path)


def test_statuses(tmp_path: Path) -> None:
    (job,) = plan_jobs(tmp_path, [(config(), ["seed=0"])])
    assert job.status() == "planned"
    with claimed(job.folder) as mine:
        assert (mine, job.status()) == (True, "running")
        with claimed(job.folder) as again:
            assert not again
        (job.folder / "summary.json").write_text('{"status": "running"}')
    assert job.status() == "killed"
    for status, stopped in (("finished", ""), ("failed", ""), ("interrupted", ""), ("pruned", "pruned after 2 epochs")):
        written = "finished" if status == "pruned" else status
        Summary(written, job.folder, 2, {}, {}, 1.0, stopped=stopped).write()
        assert job.status() == status
        assert unfinished([job]) == ([job] if status == "interrupted" else [])


def test_without_locks_a_second_process_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    (job,) = plan_jobs(tmp_path, [(config(), ["seed=0"])])
    for _ in range(2):  # the first one has released it
        with claimed(job.folder) as mine:
            assert mine
    (job.folder / ".lock").write_text("process 17 on another-host\n")
    with (
        pytest.raises(UserError, match=r"process 17 on another-host uses this folder, and .* has no locks"),
        claimed(job.folder),
    ):
        raise AssertionError


def test_only_a_failed_job_is_retried(tmp_path: Path) -> None:
    (job,) = plan_jobs(tmp_path, [(config(), ["seed=0"])])
    job.retry()
    assert job.status() == "planned"
    for status, then in (("finished", "finished"), ("failed", "interrupted")):
        Summary(status, job.folder, 2, {}, {}, 1.0, "why").write()
        job.retry()
        assert job.status() == then


LONG = json.dumps({"order": 1, "overrides": ["x" * 2**20]})


@pytest.mark.parametrize("text", ["", "[]", '{"order": 1}', '{"order": "x", "overrides": []}', LONG], ids=str.__len__)
def test_a_damaged_job_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "job.json").write_text(text)
    with pytest.raises(UserError, match=r"one/job\.json is not a valid sweep job"):
        read_ledger(tmp_path)


# --- workers ---


__all__ = ["runs"]


@pytest.fixture
def jobs(tmp_path: Path, runs: FakeRuns) -> list[Job]:
    overrides = [[f"++seed={seed}"] for seed in range(4)]
    return plan_jobs(tmp_path, zip(check_jobs(overrides), overrides, strict=True))


def test_each_job_runs_once_in_order(runs: FakeRuns, jobs: list[Job]) -> None:
    runs.worker().work(jobs[:3])
    assert runs.runs == [(job.id, False) for job in jobs[:3]]
    runs.worker().work(jobs)
    assert runs.runs[3:] == [(jobs[3].id, False)]


def test_an_interrupted_job_is_resumed_in_its_folder(runs: FakeRuns, jobs: list[Job]) -> None:
    (jobs[0].folder / LAST).touch()
    (jobs[0].folder / "summary.json").write_text('{"status": "running"}')
    (jobs[1].folder / "summary.json").write_text('{"status": "interrupted"}')
    runs.worker().work(jobs[:2])
    assert runs.runs == [(jobs[0].id, True), (jobs[1].id, False)]
    assert load_config(jobs[0].folder)["fit"]["resume"] == str(jobs[0].folder)


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

    monkeypatch.setattr("trainer.run.config.checks.check_resume", check_resume)
    (jobs[0].folder / LAST).write_text("damaged")
    worker = runs.worker()
    worker.check(jobs[:1])
    worker.work(jobs[:2])
    assert [job.status() for job in jobs[:2]] == ["failed", "finished"]
    error = RunFolder(jobs[0].folder).summary.error
    assert f"{LAST} is truncated, or is not a checkpoint" in error
    assert error.endswith("To start the job again, delete this checkpoint.")


def test_a_signal_ends_the_work_after_the_current_job(runs: FakeRuns, jobs: list[Job]) -> None:
    worker = runs.worker()

    def ask(config: object) -> float:
        worker.signals.asked = len(runs.runs) == 2
        return 0.5

    runs.score = ask
    with pytest.raises(KeyboardInterrupt, match=r"^Stopped\. No more jobs will start\.$"):
        worker.work(jobs)
    assert len(runs.runs) == 2


def test_a_configuration_that_changed_since_is_not_run(runs: FakeRuns, jobs: list[Job]) -> None:
    other = replace(jobs[0], config=jobs[1].config)
    runs.worker().work([other])
    assert "its configuration has changed since the sweep was planned" in RunFolder(other.folder).summary.error
    assert runs.runs == []


def test_jobs_of_others_are_waited_for(runs: FakeRuns, jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    claim = ExitStack()
    claim.enter_context(claimed(jobs[0].folder))
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            claim.close()  # its process has died

    monkeypatch.setattr("trainer.sweeps.workers.time.sleep", wait)
    runs.worker().work(jobs[:2])
    assert runs.runs == [(jobs[1].id, False), (jobs[0].id, False)]
    assert len(waits) == 3


def test_each_job_on_several_gpus_gets_processes_of_its_own(
    runs: FakeRuns, jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process only starts them. A job that another process runs is left to it."""
    started: list[str] = []

    def start(command: Command, check: object) -> int:
        assert command.arguments[-2:] == ("--ranks", "2")
        first, job = map(json.loads, command.text.splitlines())
        assert (first["jobs"], first["ranks"]) == (1, 2)
        started.append(job["folder"])
        if job["folder"] == jobs[2].id:
            return 1
        Summary("failed" if job["folder"] == jobs[0].id else "finished", jobs[0].folder.parent / job["folder"]).write()
        return 0

    monkeypatch.setattr(Command, "__call__", start)
    worker = runs.worker()
    worker.ranks = 2
    worker.work(jobs[:2])
    assert (started, runs.runs) == ([job.id for job in jobs[:2]], [])
    with pytest.raises(UserError, match=rf"^job {jobs[2].id}: its 2 processes .* exit code 1.* sweep resume "):
        worker.work(jobs[2:3])
    with claimed(jobs[3].folder):
        assert not worker._try(jobs[3], jobs)


@pytest.mark.parametrize(("why", "status"), [("", "interrupted"), ("rank 1: ValueError", "failed")])
def test_a_job_whose_process_was_killed_can_continue(
    why: str, status: str, runs: FakeRuns, jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not failed, unless a process reported an error."""
    monkeypatch.setattr("trainer.sweeps.workers.reported", lambda: why)
    monkeypatch.setattr("trainer.sweeps.workers.launched_ranks", lambda: 2)
    runs.fail = lambda config: LostRankError("one of the 2 ranks has ended.")
    with pytest.raises(SystemExit) as ended:  # which ends the other ranks
        runs.worker().work(jobs)
    assert (ended.value.code, jobs[0].status(), len(runs.runs)) == (1, status, 1)


def test_before_slurm_queues_a_worker_again_its_job_is_saved(tmp_path: Path) -> None:
    """As submitit does on preemption and at the time limit: `checkpoint` in a signal handler of the job."""
    submitit = pytest.importorskip("submitit")
    code = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(130))\nprint('ready')\n"
    code += "from pathlib import Path\nPath('ready').touch()\nsignal.pause()"
    command = Command((sys.executable, "-c", code), {}, str(tmp_path))
    handed: list[Any] = []

    def on_preemption(*_: object) -> None:
        if (tmp_path / "ready").exists():
            handed.append(command.checkpoint())
        else:
            signal.setitimer(signal.ITIMER_REAL, 0.1)

    before = signal.signal(signal.SIGALRM, on_preemption)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        assert command() == 130
    finally:
        signal.signal(signal.SIGALRM, before)
    assert [type(one) for one in handed] == [submitit.helpers.DelayedSubmission]


def test_what_becomes_of_jobs_is_printed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also why one failed; not that one was interrupted before, which is about to be resumed."""
    seen = [("interrupted", "planned"), ("running", "running"), ("running", "failed"), ("finished", "failed")]
    at = 0
    monkeypatch.setattr(Job, "status", lambda job: seen[at][job.order])
    jobs = [Job(tmp_path / str(order), order, (), (f"++seed={order}",)) for order in range(2)]
    worker = Worker(Console(file=(printed := StringIO()), width=200), StopSignals())
    for _ in watch(jobs, worker, 2):
        at += 1
        for order, job in enumerate(jobs):
            if seen[at][order] in ("failed", "finished"):
                job.folder.mkdir(exist_ok=True)
                error = "ValueError: no [luck]" if order else ""
                Summary(seen[at][order], job.folder, 2, {}, {}, 1.0, error, planned=2).write()
    assert printed.getvalue().splitlines() == [
        "job 0 (1 of 2) running: seed=0",
        "job 1 (2 of 2) running: seed=1",
        "job 1 (2 of 2) failed: ValueError: no [luck]",
        f"job 0 (1 of 2): finished after 2 epochs: no score, 1 s, in {jobs[0].folder}",
    ]
