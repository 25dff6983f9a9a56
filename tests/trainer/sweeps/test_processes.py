"""Worker processes: where their output goes, and how one is stopped before Slurm queues it again."""

import signal
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from augment.support.files import write_json
from augment.support.signals import StopSignals
from trainer.run.summary import Summary
from trainer.sweeps.ledger import JOB_FILE, Job
from trainer.sweeps.work import Command, Worker, time_left, watch


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


def test_the_last_job_takes_as_long_with_any_number_of_workers(tmp_path: Path) -> None:
    jobs = [Job(tmp_path / str(order), order, ()) for order in range(2)]
    for job in jobs:
        write_json(job.folder / JOB_FILE, {})
    Summary("finished", jobs[0].folder, 2, {}, {}, 60.0).write()
    assert time_left(jobs, 1) == time_left(jobs, 4) == "1 job left, about 1 min 0 s"


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
        f"job 0 (1 of 2): finished after 2 epochs: no val_accuracy, 1 s, in {jobs[0].folder}",
    ]
