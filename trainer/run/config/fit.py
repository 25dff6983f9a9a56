"""The section `fit` of the configuration."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from augment.params import READS, Count, Flag, Size, Text, check_known, parse_settings, setting, settings
from augment.support.errors import UserError
from augment.support.formatting import amount
from augment.support.process import launched, local_rank
from trainer.loop.resize_schedule import FitStage, StageSettings, complete_stages, parse_stages
from trainer.loop.settings import LoopSettings
from trainer.optim.settings import ScheduleSettings
from trainer.tasks.loss import LossSettings


@dataclass(frozen=True, kw_only=True)
class Fit(LoopSettings, LossSettings, ScheduleSettings):
    """How to train: the settings of the loop, the loss, the schedules and the optimizer, and how batches are made."""

    batch_size: int = setting(
        Count(
            aliases=("bs", "batch", "batchsize"),
            default=64,
            within=(1, 10**6),
            doc="images in a training batch, the total of all GPUs; batches of validation are larger on a GPU",
        )
    )
    drop_last: bool = setting(
        Flag(
            default=False,
            doc="leave out the smaller last training batch, which differs between epochs; needed if it is a single "
            "small image, on which batch norm cannot train",
        )
    )
    fresh_statistics: bool | None = setting(
        Flag(
            optional=True,
            doc="let running statistics of batch norms begin anew in each epoch; null: in epochs of fewer than 50 "
            "batches, unless the model starts from given weights",
        )
    )
    threads: int | None = setting(
        Count(
            aliases=("workers", "num_workers", "num_threads"),
            optional=True,
            within=(1, 1024),
            doc="CPU threads of each input pipeline; null: one per core, at most 16",
        )
    )
    resume: str | None = setting(
        Text(
            aliases=("checkpoint", "ckpt", "resume_from"),
            optional=True,
            doc="folder of a run to resume; auto: the newest run of the same configuration unless it has finished, "
            "or a new run if there is none",
            reach=READS,
        )
    )
    stages: tuple[StageSettings, ...] = field(default=())

    def cpu_threads(self) -> int:
        """Return the CPU threads of a pipeline."""
        return self.threads or max(1, min(16, len(os.sched_getaffinity(0)) // local_rank()[1]))

    def full_stages(self, size: Size) -> tuple[FitStage, ...]:
        """Return the stages with all settings filled in; images have `size` unless a stage sets another size."""
        if not self.stages:
            return ()
        if self.steps is not None:
            raise UserError(f"fit.steps={self.steps}: fit.stages needs fit.epochs. Set one of both to null.")
        return complete_stages(self.stages, epochs=self.epochs, size=size, batch_size=self.batch_size)

    def fed(self, size: Size) -> list[tuple[str, int, Size]]:
        """Return the batches of each stage, or of the whole fit: their setting, their images, and the images' size."""
        stages = self.full_stages(size)
        return [(f"fit.stages.{stage.name}.batch_size", stage.batch_size, stage.size) for stage in stages] or [
            ("fit.batch_size", self.batch_size, size)
        ]


def parse_fit(given: object) -> Fit:
    """Check the `fit` section and return it typed.

    Raises:
        UserError: an unknown key, or a value that is not allowed.
    """
    if not isinstance(given, Mapping):
        return parse_settings(Fit, given, "fit")
    check_known(given, {**settings(Fit), "stages": None}, "fit")
    fit = parse_settings(Fit, {name: value for name, value in given.items() if name != "stages"}, "fit")
    return replace(fit, stages=parse_stages(given.get("stages")))


def check_ranks(fit: Fit, size: Size) -> None:
    """Check that the number of ranks is that of the started processes, and divides all batches."""
    count = launched()
    if fit.gpus is not None and count > 1 and fit.gpus != count:
        raise UserError(f"fit.gpus: {fit.gpus}, but torchrun started {count} processes. Allowed: {count}, or null.")
    ranks = fit.gpus or count
    for key, batch_size, _ in fit.fed(size):
        if batch_size % ranks:
            near = max(batch_size // ranks, 1) * ranks
            raise UserError(
                f"{key}: {amount(batch_size, 'image')} cannot be shared evenly by {ranks} processes (fit.gpus). "
                f"Allowed: multiples of {ranks}, such as {near}."
            )
