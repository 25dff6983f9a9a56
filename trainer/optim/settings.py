"""Settings of the optimizer and of the schedules."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from augment.params import Choice, Count, Flag, Number, OptionMap, Text, setting
from augment.support.errors import UserError

# Maps the position in a run, in [0, 1], to a value.
Schedule = Callable[[float], float]


def position(step: int, total_steps: int) -> float:
    """Return the position, in [0, 1], of a step (from 0) in a run of `total_steps` steps."""
    return min(max(step, 0), total_steps) / total_steps


def constant(value: float) -> Schedule:
    return lambda at: value


def cos(start: float, end: float) -> Schedule:
    """Return half a cosine wave from `start` to `end` (Loshchilov and Hutter, 2017, arXiv:1608.03983)."""

    def value(at: float) -> float:
        weight = (1.0 - math.cos(math.pi * at)) / 2.0
        return end if weight == 1.0 else start + (end - start) * weight  # without the rounding error of the sum

    return value


def exp(start: float, end: float) -> Schedule:
    """Return an exponential curve from `start` to `end`, both positive, with a constant factor per step."""
    return lambda at: end if at == 1.0 else start * (end / start) ** at


def one_cycle(peak: float, *, start: float, end: float, warmup: float = 0.3) -> Schedule:
    """Return a cosine from `start` up to `peak` over the share `warmup` of the run, then a cosine down to `end`.

    See Smith and Topin (2018, arXiv:1708.07120). Cosines replace straight lines, as in fastai.
    """
    return _in_turn(warmup, cos(start, peak), cos(peak, end))


def flat_cos(peak: float, *, end: float = 0.0, flat: float = 0.75) -> Schedule:
    """Return `peak` over the share `flat` of the run, then a cosine down to `end` (fastai's fit_flat_cos)."""
    return _in_turn(flat, constant(peak), cos(peak, end))


def step(value: float, *, share: float, factor: float) -> Schedule:
    """Return `value`, multiplied by `factor` after every `share` of the run."""
    # A rounded quotient may be just below a whole number.
    return lambda at: value * factor ** math.floor(at / share + 1e-9)


def _in_turn(share: float, first: Schedule, second: Schedule) -> Schedule:
    return lambda at: first(at / share) if at < share or share == 1.0 else second((at - share) / (1.0 - share))


def drops(scores: Iterable[float], patience: int) -> int:
    """Return how often a value drops on plateaus during epochs with these scores. Larger scores are better.

    The value drops after `patience` epochs without a better score, counted from the best epoch or the last drop. It
    never drops after an epoch whose score is NaN.
    """
    best, waited, count = -math.inf, 0, 0
    for score in scores:
        waited += 1
        if score > best:
            best, waited = score, 0
        elif waited >= patience and not math.isnan(score):
            count, waited = count + 1, 0
    return count


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
            doc="ratio of a layer's learning rate to the learning rate of the next layer towards the head. Default: 1",
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
            "along a cosine. step: multiplied by drop_factor at equal distances. plateau: multiplied by drop_factor "
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
        # `ParamScheduler` applies the drops of "plateau".
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
