"""Statistics of verdicts: confidence intervals of scores, and differences from a baseline.

These are functions of numbers. `run_groups` collects the scores of runs, and `verdict_text` writes the sentences.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev

from augment.support.nested import grouped

Range = tuple[float, float]
Key = tuple[str, str]  # the seed and the fold of a run, empty if it has none

ANY: Range = (-math.inf, math.inf)
LEVEL, POWER = 0.05, 0.8

# Runs may end in one of two modes, for example if some diverge. With fewer samples than this on each side, chance
# would often separate the modes.
LEAST = 3

# The largest number of needed samples to report.
MANY = 10_000

# Smaller spreads, relative to the scores or to 1, are rounding errors.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Metric:
    """The key, direction and range of a score."""

    key: str  # in the rows of a run, such as val_accuracy
    smaller: bool = False  # whether a smaller score is better
    within: Range = ANY  # the lowest and the highest possible score

    @property
    def share(self) -> bool:
        """Whether scores are in [0, 1]. Their differences are then given in points."""
        return self.within == (0, 1)


@dataclass(frozen=True)
class Replicates:
    """The scores of runs that differ only in seed and fold."""

    scores: Mapping[Key, float]

    @property
    def samples(self) -> tuple[float, ...]:
        """The independent scores. Scores in the same fold resemble each other, so each fold counts with its mean."""
        return tuple(self.by_sample.values())

    @property
    def by_sample(self) -> Mapping[Key, float]:
        """The samples by seed, or by fold if there are several folds."""
        of_fold = grouped((fold, score) for (_, fold), score in self.scores.items())
        return {("", fold): mean(some) for fold, some in of_fold.items()} if len(of_fold) > 1 else self.scores

    @property
    def unit(self) -> str:
        """The noun for a sample: "seed" or "fold"."""
        return "fold" if len({fold for _, fold in self.scores}) > 1 else "seed"

    @property
    def mean(self) -> float:
        return mean(self.samples)

    @property
    def std(self) -> float | None:
        """The standard deviation of the scores. None for a single score."""
        return stdev(self.scores.values()) if len(self.scores) > 1 else None

    def interval(self, metric: Metric) -> Range | None:
        """Return the 95% confidence interval of the mean, see `mean_interval`.

        Over folds, it is a little too narrow. Folds share training images, so their scores are not independent. No
        unbiased estimate of their variance exists (Bengio and Grandvalet 2004).
        """
        return mean_interval(self.samples, metric.within)


@dataclass(frozen=True)
class Difference:
    """A mean difference from a baseline, with statistics on whether chance explains it."""

    mean: float  # mean score minus the baseline's
    counts: tuple[int, int]  # number of samples here and in the baseline. If paired, both are the number of pairs
    paired: bool  # whether each sample is compared with the baseline's sample of the same seed or fold
    unit: str = "seed"  # the noun for a sample
    interval: Range | None = None  # uncorrected 95% confidence interval. None without any spread
    p: float | None = None  # uncorrected two-sided p-value. None without any spread
    spread: float = 0.0  # standard deviation of the difference of two samples
    freedom: float = 1.0  # degrees of freedom for each sample after the first
    tests: int = 1  # number of differences that were tested
    corrected: float | None = None  # p-value, corrected for the number of tests
    needed: int | None = None  # samples on each side that show a difference of a given size with a power of .8
    jump: float = 0.0  # largest difference between two samples of one side, or between two pairs
    least: int = 0  # samples on each side that rule out two modes, 0 if there are enough

    @property
    def significant(self) -> bool:
        """Whether the t test finds a difference. See also `beyond_chance`."""
        return self.corrected is not None and self.corrected < LEVEL

    @property
    def beyond_chance(self) -> bool:
        """Whether chance rarely makes a difference this large, even if runs end in one of two modes."""
        return self.significant and not self.least

    def sought(self, detect: float) -> float:
        """Return the size of the difference to detect: the observed one, but at least `detect`."""
        return max(detect, abs(self.mean))


def mean_interval(samples: Sequence[float], within: Range = ANY) -> Range | None:
    """Return the 95% confidence interval of a mean. It never leaves the range of possible scores.

    Between two bounds, the variance is assumed to shrink toward them like the variance of a share. For a mean m, it is
    proportional to (m - low) (high - m). The interval contains each mean m whose distance from the observed mean is
    at most t standard errors at m. This is Wilson's interval with the samples' spread and Student's t. With one bound
    or none, it is Student's t interval, cut off at the bound.

    Args:
        samples: independent scores.
        within: the lowest and the highest possible score.

    Returns:
        None if nothing is known about the spread: for a single score, and for equal scores.
    """
    from scipy.special import stdtrit  # importing it takes a while

    n, spread = len(samples), _spread(samples)
    if not spread:
        return None
    low, high = within if within[0] <= min(samples) and max(samples) <= within[1] else ANY
    middle, half = mean(samples), float(stdtrit(n - 1, 1 - LEVEL / 2)) * spread / math.sqrt(n)
    if math.isfinite(high - low):
        # (m - middle) ** 2 = k (m - low) (high - m), solved for m
        room = (middle - low) * (high - middle)
        k = half**2 / room
        middle = (middle + k * (low + high) / 2) / (1 + k)
        half = math.sqrt(k * room + (k * (high - low) / 2) ** 2) / (1 + k)
    return max(low, middle - half), min(high, middle + half)


def compare(
    baseline: Replicates, others: Sequence[Replicates], metric: Metric, detect: float
) -> list[Difference | None]:
    """Compare configurations with a baseline. Holm's method corrects the p-values for their number.

    A t test is misled if runs end in one of two modes. With enough samples for the number of comparisons, chance rarely
    puts all runs of one configuration into one mode and all of the baseline into the other. With fewer, a difference
    must exceed all jumps within configurations. If there are too few even for a single comparison, such as 2 and 3, no
    difference is beyond chance.

    Returns:
        A difference for each configuration. None if it or the baseline has a single sample.
    """
    found = [difference(baseline, other, metric) for other in others]
    tested = [one.p for one in found if one and one.p is not None]
    tests = len(tested)
    jump = max((one.jump for one in found if one), default=0.0)
    least = next(count for count in range(LEAST, MANY) if _by_modes((count, count), tests) <= LEVEL)

    def judged(one: Difference, corrected: float) -> Difference:
        near = abs(one.mean) <= jump and _by_modes(one.counts, tests) > LEVEL
        few = near or _by_modes(one.counts, 1) > LEVEL
        more = needed(one, one.sought(detect), LEVEL / tests)
        return replace(one, tests=tests, corrected=corrected, needed=more, least=least if few else 0)

    corrected = iter(holm(tested))
    return [judged(one, next(corrected)) if one and one.p is not None else one for one in found]


def difference(baseline: Replicates, other: Replicates, metric: Metric) -> Difference | None:
    """Return the difference from a baseline, before the corrections of `compare`.

    If both sides have the same seeds or folds, it uses Student's t test of the pairs, otherwise Welch's t test. If only
    some seeds are shared, Welch's test is conservative: it ignores the correlation between those runs.
    """
    from scipy.special import stdtr, stdtrit  # importing it takes a while

    ours, theirs = other.by_sample, baseline.by_sample
    counts = len(ours), len(theirs)
    if min(counts) < 2:
        return None
    value = other.mean - baseline.mean
    paired = ours.keys() == theirs.keys()
    sides = [[*other.samples], [*baseline.samples]]
    if paired:
        sides = [[score - theirs[key] for key, score in ours.items()]]
    variances = [_spread(side) ** 2 for side in sides]
    spread = math.sqrt(sum(variances))
    if not spread:
        return Difference(value, counts, paired, other.unit)
    # Welch's formulas. With the pairs as the only side, they are Student's.
    mean_variances = [variance / len(side) for variance, side in zip(variances, sides, strict=True)]
    error = math.sqrt(sum(mean_variances))
    freedom = spread**4 / sum(variance**2 for variance in variances)
    degrees = error**4 / sum(v**2 / (len(side) - 1) for v, side in zip(mean_variances, sides, strict=True))
    half = float(stdtrit(degrees, 1 - LEVEL / 2)) * error
    most = metric.within[1] - metric.within[0]
    p = 2 * float(stdtr(degrees, -abs(value) / error))
    interval = max(-most, value - half), min(most, value + half)
    jump = max(max(side) - min(side) for side in sides)
    return Difference(value, counts, paired, other.unit, interval, p, spread, freedom, jump=jump)


def _by_modes(counts: tuple[int, int], tests: int) -> float:
    """Return an upper bound on how often chance separates two modes in one of several comparisons.

    Let r be the probability that a run ends in the first mode. With probability r^n (1 - r)^m, all n samples of one
    side are in this mode, and all m samples of the other side are not. This is largest at r = n / (n + m).
    """
    total = sum(counts)
    return tests * 2 * math.prod((count / total) ** count for count in counts)


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by the method of Holm (1979)."""
    corrected, highest = [0.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        highest = max(highest, min(1.0, (len(values) - rank) * values[index]))
        corrected[index] = highest
    return corrected


def needed(seen: Difference, detect: float, level: float) -> int | None:
    """Return how many samples on each side show a difference of size `detect` with a power of .8.

    Returns:
        None if the spread is unknown. At most `MANY`, which means this number or more.
    """
    if not seen.spread or not detect > 0:
        return None
    counts = range(LEAST, MANY)
    return counts.start + bisect_left(counts, POWER, key=lambda count: _power(seen, count, detect, level))


def _power(seen: Difference, count: int, detect: float, level: float) -> float:
    """Return the power of a two-sided t test, without the far tail, for a difference of size `detect`."""
    from scipy.special import nctdtr, stdtrit  # importing it takes a while

    degrees, shift = seen.freedom * (count - 1), detect * math.sqrt(count) / seen.spread
    critical = float(stdtrit(degrees, 1 - level / 2))
    if shift > 3 * critical + 10:
        return 1.0  # exact to many digits, while scipy may return NaN
    return 1 - float(nctdtr(degrees, shift, critical))


def _spread(samples: Sequence[float]) -> float:
    """Return the standard deviation. It is 0 for rounding errors and single samples."""
    spread = stdev(samples) if len(samples) > 1 else 0.0
    return 0.0 if spread < _ROUNDING * max(1.0, *map(abs, samples)) else spread
