"""The configuration section `fit`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from augment.params import READS, Count, Flag, Number, Size, Text, check_known, parse_settings, setting, settings
from augment.support.errors import UserError
from augment.support.process import launched_ranks, local_rank
from trainer.loop.resize_stages import FitStage, StageSettings, complete_stages, parse_stages
from trainer.loop.settings import LoopSettings
from trainer.optim.settings import ScheduleSettings
from trainer.tasks.loss import LossSettings

AUTO = "auto"  # a value of `fit.batch_size` and `fit.resume`


@dataclass(frozen=True, kw_only=True)
class BatchSize(Count):
    """A number of images, or "auto"."""

    def _convert(self, value: object) -> Any:
        return AUTO if value == AUTO else super()._convert(value)

    def _allowed(self) -> str:
        return f"{super()._allowed()}, or {AUTO}"


@dataclass(frozen=True, kw_only=True)
class Fit(LoopSettings, LossSettings, ScheduleSettings):
    """How to train: batches, and the settings of the loop, the loss, the schedules and the optimizer."""

    batch_size: int | str = setting(
        BatchSize(
            aliases=("bs", "batch", "batchsize"),
            default=64,
            within=(1, 10**6),
            doc="images in a training batch, over all GPUs. On a GPU, validation batches are up to 4 times as large. "
            "auto: the largest batch that fits into GPU memory, with fit.lr scaled to it",
        )
    )
    base_batch_size: int = setting(
        Count(default=64, within=(1, 10**6), doc="batch size that fit.lr is meant for if fit.batch_size=auto")
    )
    drop_last: bool = setting(
        Flag(
            default=False,
            doc="leave out an incomplete last training batch. Each epoch leaves out different images. Needed if that "
            "batch would be a single image, because batch norm cannot train on one",
        )
    )
    fresh_statistics: bool | None = setting(
        Flag(
            optional=True,
            doc="reset the running statistics of batch norms at the start of each epoch. Default: in epochs of fewer "
            "than 50 batches, unless the model starts from trained weights",
        )
    )
    threads: int | None = setting(
        Count(
            aliases=("workers", "num_workers", "num_threads"),
            optional=True,
            within=(1, 1024),
            doc="CPU threads of each input pipeline. Default: one per core, at most 16",
        )
    )
    resume: str | None = setting(
        Text(
            aliases=("checkpoint", "ckpt", "resume_from"),
            optional=True,
            doc="folder of a run to resume, or last for the newest run. auto resumes the newest unfinished run with "
            "the same configuration, or starts a new one",
            reach=READS,
        )
    )
    teacher: str | None = setting(
        Text(
            optional=True,
            doc="for distillation: folder of a run whose best model is the teacher. The model then also learns the "
            "teacher's outputs for the same augmented images",
            reach=READS,
        )
    )
    teacher_weight: float = setting(
        Number(
            aliases=("distillation_weight", "distill_weight"),
            default=0.5,
            within=(0, 1),
            doc="share of the teacher's loss in the training loss. 1: the labels have no effect",
        )
    )
    teacher_temperature: float = setting(
        Number(
            aliases=("temperature", "distillation_temperature"),
            default=1.0,
            within=(0, 100),
            above=0,
            doc="divisor of the outputs of both models in the teacher's loss. Larger values give more weight to "
            "classes that the teacher considers unlikely",
        )
    )
    stages: tuple[StageSettings, ...] = field(default=())

    @property
    def images(self) -> int:
        """The number of images in a training batch, or `base_batch_size` until "auto" is resolved."""
        return self.base_batch_size if isinstance(self.batch_size, str) else self.batch_size

    def cpu_threads(self) -> int:
        return self.threads or max(1, min(16, len(os.sched_getaffinity(0)) // local_rank()[1]))

    def full_stages(self, size: Size) -> tuple[FitStage, ...]:
        """Return the stages with all settings filled in. `size` applies to stages without a size."""
        if not self.stages:
            return ()
        if self.steps is not None:
            raise UserError(f"fit.steps={self.steps}: fit.stages needs fit.epochs. Set fit.steps=null.")
        return complete_stages(self.stages, epochs=self.epochs, size=size, batch_size=self.images)

    def batches(self, size: Size) -> list[tuple[str, int, Size]]:
        """Return the key of the batch size, the batch size and the image size, for each stage or for the whole fit."""
        stages = self.full_stages(size)
        if not stages:
            return [("fit.batch_size", self.images, size)]
        return [(f"fit.stages.{stage.name}.batch_size", stage.batch_size, stage.size) for stage in stages]


def parse_fit(given: object) -> Fit:
    """Check and parse the `fit` section.

    Raises:
        UserError: an unknown key, or a value that is not allowed.
    """
    if not isinstance(given, Mapping):
        return parse_settings(Fit, given, "fit")
    check_known(given, {**settings(Fit), "stages": None}, "fit")
    fit = parse_settings(Fit, {name: value for name, value in given.items() if name != "stages"}, "fit")
    return replace(fit, stages=parse_stages(given.get("stages")))


def check_ranks(fit: Fit, size: Size) -> None:
    """Check that the number of ranks divides all batch sizes.

    If several processes were started, `fit.gpus` must equal their number.
    """
    count = launched_ranks()
    if fit.gpus is not None and count > 1 and fit.gpus != count:
        raise UserError(f"fit.gpus={fit.gpus}, but torchrun started {count} processes. Set fit.gpus={count} or null.")
    ranks = fit.gpus or count
    for key, batch_size, _ in fit.batches(size):
        if batch_size % ranks and fit.batch_size != AUTO:
            near = max(batch_size // ranks, 1) * ranks
            raise UserError(
                f"{key}={batch_size} is not divisible by the number of processes, {ranks} (fit.gpus). "
                f"Use a multiple of {ranks}, such as {near}."
            )
