"""Schedules: pure functions of the position in a run, from 0 (before the first step) to 1 (after the last)."""

import math
import operator
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import accumulate

Schedule = Callable[[float], float]


def position(step: int, total_steps: int) -> float:
    """Return how far step `step` (from 0) is in a run of `total_steps` steps, clamped to [0, 1].

    Raises:
        ValueError: `total_steps` is less than 1.
        TypeError: either is not an integer; a rounded count would not end at 1.
    """
    step, total_steps = operator.index(step), operator.index(total_steps)
    if total_steps < 1:
        raise ValueError(f"total_steps must be at least 1, not {total_steps}")
    return min(max(step, 0), total_steps) / total_steps


def constant(value: float) -> Schedule:
    """Return a schedule that is always `value`."""
    return _Schedule(f"constant({value})", partial(_between, value, value))


def lin(start: float, end: float) -> Schedule:
    """Return a straight line from `start` to `end`."""
    return _Schedule(f"lin({start}, {end})", partial(_between, start, end))


def cos(start: float, end: float) -> Schedule:
    """Return half a cosine wave from `start` to `end`, flat at both (Loshchilov and Hutter, 2017, arXiv:1608.03983)."""
    return _Schedule(f"cos({start}, {end})", partial(_cos, start, end))


def exp(start: float, end: float) -> Schedule:
    """Return the exponential curve from `start` to `end`: the same factor in every step.

    Raises:
        ValueError: `start` or `end` is not positive.
    """
    if not (start > 0 and end > 0):
        raise ValueError(f"exp needs a positive start and end, not {start} and {end}")
    return _Schedule(f"exp({start}, {end})", partial(_exp, start, end))


def combine(fractions: Sequence[float], schedules: Sequence[Schedule]) -> Schedule:
    """Return `schedules` in sequence, schedule i over the share `fractions[i]` of the run.

    A position on the boundary of two phases is the start of the later one; 1 is the end of the last one.

    Raises:
        ValueError: the lengths differ or are 0, or the fractions are not positive or do not sum to 1 (within 1e-9).
    """
    shares, phases = [float(fraction) for fraction in fractions], tuple(schedules)
    if not phases or len(shares) != len(phases):
        raise ValueError(f"combine needs one fraction for each schedule, not {len(shares)} for {len(phases)}")
    # Written so that NaN is refused too.
    if not (all(share > 0 for share in shares) and abs(math.fsum(shares) - 1) <= 1e-9):
        raise ValueError(f"the fractions of the phases must be positive and sum to 1, not {shares}")
    text = f"combine({shares}, [{', '.join(map(repr, phases))}])"
    return _Schedule(text, partial(_combine, _edges(shares), phases))


def one_cycle(peak: float, *, start: float, end: float, warmup: float = 0.3) -> Schedule:
    """Return a cosine from `start` up to `peak` over the share `warmup` of the run, then a cosine down to `end`.

    After Smith and Topin (2018, arXiv:1708.07120), with the cosine of fastai in place of straight lines.

    Raises:
        ValueError: `warmup` is not in [0, 1].
    """
    rule = _split("warmup", warmup, cos(start, peak), cos(peak, end))
    return _Schedule(f"one_cycle({peak}, start={start}, end={end}, warmup={warmup})", rule)


def flat_cos(peak: float, *, end: float = 0.0, flat: float = 0.75) -> Schedule:
    """Return `peak` over the share `flat` of the run, then a cosine down to `end` (fastai's fit_flat_cos).

    Raises:
        ValueError: `flat` is not in [0, 1].
    """
    rule = _split("flat", flat, constant(peak), cos(peak, end))
    return _Schedule(f"flat_cos({peak}, end={end}, flat={flat})", rule)


@dataclass(frozen=True, repr=False)
class _Schedule:
    """A rule on [0, 1], clamped outside, that refuses NaN; prints as the call that made it."""

    text: str
    rule: Schedule = field(compare=False)

    def __call__(self, position: float) -> float:
        if math.isnan(position):
            raise ValueError(f"the position in {self} is NaN")
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


def _combine(edges: tuple[float, ...], schedules: tuple[Schedule, ...], position: float) -> float:
    if position == 1.0:
        return schedules[-1](1.0)
    phase = bisect_right(edges, position) - 1
    start, end = edges[phase], edges[phase + 1]
    return schedules[phase]((position - start) / (end - start))


def _split(name: str, share: float, first: Schedule, second: Schedule) -> Schedule:
    if not 0 <= share <= 1:
        raise ValueError(f"{name} must be in [0, 1], not {share}")
    if share in (0, 1):
        return first if share else second
    return combine((share, 1 - share), (first, second))


def _edges(shares: Sequence[float]) -> tuple[float, ...]:
    """Return the starts of the phases and, last, exactly 1.

    A sum of floats, even a correctly rounded one, misses k / n for one in five [1 / n] * n; the sum of the simple
    fractions that the floats represent does not, so that `position(k, n)` hits the intended boundary.
    """
    starts = accumulate((_simplest(share) for share in shares[:-1]), initial=Fraction(0))
    return (*map(float, starts), 1.0)


def _simplest(number: float) -> Fraction:
    """Return the fraction with a small denominator that rounds to `number`, or else its exact value."""
    simple = Fraction(number).limit_denominator(1_000_000)
    return simple if float(simple) == number else Fraction(number)
