"""Settings of sweeps: `hydra.launcher.*` for launchers and `hydra.sweeper.*` for the search."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from augment.params import Choice, Count, Flag, Number, OptionMap, Text, Texts, setting

MAX_TRIALS = 20_000  # so that the trials stay quick to read

SAMPLERS = ("tpe", "random")


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Settings of `hydra/sweeper=optuna`, below `hydra.sweeper`."""

    n_trials: int = setting(
        Count(default=20, within=(1, MAX_TRIALS), doc="total number of trials, including trials before a resume")
    )
    sampler: str = setting(Choice(default="tpe", options=SAMPLERS, doc="how the search chooses configurations"))
    seed: int = setting(Count(default=0, within=(0, 2**31 - 1), doc="seed of the sampler"))
    metrics: tuple[str, ...] = setting(
        Texts(
            default=(),
            doc="the metric to improve, by its value in the last epoch. Only one is allowed. "
            "Default: the task's main metric",
        )
    )
    prune: bool = setting(
        Flag(default=True, doc="end trials that score worse than others at the same epoch (successive halving)")
    )
    min_epochs: int | None = setting(
        Count(
            optional=True,
            within=(1, 10**6),
            doc="epochs before a trial may be pruned. Default: a ninth of all epochs",
        )
    )
    reduction: int = setting(
        Count(default=3, within=(2, 100), doc="strength of pruning. 3 keeps one trial in 3, and trains it 3x as long")
    )
    finalists: int = setting(
        Count(default=3, within=(0, 100), doc="best trials to repeat with additional seeds. 0: no verdict")
    )
    seeds: int = setting(Count(default=3, within=(2, 100), doc="additional seeds per finalist"))
    confirm: int = setting(
        Count(
            default=5,
            within=(2, 100),
            doc="new seeds to compare the winner with the starting configuration",
        )
    )


@dataclass(frozen=True, kw_only=True)
class LocalSettings:
    """Jobs on this machine, one after another or several at a time."""

    n_jobs: int | None = setting(
        Count(optional=True, within=(1, 1024), doc="jobs at a time. Default: one, or as many as the GPUs allow")
    )
    gpus: str | None = setting(
        Text(
            optional=True,
            doc="GPUs for the jobs, such as `'0,1'`. Each job sees only its own. Default: each job sees all GPUs, or "
            "with gpus_per_job, all GPUs are divided among the jobs",
        )
    )
    gpus_per_job: int | None = setting(
        Count(optional=True, within=(1, 1024), doc="GPUs of each job, which trains on all of them. Default: one")
    )


@dataclass(frozen=True, kw_only=True)
class SlurmSettings:
    """Workers that Slurm starts, through submitit."""

    n_jobs: int = setting(Count(default=4, within=(1, 10_000), doc="workers, each with one job at a time"))
    cluster: str | None = setting(
        Text(optional=True, doc="slurm, or local for processes on this machine. Default: slurm if it is installed")
    )
    options: Mapping[str, Any] | None = setting(
        OptionMap(
            optional=True,
            doc="submitit parameters: timeout_min, gpus_per_node, cpus_per_task, mem_gb, slurm_partition, ...",
        )
    )
    gpus_per_job: int | None = setting(
        Count(
            optional=True,
            within=(1, 1024),
            doc="GPUs of each job, which trains on all of them. Also sets gpus_per_node, unless options request GPUs. "
            "Default: one process, with the GPUs that options request",
        )
    )


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """Workers that Ray starts."""

    n_jobs: int = setting(Count(default=4, within=(1, 10_000), doc="workers, each with one job at a time"))
    address: str | None = setting(Text(optional=True, doc="address of a cluster. Default: a new one on this machine"))
    gpus_per_job: float = setting(
        Number(
            default=0.0,
            within=(0, 64),
            doc="GPUs of each job, which trains on all of them. 0.5: two jobs share a GPU",
        )
    )
    cpus_per_job: float = setting(Number(default=1.0, within=(0, 1024), doc="CPUs of each worker"))


LAUNCHERS: Mapping[str, type] = {"local": LocalSettings, "slurm": SlurmSettings, "ray": RaySettings}
