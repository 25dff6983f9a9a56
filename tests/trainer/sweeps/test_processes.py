"""Worker processes: where their output goes, and how one is stopped before Slurm queues it again."""

import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from augment.support.signals import StopSignals
from trainer.sweeps.ledger import Job
from trainer.sweeps.processes import Command, watch
from trainer.sweeps.work import Worker


def test_a_worker_writes_to_its_log_once_the_sweep_has_a_folder(tmp_path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from augment.support.signals import StopSignals
from trainer.sweeps import processes
processes.import_run = lambda *_: Path(sys.argv[1]).parent.mkdir()
ids = processes.Orders().first(Path(sys.argv[1]), StopSignals())
print(ids, os.getsid(0) == os.getpid())
"""
    log = tmp_path / "sweep" / "worker-0.log"
    worker = Command((sys.executable, "-c", code, str(log)), {}, str(Path(__file__).parents[3]), str(log)).start()
    assert worker.stdin is not None
    with worker.stdin:
        worker.stdin.write(b"0000000000\n0000000001\n00000")
    assert worker.wait() == 0
    assert log.read_text() == "['0000000000', '0000000001'] True\n"  # Ctrl-C would reach it twice otherwise


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


def test_the_time_left_is_that_of_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when a job has ended and its worker has not begun the next one; and it is printed when a job has ended."""
    seen = [
        ("running", "running", "planned"), ("finished", "running", "planned"), ("finished", "running", "running"),
        ("finished", "finished", "running"), ("finished", "finished", "finished"),
    ]  # fmt: skip
    at = 0
    monkeypatch.setattr(Job, "status", lambda job: seen[at][job.order])
    asked: list[tuple[int, int]] = []
    worker = Worker(
        Console(quiet=True), StopSignals(), left=lambda jobs, at_a_time: asked.append((at, at_a_time)) or ""
    )
    for _ in watch([Job(tmp_path / str(i), i, ()) for i in range(3)], worker):
        at += 1
    assert asked == [(1, 2), (3, 2), (4, 2)]
