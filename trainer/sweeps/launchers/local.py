"""The local launcher: jobs in this process, or in worker processes that live as long as the sweep."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from augment.support.errors import UserError
from augment.support.files import shown
from augment.support.signals import StopSignals
from augment.support.text import amount, list_some
from trainer.run.config import Config
from trainer.run.sweeping import LocalSettings
from trainer.sweeps.launchers.base import Launcher
from trainer.sweeps.ledger import ENDED, Job
from trainer.sweeps.processes import Command, watch
from trainer.sweeps.work import Worker

# Seconds between two looks at processes that are about to end.
_LOOK = 0.02

# Times that each worker process may die while no job saves a checkpoint or ends; then a job that kills them has failed.
_RESTARTS = 5


@dataclass(frozen=True, kw_only=True)
class Local(LocalSettings, Launcher):
    """Jobs on this machine: one after another in this process, or several at a time in processes of their own."""

    name = "local"

    def __post_init__(self) -> None:
        if not all(name.isdecimal() for name in self._gpus):
            raise UserError(f"hydra.launcher.gpus: {self.gpus!r} is not allowed. Allowed: numbers, such as '0,1'.")

    @property
    def at_a_time(self) -> int:
        """Number of jobs that run at a time."""
        return self.n_jobs or len(self._gpus) or 1

    def launch(self, jobs: Sequence[Job], worker: Worker) -> None:
        """Run the jobs."""
        with self.pool(jobs[0].folder.parent, worker, len(jobs)) as pool:
            if pool is self:
                worker.work(jobs)
            else:
                pool.launch(jobs, worker)

    def pool(self, folder: Path, worker: Worker, count: int) -> AbstractContextManager[Launcher]:
        """Start the worker processes, if there will be any."""
        gpus, own = self._gpus, _visible_gpus()
        at_a_time = min(self.at_a_time, count)
        if at_a_time == 0 or (at_a_time == 1 and not gpus):
            return nullcontext(self)
        if own is not None:
            gpus = [own[int(number)] for number in gpus if int(number) < len(own)]
        commands = [Command.of(folder, worker, log=folder / f"worker-{index}.log") for index in range(at_a_time)]
        for index, command in enumerate(commands if gpus else ()):
            command.environment["CUDA_VISIBLE_DEVICES"] = gpus[index % len(gpus)]
        return WorkerPool(commands, worker.signals)

    def check(self, configs: Iterable[Config]) -> None:
        """Check that the GPUs are there, and that no job names its own by a number if each worker sees a single one."""
        devices, gpus = {config.fit.device for config in configs}, self._gpus
        # With fit.device=auto, jobs would train on the CPU in their place.
        if gpus and devices != {"cpu"}:
            if (own := _visible_gpus()) is None:
                import torch  # the import takes seconds

            seen = torch.cuda.device_count() if own is None else len(own)
            if max(map(int, gpus)) >= seen:
                allowed = f"numbers below {seen}, or fit.device=cpu" if seen else "no hydra.launcher.gpus"
                raise UserError(
                    f"hydra.launcher.gpus={self.gpus}: PyTorch sees {amount(seen, 'GPU')} here. Allowed: {allowed}."
                )
        for device in devices:
            if ":" in device and device != "cuda:0" and gpus:
                raise UserError(
                    f"fit.device={device}: with hydra.launcher.gpus={self.gpus} each job sees only the GPU that it is "
                    "given. Allowed: fit.device=cuda, or no hydra.launcher.gpus."
                )

    @property
    def _gpus(self) -> list[str]:
        return [name.strip() for name in (self.gpus or "").split(",") if name.strip()]


def _visible_gpus() -> list[str] | None:
    """Return the GPUs that the environment leaves to this process, by the driver's names; None: it says nothing."""
    if (given := os.environ.get("CUDA_VISIBLE_DEVICES")) is None:
        return None
    names = (name.strip() for name in given.split(","))
    # As the driver reads it, anything else ends the list; -1 hides all GPUs.
    return list(takewhile(re.compile(r"\d+$|GPU-|MIG-").match, names))


class WorkerPool(Launcher):
    """Worker processes that are given jobs until the end of a context.

    They import PyTorch while this process still checks the sweep. Then they read the ids of jobs from their standard
    input, and end with it: when nothing is left to do, or when this process dies.
    """

    def __init__(self, commands: Sequence[Command], signals: StopSignals) -> None:
        self._commands, self._signals = commands, signals
        self._processes = [command.start() for command in commands]
        self._given: dict[str, Job] = {}
        self._seen: dict[str, str] = {}

    @property
    def at_a_time(self) -> int:
        """Number of jobs that run at a time."""
        return len(self._commands)

    def launch(self, jobs: Sequence[Job], worker: Worker) -> None:
        """Run the jobs; a process that dies is replaced, and its job resumed."""
        self._work(jobs, worker)

    def run_until_one_ends(self, jobs: Sequence[Job], worker: Worker) -> None:
        """Run jobs until one of them has ended."""
        self._work(jobs, worker, until_one_ends=True)

    def _work(self, jobs: Sequence[Job], worker: Worker, *, until_one_ends: bool = False) -> None:
        if not self._given:
            logs = list_some(str(shown(Path(command.log))) for command in self._commands)
            worker.console.print(f"the jobs print to {logs}", highlight=False, markup=False, soft_wrap=True)
        new = {job.id: job for job in jobs if job.id not in self._given}
        self._given |= new
        for process in self._processes:
            _give(process, new)
        died, progress = 0, list[int]()
        try:
            for _ in watch(jobs, worker, self._seen, at_a_time=self.at_a_time, until_one_ends=until_one_ends):
                before, progress = progress, [job.progress for job in jobs if self._seen[job.id] not in ENDED]
                died = died if progress == before else 0
                for index, process in enumerate(self._processes):
                    if process.poll() is None:
                        continue
                    died += process.returncode != 0  # after a failed job it ends well
                    if died > _RESTARTS * len(self._processes):
                        log = shown(Path(self._commands[index].log))
                        raise UserError(f"{log}: the worker processes keep dying; see this log.")
                    _close(process)
                    self._processes[index] = self._commands[index].start()
                    _give(self._processes[index], self._given)
        except BaseException:
            self._end()
            raise

    def dismiss(self) -> None:
        """End the standard input of the processes."""
        for process in self._processes:
            _close(process)

    def _end(self) -> None:
        self.dismiss()
        for process in self._processes:
            process.send_signal(signal.SIGTERM)  # save the job, if there is one, and end
        try:
            while any(process.poll() is None for process in self._processes):
                time.sleep(_LOOK)  # a signal that comes just before `wait` would not be noticed until it returns
        except KeyboardInterrupt:
            self._signals.hold()
            self._end()  # at their own second signal, they end at once
            raise

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *error: object) -> None:
        self._end()


def _give(process: subprocess.Popen[bytes], ids: Iterable[str]) -> None:
    """Name jobs to a worker process."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it died, and is replaced
        process.stdin.write("".join(f"{name}\n" for name in ids).encode())
        process.stdin.flush()


def _close(process: subprocess.Popen[bytes]) -> None:
    """End the standard input of a worker process."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
