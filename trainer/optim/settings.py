"""Settings of the optimizer and of the schedules."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from augment.params import Choice, Count, Flag, Number, OptionMap, Text, setting
from augment.support.errors import UserError
from trainer.optim.schedules import Schedule, constant, flat_cos, one_cycle, step


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """Settings of the optimizer. `trainer.optim.optimizers.make_optimizer` builds it."""

    lr: float = setting(
        Number(
            aliases=("learning_rate", "max_lr", "base_lr"),
            default=0.02,
            within=(0, 1e6),
            above=0,
            doc="learning rate at the peak of the schedule",
        )
    )
    optimizer: str = setting(
        Text(
            aliases=("opt", "optim"),
            default="sgd",
            doc="sgd, adamw, muon, or the name of an optimizer in timm.optim or a plugin",
        )
    )
    momentum: float | None = setting(
        Number(
            optional=True,
            within=(0, 0.9999),
            doc="momentum of SGD and Muon, beta1 of AdamW and similar optimizers. Default: the optimizer's own, or "
            "0.9 if that is 0",
        )
    )
    beta2: float | None = setting(
        Number(
            optional=True,
            within=(0, 0.999999),
            doc="beta2 of AdamW and similar optimizers. Default: the optimizer's own",
        )
    )
    eps: float | None = setting(
        Number(
            optional=True,
            within=(0, 1),
            above=0,
            doc="epsilon of AdamW and similar optimizers. Default: the optimizer's own",
        )
    )
    nesterov: bool | None = setting(
        Flag(optional=True, doc="Nesterov momentum of SGD and Muon. Default: the optimizer's own")
    )
    weight_decay: float = setting(Number(aliases=("wd",), default=5e-4, within=(0, 10), doc="weight decay"))
    decay_norms: bool = setting(Flag(default=False, doc="also apply weight decay to norms and biases"))
    layer_decay: float | None = setting(
        Number(
            optional=True,
            within=(0, 1),
            above=0,
            doc="learning rate of a layer, divided by the rate of the next layer towards the head. Default: 1",
        )
    )
    optimizer_options: Mapping[str, Any] | None = setting(
        OptionMap(optional=True, doc="further arguments of the optimizer")
    )


@dataclass(frozen=True, kw_only=True)
class ScheduleSettings(OptimizerSettings):
    """Settings of the schedules of learning rate and momentum."""

    schedule: str = setting(
        Choice(
            aliases=("scheduler", "lr_scheduler", "sched"),
            default="one_cycle",
            options=("one_cycle", "flat_cos", "step", "plateau", "constant"),
            others={"cosine": "one_cycle"},
            doc="schedule of the learning rate. one_cycle: up and down along cosines. flat_cos: constant, then down "
            "along a cosine. step: multiplied by drop_factor after each step_share. plateau: multiplied by drop_factor "
            "after plateau_patience epochs without a better score",
        )
    )
    warmup: float = setting(Number(default=0.3, within=(0, 1), doc="one_cycle: share of the run in which lr rises"))
    flat: float = setting(Number(default=0.75, within=(0, 1), doc="flat_cos: share of the run before lr falls"))
    start_factor: float = setting(Number(default=0.04, within=(0, 1), doc="one_cycle: ratio of first to highest lr"))
    momentum_low: float | None = setting(
        Number(
            optional=True, within=(0, 0.9999), doc="one_cycle: momentum when lr is highest. Default: constant momentum"
        )
    )
    end_factor: float = setting(
        Number(default=0.0, within=(0, 1), doc="one_cycle, flat_cos: ratio of last to highest lr")
    )
    step_share: float = setting(
        Number(default=0.3, within=(0, 1), above=0, doc="step: share of the run between two drops of lr")
    )
    drop_factor: float = setting(
        Number(
            aliases=("gamma", "lr_gamma"), default=0.1, within=(0, 1), doc="step, plateau: factor of lr at each drop"
        )
    )
    plateau_patience: int = setting(
        Count(
            default=5,
            within=(1, 10**6),
            doc="plateau: epochs without a better value of callbacks.checkpoint.monitor before lr drops",
        )
    )

    def schedules(self) -> dict[str, Schedule]:
        """Return the schedules of "lr" and, if it changes, of "momentum".

        Raises:
            UserError: `momentum_low` does not fit the other settings.
        """
        lr, end = self.lr, self.lr * self.end_factor
        by_name = {
            "one_cycle": one_cycle(lr, start=lr * self.start_factor, end=end, warmup=self.warmup),
            "flat_cos": flat_cos(lr, end=end, flat=self.flat),
            "step": step(lr, share=self.step_share, factor=self.drop_factor),
        }
        # "plateau" is constant here, because `ParamScheduler` applies its drops.
        schedules = {"lr": by_name.get(self.schedule, constant(lr))}
        if (low := self.momentum_low) is not None:
            high = self.momentum
            if self.schedule != "one_cycle" or high is None or low > high:
                raise UserError(
                    f"fit.momentum_low={low:g} needs fit.schedule=one_cycle and a fit.momentum of at least {low:g}. "
                    "Set both, or set fit.momentum_low=null."
                )
            schedules["momentum"] = one_cycle(low, start=high, end=high, warmup=self.warmup)
        return schedules
