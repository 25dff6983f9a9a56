"""The local launcher: jobs in this process, or in worker processes that live as long as the sweep."""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from augment.support.errors import UserError
from augment.support.files import shown
from augment.support.text import amount, list_some
from trainer.run.config import Config
from trainer.run.summary import RUNNING
from trainer.run.sweeping import LocalSettings
from trainer.sweeps.launchers.base import Launcher
from trainer.sweeps.ledger import ENDED, Job
from trainer.sweeps.processes import NAMED_LATER, Command, watch
from trainer.sweeps.work import ATTEMPTS, Worker

_VISIBLE = "CUDA_VISIBLE_DEVICES"

# Seconds between two looks at processes that are about to end.
_LOOK = 0.02


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

    def launch(self, jobs: Sequence[Job], worker: Worker, *, until_one_ends: bool = False) -> None:
        """Run the jobs in this process; see `pool` for others."""
        worker.work(jobs)

    def pool(self, folder: Path, worker: Worker) -> AbstractContextManager[Launcher]:
        """Return worker processes, if there are to be any."""
        gpus = self._gpus
        if self.at_a_time == 1 and not gpus:
            return nullcontext(self)
        if own := [name.strip() for name in os.environ.get(_VISIBLE, "").split(",") if name.strip()]:
            gpus = [own[int(number)] for number in gpus if int(number) < len(own)]
        slots = []
        for index in range(self.at_a_time):
            command = Command.of(folder, worker, [NAMED_LATER])
            if gpus:
                command.environment[_VISIBLE] = gpus[index % len(gpus)]
            slots.append(_Slot(command, folder / f"worker-{index}.log"))
        return WorkerPool(slots, worker)

    def check(self, configs: Iterable[Config]) -> None:
        """Check that the GPUs are there, and that no job names its own by a number if each worker sees a single one."""
        devices, gpus = {config.fit.device for config in configs}, self._gpus
        if gpus and devices != {"cpu"}:  # with fit.device=auto, jobs would train on the CPU in their place
            import torch  # the import takes seconds

            if max(map(int, gpus)) >= (seen := torch.cuda.device_count()):
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


@dataclass
class _Slot:
    """A worker process that is given one job after another, and replaced when it has ended.

    Attributes:
        command: its command.
        log: file of its output.
        process: the process; None: it has not been needed yet.
        job: the job that it was given.
        progress: that of the job when it was given.
        deaths: times in a row that the process has died, though the job made no progress.
    """

    command: Command
    log: Path
    process: subprocess.Popen[bytes] | None = None
    job: Job | None = None
    progress: int = 0
    deaths: int = 0

    def give(self, job: Job) -> None:
        """Name a job to the process."""
        if self.process is None or self.process.poll() is not None:
            self.close()
            self.process = self.command.start(self.log)
        self.job, self.progress = job, job.progress
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has died, which `is_free` will notice
            self.process.stdin.write(f"{job.id}\n".encode())
            self.process.stdin.flush()

    def is_free(self) -> bool:
        """Return whether it can take a job; the job of a process that has died is given again.

        Raises:
            UserError: its processes keep dying, and not because of a job, which would have failed.
        """
        if self.job is None or self.job.status() in ENDED:
            self.job, self.deaths = None, 0
        elif self.process is not None and (code := self.process.poll()) is not None:
            self.deaths = self.deaths + 1 if code and self.job.progress == self.progress else 0
            if self.deaths > ATTEMPTS:
                raise UserError(f"{shown(self.log)}: the worker processes keep dying; see this log.")
            self.give(self.job)
        return self.job is None

    def close(self) -> None:
        """Name no more jobs to the process, which then ends."""
        if self.process is not None and self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()


class WorkerPool(Launcher):
    """Worker processes on this machine; they end with the context, or when this process dies."""

    def __init__(self, slots: Sequence[_Slot], worker: Worker) -> None:
        self._slots, self._signals = slots, worker.signals
        self._seen: dict[str, str] = {}

    @property
    def at_a_time(self) -> int:
        """Number of jobs that run at a time."""
        return len(self._slots)

    def launch(self, jobs: Sequence[Job], worker: Worker, *, until_one_ends: bool = False) -> None:
        """Run the jobs; a process that dies is replaced, and its job resumed."""
        if not self._seen:
            logs = list_some(str(shown(slot.log)) for slot in self._slots[: len(jobs)])
            worker.say(f"the jobs print to {logs}")
        for _ in watch(jobs, worker, self.at_a_time, self._seen):
            if until_one_ends and any(self._seen[job.id] in ENDED for job in jobs):
                return
            free = [slot for slot in self._slots if slot.is_free()]
            given = {slot.job.id for slot in self._slots if slot.job is not None}
            waiting = [job for job in jobs if job.id not in given and self._seen[job.id] not in (RUNNING, *ENDED)]
            for slot, job in zip(free, waiting, strict=False):
                slot.give(job)

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self._end(stop=kind is not None)

    def _end(self, *, stop: bool) -> None:
        """Let the processes end, and wait for them; if they are to stop, they save their jobs."""
        processes = [slot.process for slot in self._slots if slot.process is not None]
        for slot in self._slots:
            slot.close()
        for process in processes if stop else ():
            process.send_signal(signal.SIGTERM)
        try:
            while any(process.poll() is None for process in processes):
                time.sleep(_LOOK)  # a signal that comes just before `wait` would not be noticed until it returns
        except KeyboardInterrupt:
            self._signals.hold()
            self._end(stop=True)  # at their own second signal, they end at once
            raise
