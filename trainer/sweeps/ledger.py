"""The ledger of a sweep: which jobs it has, what became of each, and who works on it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from augment.support.errors import UserError
from augment.support.files import shown, write_json
from augment.support.reading import UnreadableError, contents, read_object
from trainer.loop.checkpoint import LAST
from trainer.run.config import Config
from trainer.run.folder import user_of
from trainer.run.identity import identity, identity_text
from trainer.run.summary import SUMMARY_FILE, read_summary
from trainer.sweeps.lease import Lease, claim, holder_of
from trainer.sweeps.runs import FAILED, FINISHED, INTERRUPTED, JOB_FILE, PLANNED, PRUNED, RUNNING

# The status of a job whose folder somebody has deleted.
DELETED = "deleted"

# Statuses of jobs that nobody will work on.
ENDED = (FINISHED, PRUNED, FAILED, DELETED)


@dataclass(frozen=True)
class Job:
    """A job of a sweep.

    Attributes:
        folder: its run folder, named by its id.
        order: its position among the jobs of the sweep.
        overrides: the normalized overrides of its configuration.
        varied: those of them that the sweep varies.
        trial: the number of the trial of a search that it is; None: of none.
        finalist: whether it helps a search to choose among its finalists.
    """

    folder: Path
    order: int
    overrides: tuple[str, ...]
    varied: tuple[str, ...] = ()
    trial: int | None = None
    finalist: bool = False

    @property
    def id(self) -> str:
        """The name of its folder: a digest of its configuration."""
        return self.folder.name

    @property
    def title(self) -> str:
        """What it varies, for people."""
        return " ".join(override.lstrip("+") for override in self.varied) or self.id

    @property
    def progress(self) -> int:
        """A number that changes with each checkpoint; 0 without one."""
        checkpoint = self.folder / LAST
        return checkpoint.stat().st_mtime_ns if checkpoint.is_file() else 0

    def status(self) -> str:
        """Return its status, see `trainer.sweeps.runs.Run`; or `DELETED`."""
        if (ending := read_summary(self.folder)) is not None:
            return PRUNED if ending.stopped.startswith(PRUNED) else ending.status
        if self.worker() is not None:
            return RUNNING
        if not (self.folder / JOB_FILE).exists():
            return DELETED
        return INTERRUPTED if (self.folder / SUMMARY_FILE).exists() else PLANNED

    def worker(self) -> str | None:
        """Return the process that works on it, such as "process 17 on HOST"; None if there is none."""
        holder = holder_of(self.folder)
        return str(holder) if holder is not None else user_of(self.folder)

    def claim(self) -> Lease | None:
        """Claim the job, or return None if another process works on it.

        Raises:
            OSError: the folder cannot be written.
        """
        if user_of(self.folder) is not None:  # somebody resumed it by itself
            return None
        return claim(self.folder, self.progress)

    def retry(self) -> None:
        """Let a failed job be resumed, or begin again if it has no checkpoint.

        Raises:
            OSError: the folder cannot be written.
        """
        ending = read_summary(self.folder)
        if ending is not None and ending.status == FAILED:
            write_json(self.folder / SUMMARY_FILE, vars(ending) | {"folder": str(ending.folder), "status": INTERRUPTED})


def job_id(config: Config) -> str:
    """Return ten hexadecimal digits that tell apart configurations with different results, see `identity`."""
    return sha256(identity_text(identity(config)).encode()).hexdigest()[:10]


def plan_jobs(
    folder: Path,
    configs: Iterable[tuple[Config, Sequence[str]]],
    fixed: Sequence[str] = (),
    *,
    trial: int | None = None,
    finalist: bool = False,
) -> list[Job]:
    """Record jobs in a sweep's folder; those that are there already keep their order.

    Args:
        folder: the sweep's folder; created if it is missing.
        configs: the checked configuration of each job with its normalized overrides.
        fixed: the overrides that the sweep does not vary.
        trial: the number of a trial of a search that the jobs are.
        finalist: whether they help a search to choose among its finalists.

    Returns:
        The jobs, each once, in the order given.

    Raises:
        OSError: the folder cannot be written.
        UserError: a recorded job cannot be read.
    """
    known = {job.id: job for job in read_ledger(folder)}
    order = max((job.order for job in known.values()), default=-1) + 1
    jobs: dict[str, Job] = {}
    for config, overrides in configs:
        name = job_id(config)
        if name in jobs:
            continue
        before = known.get(name)
        varied = tuple(override for override in overrides if override not in fixed)
        job = Job(folder / name, before.order if before else order, tuple(overrides), varied, trial, finalist)
        if job != before:
            plain = {key: value for key, value in vars(job).items() if key != "folder"}
            write_json(job.folder / JOB_FILE, {"id": job.id, **plain})
        order += before is None
        jobs[name] = job
    return list(jobs.values())


def read_ledger(folder: Path) -> list[Job]:
    """Return the jobs of a sweep in their order.

    Raises:
        UserError: a job cannot be read.
    """
    return sorted((_read(file) for file in folder.glob(f"*/{JOB_FILE}")), key=lambda job: (job.order, job.id))


def unfinished(jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs that a sweep still has to work on, or to wait for."""
    return [job for job in jobs if job.status() not in ENDED]


def _read(file: Path) -> Job:
    try:
        found = read_object(file, file.parents[1])
        with contents(file):
            trial = found.get("trial")
            return Job(
                file.parent,
                int(found["order"]),
                tuple(map(str, found["overrides"])),
                tuple(map(str, found.get("varied", ()))),
                None if trial is None else int(trial),
                bool(found.get("finalist")),
            )
    except (OSError, UnreadableError) as error:
        raise UserError(
            f"{shown(file)}: not a job of a sweep ({error}). Allowed: delete its folder, and give the command of the "
            "sweep again, which runs the job anew."
        ) from error
