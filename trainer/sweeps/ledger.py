"""The ledger of a sweep: its jobs, and their configurations and statuses."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from augment.cli.trust import Saved
from augment.support.errors import UserError
from augment.support.files import shown, write_atomically, write_json
from augment.support.untrusted_files import UnreadableError
from trainer.loop.checkpoint import LAST
from trainer.run.config.equality import identity, identity_text
from trainer.run.config.schema import Config, config_text, load_config
from trainer.run.folder.locks import user_of
from trainer.run.folder.reader import JOB_FILE, RunFolder, load_job
from trainer.run.folder.summary import FAILED, FINISHED, INTERRUPTED, KILLED, PRUNED, RUNNING

DELETED = "deleted"  # the status of a job whose folder was deleted

# The statuses of jobs that need no more work.
ENDED = (FINISHED, PRUNED, FAILED, DELETED)

# In the folder of a job: its configuration as planned.
PLANNED_FILE = "planned.yaml"


@dataclass(frozen=True)
class Job:
    """A job of a sweep."""

    folder: Path  # its run folder, named by its id
    order: int  # its position among the jobs of the sweep
    overrides: tuple[str, ...]  # the overrides that it was planned with, only for display
    varied: tuple[str, ...] = ()  # the overrides that the sweep varies
    trial: int | None = None  # the number of its trial in a search
    finalist: bool = False  # whether it helps a search choose among its finalists
    # None until it is read from the folder, see `with_config`
    config: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    @property
    def id(self) -> str:
        """The name of its folder, a digest of its configuration."""
        return self.folder.name

    @property
    def title(self) -> str:
        """The settings that the sweep varies in this job, as text."""
        return " ".join(override.lstrip("+") for override in self.varied) or self.id

    @property
    def progress(self) -> int:
        """A number that changes with each checkpoint. 0 without a checkpoint."""
        checkpoint = self.folder / LAST
        return checkpoint.stat().st_mtime_ns if checkpoint.is_file() else 0

    def status(self) -> str:
        """Return the status of the job, as `RunFolder.status` names it, or `DELETED`."""
        if not (self.folder / JOB_FILE).exists():
            return DELETED
        status = RunFolder(self.folder).status
        return KILLED if status == RUNNING and user_of(self.folder) is None else status

    def retry(self) -> None:
        """Mark a failed job as interrupted, so that it runs again from its checkpoint, if any."""
        if (ending := RunFolder(self.folder).summary).status == FAILED:
            replace(ending, status=INTERRUPTED).write()


def job_id(config: Config) -> str:
    """Return an ID of ten hexadecimal digits. Equal configurations have equal IDs, see `identity`."""
    return sha256(identity_text(identity(config.resolved)).encode()).hexdigest()[:10]


def plan_jobs(
    folder: Path,
    configs: Iterable[tuple[Config, Sequence[str]]],
    fixed: Sequence[str] = (),
    *,
    trial: int | None = None,
    finalist: bool = False,
) -> list[Job]:
    """Record jobs in a sweep's folder and return them. Known jobs keep their order.

    Equal configurations become one job.
    """
    known = {job.id: job for job in read_ledger(folder)}
    order = max((job.order for job in known.values()), default=-1) + 1
    jobs: dict[str, Job] = {}
    for config, overrides in configs:
        if (name := job_id(config)) in jobs:
            continue
        before = known.get(name)
        varied = tuple(override for override in overrides if override not in fixed)
        position = before.order if before else order
        job = Job(folder / name, position, tuple(overrides), varied, trial, finalist, config.resolved)
        if job != before:
            plain = {key: value for key, value in vars(job).items() if key not in ("folder", "config")}
            write_json(job.folder / JOB_FILE, {"id": job.id, **plain})
        write_atomically(job.folder / PLANNED_FILE, config_text(config))
        order += before is None
        jobs[name] = job
    return list(jobs.values())


def with_config(job: Job, *, trust: bool) -> Job:
    """Return a job with the configuration that it was planned with, from its folder.

    Raises:
        UntrustedError: the configuration has a setting that only the command line may set.
    """
    saved = Saved(load_config(job.folder, PLANNED_FILE), job.folder / PLANNED_FILE, trust)
    return replace(job, config=saved.with_overrides())


def read_ledger(folder: Path) -> list[Job]:
    """Return the jobs of a sweep in their order."""
    jobs = []
    for file in folder.glob(f"*/{JOB_FILE}"):
        try:
            jobs.append(Job(file.parent, **load_job(file)))
        except (OSError, UnreadableError) as error:
            raise UserError(
                f"{shown(file)} is not a valid sweep job ({error}). To rerun the job, delete its folder and repeat the "
                "sweep's command."
            ) from error
    return sorted(jobs, key=lambda job: (job.order, job.id))


def unfinished(jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs that still need work, or that another process works on."""
    return [job for job in jobs if job.status() not in ENDED]
