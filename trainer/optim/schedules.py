"""Schedules: functions from the position in a run to a learning rate or momentum."""

import math
from collections.abc import Callable, Iterable

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
        return end if weight == 1.0 else start + (end - start) * weight  # exactly, without a rounding error

    return value


def exp(start: float, end: float) -> Schedule:
    """Return an exponential curve from `start` to `end`, both positive, with a constant factor per step."""
    return lambda at: end if at == 1.0 else start * (end / start) ** at


def one_cycle(peak: float, *, start: float, end: float, warmup: float = 0.3) -> Schedule:
    """Return a cosine from `start` up to `peak`, then a cosine down to `end`. The rise takes the share `warmup`.

    See Smith and Topin (2018, arXiv:1708.07120). Cosines replace straight lines, as in fastai.
    """
    return _switch(warmup, cos(start, peak), cos(peak, end))


def flat_cos(peak: float, *, end: float = 0.0, flat: float = 0.75) -> Schedule:
    """Return `peak` for the share `flat` of the run, then a cosine down to `end` (fastai's fit_flat_cos)."""
    return _switch(flat, constant(peak), cos(peak, end))


def step(value: float, *, share: float, factor: float) -> Schedule:
    """Return `value`, multiplied by `factor` after every `share` of the run."""
    # Rounding may put the quotient just below a whole number.
    return lambda at: value * factor ** math.floor(at / share + 1e-9)


def _switch(share: float, first: Schedule, second: Schedule) -> Schedule:
    def value(at: float) -> float:
        if at < share or share == 1.0:
            return first(at / share)
        return second((at - share) / (1.0 - share))

    return value


def drops(scores: Iterable[float], patience: int) -> int:
    """Return how often a value drops on plateaus during epochs with these scores. Larger scores are better.

    The value drops after `patience` epochs without a better score, counted from the best epoch or the last drop. It
    never drops directly after an epoch whose score is NaN.
    """
    best, epochs_without, count = -math.inf, 0, 0
    for score in scores:
        epochs_without += 1
        if score > best:
            best, epochs_without = score, 0
        elif epochs_without >= patience and not math.isnan(score):
            count, epochs_without = count + 1, 0
    return count
