"""Suggest learning rates from the losses of a range test, without PyTorch.

While the rate rises exponentially from batch to batch, the loss is flat, falls, and finally explodes (Smith 2017,
arXiv:1506.01186). There are two suggestions, both from the smoothed losses up to their minimum, without the first
tenth, in which the average has not settled:

peak: a third of the rate at which the loss is lowest; suggested. `fit.lr` is the highest rate of a schedule, held
    only briefly, and may be close to where the loss turns (Smith 2018, arXiv:1803.09820, for one-cycle schedules).
steepest: where the loss falls most for a factor of the rate, fastai's `steep`. Smaller; noisier, being a derivative.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

DIVERGED = 4.0  # ratio to the smallest smoothed loss
_WINDOW = 0.05  # share of the steps over which losses are averaged
_SETTLE = 0.1  # share of the steps that is ignored at the start
_FALL = 0.02  # share by which the loss must fall for a suggestion
_BELOW = 3.0  # ratio of the rate at the lowest loss to the suggested peak


@dataclass(frozen=True)
class Curve:
    """The result of a range test, up to the step in which the loss exploded.

    Attributes:
        lrs: learning rate of each step.
        losses: training loss of each step's batch, before the step was made.
        smoothed: running average of the losses.
        rates: suggested learning rates by name, see the module; empty if the loss does not fall.
    """

    lrs: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    rates: Mapping[str, float]

    @property
    def suggestion(self) -> float | None:
        """The suggested learning rate, None if there is none."""
        return self.rates.get("peak")


def read_curve(lrs: Sequence[float], losses: Sequence[float], steps: int) -> Curve:
    """Read the losses of a test.

    Args:
        lrs: rising learning rates.
        losses: the loss at each; of the same length, or shorter.
        steps: number of steps of the whole test.
    """
    smoothed = smooth(losses, steps)
    pairs = enumerate(zip(smoothed, accumulate(smoothed, min), strict=True))
    exploded = (step for step, (loss, least) in pairs if not math.isfinite(loss) or loss > DIVERGED * least)
    end = next(exploded, len(smoothed))
    rates = suggest_rates(lrs[:end], smoothed[:end], skip=round(_SETTLE * steps))
    return Curve(tuple(lrs[:end]), tuple(losses[:end]), tuple(smoothed[:end]), rates)


def smooth(losses: Sequence[float], steps: int) -> list[float]:
    """Return the exponential moving average of losses, corrected for its initial bias towards 0.

    Args:
        losses: losses of the first steps of a test.
        steps: number of steps of the whole test; the average extends over about a twentieth of them.
    """
    keep = 1 - 1 / max(1.0, _WINDOW * steps)
    averages = accumulate(losses, lambda average, loss: keep * average + (1 - keep) * loss, initial=0.0)
    return [average / (1 - keep**count) for count, average in enumerate(averages) if count]


def suggest_rates(lrs: Sequence[float], smoothed: Sequence[float], *, skip: int = 0) -> dict[str, float]:
    """Return the learning rates that a curve suggests by name; none if the loss does not fall.

    Args:
        lrs: rising learning rates.
        smoothed: the loss at each.
        skip: number of steps to ignore at the start.
    """
    lowest = min(range(len(smoothed)), key=smoothed.__getitem__, default=0)
    highest = max(smoothed[skip : lowest + 1], default=0.0)
    if lowest < skip + 2 or highest - smoothed[lowest] < _FALL * abs(highest):
        return {}
    slopes = {
        step: (smoothed[step + 1] - smoothed[step - 1]) / math.log(lrs[step + 1] / lrs[step - 1])
        for step in range(max(skip, 1), lowest)
    }
    return {"peak": lrs[lowest] / _BELOW, "steepest": lrs[min(slopes, key=slopes.__getitem__)]}
