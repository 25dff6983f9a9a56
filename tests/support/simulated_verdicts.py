"""Simulate how often intervals hold and verdicts are false.

`python tests/support/simulated_verdicts.py` prints the three tables of docs/verdicts.md. With `sweeps`, it prints only
the last one. It takes about half an hour.
"""

import sys
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from trainer.sweeps.verdict import LEVEL, Metric, Replicates, compare, difference, mean_interval

Array = npt.NDArray[np.float64]
Noise = Callable[[np.random.Generator, tuple[int, ...]], Array]

SAMPLES = 20_000
COUNTS = (2, 3, 5, 10)
SHARES: dict[str, Callable[[int], int]] = {
    "none": lambda n: 0,
    "half": lambda n: n // 2,
    "all but one": lambda n: n - 1,
    "all": lambda n: n,
}
LOSS = Metric("val_loss", smaller=True)

# Of mean 0 and standard deviation 1; in those that are skewed, a few runs are much worse than the others.
NOISES: dict[str, Noise] = {
    "normal, 0": lambda rng, shape: rng.normal(size=shape),
    "lognormal, 1.8": lambda rng, shape: _lognormal(rng, shape, 0.5),
    "exponential, 2": lambda rng, shape: rng.exponential(size=shape) - 1,
    "lognormal, 6.2": lambda rng, shape: _lognormal(rng, shape, 1.0),
}
# Scores of whole sweeps without any effect, (configurations, seeds).
SWEEPS: dict[str, Noise] = {
    "normal": NOISES["normal, 0"],
    "two modes, 50/50": lambda rng, shape: _modes(rng, shape, 0.5),
    "one run in five diverges": lambda rng, shape: _modes(rng, shape, 0.2),
    "one run in ten diverges": lambda rng, shape: _modes(rng, shape, 0.1),
    "0 to 50% diverge": lambda rng, shape: _modes(rng, shape, rng.random((shape[0], 1)) / 2),
    "Student's t, 2 degrees of freedom": lambda rng, shape: rng.standard_t(2, shape),
}
BOTH = {"normal": "normal, 0", "skewed": "lognormal, 6.2"}


def _lognormal(rng: np.random.Generator, shape: tuple[int, ...], sigma: float) -> Array:
    square = sigma**2
    return (rng.lognormal(0, sigma, shape) - np.exp(square / 2)) / np.sqrt((np.exp(square) - 1) * np.exp(square))


def coverage(noise: Noise, count: int, samples: int = SAMPLES) -> float:
    """Return how often the interval of a mean holds the true one."""
    scores = noise(np.random.default_rng(count), (samples, count))
    intervals = (mean_interval(row) for row in scores.tolist())
    return float(np.mean([found is not None and found[0] <= 0 <= found[1] for found in intervals]))


def false_verdicts(
    noise: Noise, counts: tuple[int, int], shared: int, correlation: float, samples: int = SAMPLES
) -> float:
    """Return how often a difference of which there is none is said to be beyond chance.

    Args:
        noise: what scores deviate by.
        counts: seeds of the baseline and of what is compared with it.
        shared: how many seeds they share.
        correlation: share of the variance that is the seed's.
        samples: how many comparisons to simulate.
    """
    rng = np.random.default_rng([*counts, shared, round(10 * correlation)])
    total = sum(counts) - shared
    of_seed, own = (noise(rng, (samples, size)) for size in (total, sum(counts)))
    # The shared seeds are the last ones of the baseline and the first ones of the other side.
    seeds = [*range(counts[0]), *range(counts[0] - shared, total)]
    scores = np.sqrt(correlation) * of_seed[:, seeds] + np.sqrt(1 - correlation) * own
    false = 0
    for row in scores.tolist():
        keyed = [((str(seed), ""), score) for seed, score in zip(seeds, row, strict=True)]
        baseline, other = (Replicates(dict(part)) for part in (keyed[: counts[0]], keyed[counts[0] :]))
        found = difference(baseline, other, LOSS)
        false += found is not None and found.p is not None and found.p < LEVEL
    return false / samples


def _modes(rng: np.random.Generator, shape: tuple[int, ...], rate: float | Array) -> Array:
    """Return scores of two modes that are far apart, for their spread; `rate` is the share of the lower mode."""
    return -20.0 * (rng.random(shape) < rate) + rng.normal(size=shape)


def false_sweeps(noise: Noise, configurations: int, seeds: int, *, same: bool, samples: int) -> float:
    """Return how often a sweep without any effect has a difference that is said to be beyond chance.

    Args:
        noise: draws the scores of a sweep.
        configurations: number of configurations; the first one is the baseline.
        seeds: number of seeds of each.
        same: whether the others have the seeds of the baseline.
        samples: how many sweeps to simulate.
    """
    rng = np.random.default_rng([configurations, seeds, same])
    false = 0
    for _ in range(samples):
        baseline, *others = (
            Replicates({(str(i + (0 if same or not row else seeds)), ""): score for i, score in enumerate(scores)})
            for row, scores in enumerate(noise(rng, (configurations, seeds)).tolist())
        )
        false += any(found is not None and found.beyond_chance for found in compare(baseline, others, LOSS, 0.0))
    return false / samples


def _sweeps(samples: int = 2000) -> Iterator[list[str]]:
    kinds = [(same, seeds) for same in (True, False) for seeds in (2, 3, 4, 5)]
    yield [
        "scores of seeds",
        "configurations",
        *(f"{'same' if same else 'other'} seeds, n = {seeds}" for same, seeds in kinds),
    ]
    for name, noise in SWEEPS.items():
        for count in (2, 5, 20):
            rates = [false_sweeps(noise, count, seeds, same=same, samples=samples) for same, seeds in kinds]
            yield [name, str(count), *(f"{rate:.1%}" for rate in rates)]


def _skewed() -> Iterator[list[str]]:
    yield ["distribution of the scores, skewness", *(f"n = {n}" for n in COUNTS)]
    for name, noise in NOISES.items():
        yield [name, *(f"{coverage(noise, n):.1%}" for n in COUNTS)]


def _false() -> Iterator[list[str]]:
    yield ["seeds in common", "variance due to the seed", *(f"{kind}, n = {n}" for kind in BOTH for n in COUNTS)]
    cases = [
        (name, correlation, [((n, n), share(n)) for n in COUNTS])
        for name, share in SHARES.items()
        for correlation in (0.0, 0.5, 0.9)
        if share(2) or not correlation
    ]
    cases += [("n (baseline: 2n)", c, [((2 * n, n), n) for n in COUNTS]) for c in (0.0, 0.5, 0.9)]
    for name, correlation, sizes in cases:
        rates = [false_verdicts(NOISES[noise], *size, correlation) for noise in BOTH.values() for size in sizes]
        yield [name, f"{correlation:.1f}".lstrip("0"), *(f"{rate:.1%}" for rate in rates)]


def _print(rows: Iterator[list[str]], words: int) -> None:
    for i, row in enumerate(rows):
        sys.stdout.write(f"| {' | '.join(row)} |\n")
        if not i:
            sys.stdout.write(f"|{words * '---|'}{(len(row) - words) * '---:|'}\n")
        sys.stdout.flush()
    sys.stdout.write("\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["sweeps"]:
        _print(_skewed(), 1)
        _print(_false(), 1)
    _print(_sweeps(), 2)
