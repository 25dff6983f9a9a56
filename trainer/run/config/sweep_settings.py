"""Settings of sweeps: of launchers, `hydra.launcher.*`, and of the search, `hydra.sweeper.*`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from augment.params import Choice, Count, Flag, Number, OptionMap, Text, Texts, setting

# In the folder of a sweep.
JOURNAL_FILE = "study.journal"
MAX_TRIALS = 20_000  # of a search, which its journal can hold

SAMPLERS = ("tpe", "random")


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Settings of `hydra/sweeper=optuna`, below `hydra.sweeper`."""

    n_trials: int = setting(
        Count(default=20, within=(1, MAX_TRIALS), doc="trials of the search, earlier ones included")
    )
    sampler: str = setting(Choice(default="tpe", options=SAMPLERS, doc="how configurations are chosen"))
    seed: int = setting(Count(default=0, within=(0, 2**31 - 1), doc="seed of the sampler"))
    metrics: tuple[str, ...] = setting(
        Texts(default=(), doc="the score of the last epoch to improve, a single one; empty: that of the task")
    )
    prune: bool = setting(
        Flag(default=True, doc="end trials that are behind others after the same number of epochs (successive halving)")
    )
    min_epochs: int | None = setting(
        Count(optional=True, within=(1, 10**6), doc="epochs before a trial may be pruned; null: a ninth of them")
    )
    reduction: int = setting(
        Count(default=3, within=(2, 100), doc="one trial in this many is kept each time, and trains that much longer")
    )
    finalists: int = setting(
        Count(default=3, within=(0, 100), doc="best trials to run with further seeds; 0: no verdict")
    )
    seeds: int = setting(Count(default=3, within=(2, 100), doc="further seeds of each finalist, if there are several"))
    confirm: int = setting(Count(default=5, within=(2, 100), doc="fresh seeds of the winner, for score and verdict"))


@dataclass(frozen=True, kw_only=True)
class LocalSettings:
    """Jobs on this machine, one after another or several at a time."""

    n_jobs: int | None = setting(
        Count(optional=True, within=(1, 1024), doc="jobs at a time; null: one, or one for each of the gpus")
    )
    gpus: str | None = setting(
        Text(
            optional=True,
            doc="GPUs to run jobs on, one each, such as '0,1', among those visible here; null: all jobs see all",
        )
    )


@dataclass(frozen=True, kw_only=True)
class SlurmSettings:
    """Workers that Slurm starts, through submitit."""

    n_jobs: int = setting(Count(default=4, within=(1, 10_000), doc="workers; each runs one job at a time"))
    cluster: str | None = setting(
        Text(optional=True, doc="slurm; local: processes of this machine; null: slurm if there is one")
    )
    options: Mapping[str, Any] | None = setting(
        OptionMap(
            optional=True,
            doc="parameters of submitit: timeout_min, gpus_per_node, cpus_per_task, mem_gb, slurm_partition, ...",
        )
    )


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """Workers that Ray starts."""

    n_jobs: int = setting(Count(default=4, within=(1, 10_000), doc="workers; each runs one job at a time"))
    address: str | None = setting(Text(optional=True, doc="address of a cluster; null: a new one on this machine"))
    gpus_per_job: float = setting(Number(default=0.0, within=(0, 64), doc="GPUs of each worker"))
    cpus_per_job: float = setting(Number(default=1.0, within=(0, 1024), doc="CPUs of each worker"))


LAUNCHERS: Mapping[str, type] = {"local": LocalSettings, "slurm": SlurmSettings, "ray": RaySettings}
