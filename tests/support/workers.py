"""Worker processes that train nothing, so that launchers can be tried without it."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.sweeps.ledger import Job
from trainer.sweeps.workers import Command, header_line, job_line

# A worker that claims jobs as ours do, and writes down where it ran each.
WORKER = """
import json, os, signal, sys, time
from types import SimpleNamespace
from pathlib import Path
from rich.console import Console
from augment.support.signals import StopSignals
from trainer.run.folder.summary import Summary
from trainer.sweeps import workers as work

def run(config, overrides, folder, **_):
    (folder / "where.json").write_text(json.dumps([os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES")]))
    deadline = time.monotonic() + 60
    if (deaths := folder / "deaths").exists() and (left := int(deaths.read_text())):
        deaths.write_text(str(left - 1))
        (folder / "last.pt").touch()
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    if (folder / "fail").exists():
        (folder / "fail").unlink()
        1 / 0
    while (folder / "hold").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.2)
    summary = Summary("finished", folder, 1, {}, {}, 1.0)
    summary.write()
    return summary

work.run_job = run
worker = work.Worker(Console(), StopSignals())
worker._config = lambda job, resumed: SimpleNamespace(resolved={})
work.work_from_lines(Path(sys.argv[1]), worker, iter(sys.stdin))
"""


def command(folder: Path, worker: object, jobs: Sequence[Job], environment: Mapping[str, str]) -> Command:
    """Return the command of such a worker; it takes the place of `Command.of`."""
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), **environment}
    text = "".join([header_line(None, len(jobs)), *map(job_line, jobs)])
    return Command((sys.executable, "-c", WORKER, str(folder)), environment, str(folder), text)


def where(jobs: list[Job]) -> list[list[Any]]:
    """Return which process ran each job, and the GPUs that it saw."""
    return [json.loads((job.folder / "where.json").read_text()) for job in jobs]
