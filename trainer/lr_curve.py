"""How the losses of a learning rate range test are read; no PyTorch in here.

While the rate rises exponentially from batch to batch, the loss stays, falls, and at last explodes (Smith 2017,
arXiv:1506.01186). Three ways to say where a good rate lies, all on the smoothed losses up to their minimum, without the
first tenth, where the average has not settled:

peak: a third of the rate at which the loss is lowest; recommended. `fit.lr` is the highest rate of a schedule, held for
    a moment only, and may lie close below where the loss turns (Smith 2018, arXiv:1803.09820, of one-cycle schedules).
steepest: where the loss falls most for a factor of the rate, fastai's `steep`. Smaller; as a derivative it is noisier.
valley: the middle of the longest run of ever smaller losses, passing over those in between that are not; fastai's
    default, which has it from ArcGIS. The most careful, and little moved by single batches.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

DIVERGED = 4.0  # times the smallest smoothed loss
_WINDOW = 0.05  # share of the steps over which losses are averaged
_SETTLE = 0.1  # share of the steps that no suggestion comes from
_FALL = 0.02  # share of the loss that it has to fall by before there is anything to suggest
_BELOW = 3.0  # how far the peak stays below the lowest loss, as a factor


@dataclass(frozen=True)
class Rates:
    """Learning rates that are suggested; see the module.

    Attributes:
        peak: a third of that of the lowest loss.
        steepest: that of the steepest descent.
        valley: that in the middle of the descent.
    """

    peak: float
    steepest: float
    valley: float


@dataclass(frozen=True)
class Curve:
    """What a range test saw, up to the step in which the loss exploded.

    Attributes:
        lrs: learning rate of each step.
        losses: training loss of each step's batch, before the step was made.
        smoothed: their running average.
        rates: what is suggested; None if the loss does not fall.
    """

    lrs: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    rates: Rates | None

    @property
    def suggestion(self) -> float | None:
        """The recommended learning rate."""
        return None if self.rates is None else self.rates.peak


def read_curve(lrs: Sequence[float], losses: Sequence[float], steps: int) -> Curve:
    """Read the losses of a test.

    Args:
        lrs: rising learning rates.
        losses: the loss at each; of the same length, or shorter.
        steps: of the whole test.
    """
    smoothed = smooth(losses, steps)
    end = explosion(smoothed)
    rates = suggest_rates(lrs[:end], smoothed[:end], skip=round(_SETTLE * steps))
    return Curve(tuple(lrs[:end]), tuple(losses[:end]), tuple(smoothed[:end]), rates)


def smooth(losses: Sequence[float], steps: int) -> list[float]:
    """Return the exponential average of losses, free of the bias towards 0 that it begins with.

    Args:
        losses: of the first steps of a test.
        steps: of the whole test; a twentieth of them is the average's memory.
    """
    keep = 1 - 1 / max(1.0, _WINDOW * steps)
    average, weight, smoothed = 0.0, 0.0, []
    for loss in losses:
        average, weight = keep * average + (1 - keep) * loss, keep * weight + (1 - keep)
        smoothed.append(average / weight)
    return smoothed


def explosion(smoothed: Sequence[float]) -> int:
    """Return the first step whose loss is not finite or far above the smallest before it; their number if none is."""
    least = math.inf
    for step, loss in enumerate(smoothed):
        least = min(least, loss)
        if not (math.isfinite(loss) and loss <= DIVERGED * least):
            return step
    return len(smoothed)


def suggest_rates(lrs: Sequence[float], smoothed: Sequence[float], *, skip: int = 0) -> Rates | None:
    """Return learning rates that a curve suggests, None if the loss does not fall.

    Args:
        lrs: rising learning rates.
        smoothed: the loss at each.
        skip: how many of the first to pass over.
    """
    lowest = min(range(len(smoothed)), key=smoothed.__getitem__, default=0)
    chain = [skip + index for index in descent(smoothed[skip : lowest + 1])]
    if len(chain) < 3 or smoothed[chain[0]] - smoothed[chain[-1]] < _FALL * abs(smoothed[chain[0]]):
        return None
    slopes = {
        step: (smoothed[step + 1] - smoothed[step - 1]) / math.log(lrs[step + 1] / lrs[step - 1])
        for step in range(max(skip, 1), lowest)
    }
    return Rates(lrs[lowest] / _BELOW, lrs[min(slopes, key=slopes.__getitem__)], lrs[chain[len(chain) // 2]])


def descent(values: Sequence[float]) -> list[int]:
    """Return the places of a longest strictly falling subsequence, found by patience sorting in n log n."""
    lasts: list[float] = []  # of the falling subsequence of each length that ends highest, its last value negated
    places: list[int] = []
    before: list[int | None] = []
    for place, value in enumerate(values):
        length = bisect_left(lasts, -value)
        lasts[length : length + 1], places[length : length + 1] = [-value], [place]
        before.append(places[length - 1] if length else None)
    chain: list[int] = []
    last = places[-1] if places else None
    while last is not None:
        chain.append(last)
        last = before[last]
    return chain[::-1]
