"""Judge scores of several seeds or folds: intervals that respect the range of a metric, and differences to a baseline.

Functions of numbers. `trainer.sweeps.run_groups` collects the scores of runs, and `verdict_text` writes sentences.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import mean, stdev

from augment.support.nested import grouped

Range = tuple[float, float]
Key = tuple[str, str]  # the seed and the fold of a run; "" if it has none

ANY: Range = (-math.inf, math.inf)
LEVEL, POWER = 0.05, 0.8

# Runs may end in one of two modes: some may diverge, for example. With fewer samples than this on each side, chance
# alone would often separate the modes.
LEAST = 3

# The most replicates that are worth naming.
MANY = 10_000

# Spreads below this share of a value, or of 1, are rounding errors.
_ROUNDING = 1e-12

# No validation set is taken to be larger than this: other scores than ratios of counts look like ones of larger counts.
_LARGEST = 10**6


@dataclass(frozen=True)
class Metric:
    """What scores are."""

    key: str  # in the rows of a run, such as val_accuracy
    smaller: bool = False  # whether a smaller score is better
    within: Range = ANY  # the lowest and the highest possible score
    resolution: float = 0.0  # the smallest possible difference of two scores; 0 if they are no ratios of counts

    @property
    def share(self) -> bool:
        """Whether scores are in [0, 1], so that differences are given in points."""
        return self.within == (0, 1)


@dataclass(frozen=True)
class Replicates:
    """The scores of runs that differ in their seed and fold alone."""

    scores: Mapping[Key, float]

    @property
    def samples(self) -> tuple[float, ...]:
        """What counts as a sample: the scores, or the means of folds with several scores, which resemble each other."""
        return tuple(self.by_sample.values())

    @property
    def by_sample(self) -> Mapping[Key, float]:
        """The samples by what they are of, a seed or a fold."""
        of_fold = grouped((fold, score) for (_, fold), score in self.scores.items())
        return {("", fold): mean(some) for fold, some in of_fold.items()} if len(of_fold) > 1 else self.scores

    @property
    def unit(self) -> str:
        """What a sample is."""
        return "fold" if len({fold for _, fold in self.scores}) > 1 else "seed"

    @property
    def mean(self) -> float:
        """The mean of the samples."""
        return mean(self.samples)

    @property
    def std(self) -> float | None:
        """The standard deviation of one run; None for a single one."""
        return stdev(self.scores.values()) if len(self.scores) > 1 else None

    def interval(self, metric: Metric) -> Range | None:
        """Return the 95% confidence interval of the mean over all seeds, or folds, see `mean_interval`.

        Over folds it is a little too narrow: they share training images, so that their scores are not independent, and
        no unbiased estimate of the variance exists (Bengio and Grandvalet 2004).
        """
        return mean_interval(self.samples, metric.within, metric.resolution)


@dataclass(frozen=True)
class Difference:
    """A mean difference to a baseline, and whether chance explains it."""

    mean: float  # mean score minus that of the baseline
    counts: tuple[int, int]  # numbers of samples, those of the baseline last; if paired, twice the number of pairs
    paired: bool  # whether each sample is compared with that of the same seed or fold
    unit: str = "seed"  # what a sample is
    interval: Range | None = None  # 95% confidence interval, of this difference alone; None without any spread
    p: float | None = None  # two-sided p-value, of this difference alone; None without any spread
    spread: float = 0.0  # standard deviation of the difference of two samples
    freedom: float = 1.0  # degrees of freedom for each sample after the first
    tests: int = 1  # number of differences that were looked at
    corrected: float | None = None  # p, corrected for this number
    needed: int | None = None  # samples on each side that show a difference of a given size with a power of .8
    jump: float = 0.0  # largest difference of two samples of one side, of two pairs if paired
    least: int = 0  # samples on each side that rule out two modes, if the given ones do not

    @property
    def significant(self) -> bool:
        """Whether the t test finds a difference, see `beyond_chance`."""
        return self.corrected is not None and self.corrected < LEVEL

    @property
    def beyond_chance(self) -> bool:
        """Whether chance alone would rarely make one as large, even if runs end in one of two modes."""
        return self.significant and not self.least


def mean_interval(samples: Sequence[float], within: Range = ANY, resolution: float = 0.0) -> Range | None:
    """Return the 95% confidence interval of a mean, which never leaves the range of what is possible.

    Between two bounds the variance is taken to shrink toward them as that of a share does, as (m - low) (high - m) with
    the mean m. The interval holds all means m that are no further from the observed one than t standard errors at m: it
    is Wilson's, with the spread of the samples in place of the binomial one, and Student's t. With one bound or none it
    is the usual one of Student's t, cut off at the bound.

    If all samples are equal, their spread is below what the resolution shows: it is taken to be so large that they are
    all equal in one case of twenty.

    Args:
        samples: independent scores.
        within: the lowest and the highest possible score.
        resolution: the smallest possible difference of two scores; 0: unknown.

    Returns:
        None for a single score, and for equal ones without a resolution, where nothing is known of the spread.
    """
    from scipy.special import ndtri, stdtrit  # takes a while

    n = len(samples)
    if n < 2:
        return None
    low, high = within if within[0] <= min(samples) and max(samples) <= within[1] else ANY
    middle, spread = mean(samples), _spread(samples)
    if spread:
        half = float(stdtrit(n - 1, 1 - LEVEL / 2)) * spread / math.sqrt(n)
    elif resolution:
        widest = resolution / (2 * float(ndtri((1 + LEVEL ** (1 / n)) / 2)))
        half = float(ndtri(1 - LEVEL / 2)) * widest / math.sqrt(n)
    else:
        return None
    if spread and math.isfinite(high - low):
        # (m - middle) ** 2 = k (m - low) (high - m), solved for m
        room = (middle - low) * (high - middle)
        k = half**2 / room
        middle = (middle + k * (low + high) / 2) / (1 + k)
        half = math.sqrt(k * room + (k * (high - low) / 2) ** 2) / (1 + k)
    return max(low, middle - half), min(high, middle + half)


def resolution_of(scores: Iterable[float]) -> float:
    """Return 1 / N for the smallest N with which all scores are ratios of counts k / N, as accuracies are; else 0."""
    least = 1
    for score in set(scores):
        if not 0 <= score <= 1:
            return 0.0
        ratio = Fraction(score).limit_denominator(_LARGEST)
        least = math.lcm(least, ratio.denominator)
        if least > _LARGEST or abs(float(ratio) - score) > _ROUNDING:
            return 0.0
    return 1 / least


def compare(
    baseline: Replicates, others: Sequence[Replicates], metric: Metric, detect: float
) -> list[Difference | None]:
    """Compare configurations with a baseline, with Holm's correction for their number.

    A t test is misled if runs end in one of two modes. Chance rarely separates the modes by configuration if there are
    enough samples for the number of comparisons. With fewer, a difference has to exceed all jumps within
    configurations. With fewer than `LEAST` samples on each side, no difference is beyond chance.

    Returns:
        A difference for each of the others; None where one side has a single sample.
    """
    found = [difference(baseline, other, metric) for other in others]
    tested = [one.p for one in found if one and one.p is not None]
    corrected, tests = iter(holm(tested)), len(tested)
    jump = max((one.jump for one in found if one), default=0.0)
    least = next(count for count in range(LEAST, MANY) if _by_modes((count, count), tests) <= LEVEL)

    def judged(one: Difference) -> Difference:
        near = abs(one.mean) <= jump and _by_modes(one.counts, tests) > LEVEL
        few = near or _by_modes(one.counts, 1) > LEVEL
        more = needed(one, detect, LEVEL / tests)
        return replace(one, tests=tests, corrected=next(corrected), needed=more, least=least if few else 0)

    return [judged(one) if one and one.p is not None else one for one in found]


def difference(baseline: Replicates, other: Replicates, metric: Metric) -> Difference | None:
    """Return the difference to a baseline, by Student's t of the pairs or Welch's of both sides; see `compare`.

    Samples are paired if each has a partner. Otherwise all count without pairs, which is careful where some seeds are
    shared: what they have in common makes the difference of the means vary less than is assumed.
    """
    from scipy.special import stdtr, stdtrit  # takes a while

    ours, theirs = other.by_sample, baseline.by_sample
    counts = len(ours), len(theirs)
    if min(counts) < 2:
        return None
    value, unit = other.mean - baseline.mean, other.unit if other.unit == baseline.unit else "run"
    if paired := ours.keys() == theirs.keys():
        sides = [[score - theirs[key] for key, score in ours.items()]]
        spread = _spread(sides[0])
        error, degrees, freedom = spread / math.sqrt(counts[0]), counts[0] - 1.0, 1.0
    else:
        sides = [[*other.samples], [*baseline.samples]]
        one, two = (_spread(side) ** 2 for side in sides)
        spread = math.sqrt(one + two)
        error = math.sqrt(one / counts[0] + two / counts[1])
        if spread:
            freedom = spread**4 / (one**2 + two**2)
            degrees = error**4 / ((one / counts[0]) ** 2 / (counts[0] - 1) + (two / counts[1]) ** 2 / (counts[1] - 1))
    if not spread:
        return Difference(value, counts, paired, unit)
    half, most = float(stdtrit(degrees, 1 - LEVEL / 2)) * error, metric.within[1] - metric.within[0]
    p = 2 * float(stdtr(degrees, -abs(value) / error))
    interval = max(-most, value - half), min(most, value + half)
    jump = max(max(side) - min(side) for side in sides)
    return Difference(value, counts, paired, unit, interval, p, spread, freedom, jump=jump)


def _by_modes(counts: tuple[int, int], tests: int) -> float:
    """Return how often chance separates two modes in one of some comparisons, at most, whatever the modes' rates.

    With a rate r, all n samples of one side are in one mode and all m of the other side in the other one with
    probability r^n (1 - r)^m, which is largest at r = n / (n + m).
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
    """Return with how many samples on each side a difference of size `detect` is seen with a power of .8.

    Returns:
        None if that is unknown, for want of a spread; at most `MANY`, which stands for more.
    """
    if not seen.spread or not detect > 0:
        return None
    counts = range(LEAST, MANY)
    return counts.start + bisect_left(counts, POWER, key=lambda count: _power(seen, count, detect, level))


def _power(seen: Difference, count: int, detect: float, level: float) -> float:
    """Return the power of a two-sided t test, without the other side's share, for a difference of size `detect`."""
    from scipy.special import nctdtr, stdtrit  # takes a while

    degrees, shift = seen.freedom * (count - 1), detect * math.sqrt(count) / seen.spread
    critical = float(stdtrit(degrees, 1 - level / 2))
    if shift > 3 * critical + 10:
        return 1.0  # to many digits; scipy may return NaN
    return 1 - float(nctdtr(degrees, shift, critical))


def _spread(samples: Sequence[float]) -> float:
    """Return the standard deviation; 0 if it is a rounding error, or for a single sample."""
    spread = stdev(samples) if len(samples) > 1 else 0.0
    return 0.0 if spread < _ROUNDING * max(1.0, *map(abs, samples)) else spread
