"""Schedules: pure functions of the position in a run, from 0 (before the first step) to 1 (after the last)."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

Schedule = Callable[[float], float]


def position(step: int, total_steps: int) -> float:
    """Return how far step `step` (from 0) is in a run of `total_steps` steps, clamped to [0, 1]."""
    return min(max(step, 0), total_steps) / total_steps


def constant(value: float) -> Schedule:
    """Return a schedule that is always `value`."""
    return _Schedule(f"constant({value})", partial(_between, value, value))


def cos(start: float, end: float) -> Schedule:
    """Return half a cosine wave from `start` to `end`, flat at both (Loshchilov and Hutter, 2017, arXiv:1608.03983)."""
    return _Schedule(f"cos({start}, {end})", partial(_cos, start, end))


def exp(start: float, end: float) -> Schedule:
    """Return the exponential curve from `start` to `end`, which are positive: the same factor in every step."""
    return _Schedule(f"exp({start}, {end})", partial(_exp, start, end))


def one_cycle(peak: float, *, start: float, end: float, warmup: float = 0.3) -> Schedule:
    """Return a cosine from `start` up to `peak` over the share `warmup` of the run, then a cosine down to `end`.

    After Smith and Topin (2018, arXiv:1708.07120), with the cosine of fastai in place of straight lines.
    """
    rule = partial(_in_turn, warmup, cos(start, peak), cos(peak, end))
    return _Schedule(f"one_cycle({peak}, start={start}, end={end}, warmup={warmup})", rule)


def flat_cos(peak: float, *, end: float = 0.0, flat: float = 0.75) -> Schedule:
    """Return `peak` over the share `flat` of the run, then a cosine down to `end` (fastai's fit_flat_cos)."""
    rule = partial(_in_turn, flat, constant(peak), cos(peak, end))
    return _Schedule(f"flat_cos({peak}, end={end}, flat={flat})", rule)


def step(value: float, *, share: float, factor: float) -> Schedule:
    """Return `value`, times `factor` each time that another `share` of the run is over."""
    return _Schedule(f"step({value}, share={share}, factor={factor})", partial(_step, value, share, factor))


def drops(scores: Iterable[float], patience: int) -> int:
    """Return how often a value on a plateau has fallen after epochs with these scores, of which larger ones are better.

    It falls after `patience` epochs without a better score, the first time and from each fall on; NaN is no score, and
    after an epoch without one it does not fall.
    """
    best, waited, count = -math.inf, 0, 0
    for score in scores:
        waited += 1
        if score > best:
            best, waited = score, 0
        elif waited >= patience and not math.isnan(score):
            count, waited = count + 1, 0
    return count


@dataclass(frozen=True, repr=False)
class _Schedule:
    """A rule on [0, 1], clamped outside; prints as the call that made it."""

    text: str
    rule: Schedule = field(compare=False)

    def __call__(self, position: float) -> float:
        return self.rule(min(max(position, 0.0), 1.0))

    def __repr__(self) -> str:
        return self.text


def _between(start: float, end: float, weight: float) -> float:
    # start + (end - start) may differ from end by a rounding error.
    return end if weight == 1.0 else start + (end - start) * weight


def _cos(start: float, end: float, position: float) -> float:
    return _between(start, end, (1.0 - math.cos(math.pi * position)) / 2.0)


def _exp(start: float, end: float, position: float) -> float:
    return end if position == 1.0 else start * (end / start) ** position


def _step(value: float, share: float, factor: float, position: float) -> float:
    return value * factor ** math.floor(position / share + 1e-9)  # a float may be just below the multiple that it is


def _in_turn(share: float, first: Schedule, second: Schedule, position: float) -> float:
    if position < share or share == 1.0:
        return first(position / share)
    return second((position - share) / (1.0 - share))
