"""Intervals and differences: by hand, against scipy, and by simulation."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from lazily import LazyModule
from simulated_verdicts import NOISES, SWEEPS, false_sweeps, false_verdicts

from trainer.sweeps.verdict import (
    LEAST,
    MANY,
    Difference,
    Metric,
    Replicates,
    compare,
    difference,
    holm,
    mean_interval,
    needed,
)
from trainer.sweeps.verdict_text import format_score, verdict

stats = LazyModule("scipy.stats")

SHARE = (0.0, 1.0)
ACCURACY = Metric("val_accuracy", within=SHARE)
LOSS = Metric("val_loss", smaller=True, within=(0.0, math.inf))


def seeds(name: str, *scores: float, start: int = 0) -> Replicates:
    return Replicates({(str(start + i), ""): score for i, score in enumerate(scores)})


def folds(name: str, *scores: float) -> Replicates:
    """Scores of two seeds in each fold."""
    return Replicates({(str(i % 2), str(i // 2)): score for i, score in enumerate(scores)})


def said(baseline: Replicates, *others: Replicates, metric: Metric = ACCURACY, detect: float = 0.005) -> list[str]:
    found = compare(baseline, others, metric, detect)
    return [verdict(one, other, baseline, metric, detect) for one, other in zip(found, others, strict=True)]


# --- intervals ---


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_an_interval_stays_in_its_range_around_the_mean(scores: list[float]) -> None:
    found = mean_interval(scores, SHARE)
    assume(found is not None)
    assert found is not None
    low, high = found
    assert 0 <= low <= np.mean(scores) + 1e-12
    assert np.mean(scores) - 1e-12 <= high <= 1
    assert low < high
    for within in ((0.0, math.inf), (-math.inf, 1.0)):
        one_sided = mean_interval(scores, within)
        assert one_sided is not None
        assert within[0] <= one_sided[0] < one_sided[1] <= within[1]
    # Mistakes are as many as hits.
    mirrored = mean_interval([1 - score for score in scores], SHARE)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-6)


def test_far_from_all_bounds_it_is_that_of_student() -> None:
    scores = [0.50, 0.51, 0.52]
    expected = 4.3027 * 0.01 / math.sqrt(3)
    assert mean_interval(scores) == pytest.approx((0.51 - expected, 0.51 + expected), abs=1e-6)
    assert mean_interval(scores, SHARE) == pytest.approx((0.51 - expected, 0.51 + expected), abs=1e-4)


def test_equal_scores_have_no_interval() -> None:
    assert mean_interval([0.9]) is None
    assert mean_interval([1.0, 1.0, 1.0], SHARE) is None
    assert mean_interval([0.4, 0.2 + 0.2], SHARE) is None  # rounding is no spread


def test_it_holds_the_mean_in_95_of_100_cases() -> None:
    """Student's t interval contains the mean in only 63% of these cases."""
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(10):
        right = rng.beta(0.495, 0.005, 100)  # the chance of each image
        scores = (rng.random((60 * 3, 100)) < right).mean(axis=1).reshape(60, 3)
        for row in scores.tolist():
            if found := mean_interval(row, SHARE):
                hits.append(found[0] <= right.mean() <= found[1])
    assert np.mean(hits) >= 0.92


# --- differences ---


def test_differences_are_those_of_scipy() -> None:
    one, two = [0.7, 0.71, 0.74, 0.69], [0.68, 0.70, 0.71, 0.69]
    found, expected = difference(seeds("b", *two), seeds("o", *one), ACCURACY), stats.ttest_rel(one, two)
    assert found is not None
    assert found.paired
    assert found.p == pytest.approx(expected.pvalue)
    assert found.interval == pytest.approx(tuple(expected.confidence_interval()))
    welch = stats.ttest_ind(one, two, equal_var=False)
    for start in (10, 2):  # no seed in common, or half of them
        found = difference(seeds("b", *two, start=start), seeds("o", *one), ACCURACY)
        assert found is not None
        assert not found.paired
        assert found.p == pytest.approx(welch.pvalue)
        assert found.interval == pytest.approx(tuple(welch.confidence_interval()))


def test_partly_shared_seeds_drop_no_run() -> None:
    """The three seeds in common say the opposite of the means."""
    base, other = seeds("b", 0.900, 0.902, 0.950, 0.951, 0.952), seeds("o", 0.940, 0.942, 0.941, 0.990, 0.992, start=2)
    found = difference(base, other, ACCURACY)
    assert found is not None
    assert (found.mean, found.counts, found.paired) == (pytest.approx(other.mean - base.mean), (5, 5), False)
    assert said(base, other)[0].startswith("no difference beyond chance (+3.0 points")


@pytest.mark.parametrize(("counts", "shared"), [((5, 5), 2), ((6, 3), 3)])
def test_verdicts_on_partly_shared_seeds_are_rarely_false(counts: tuple[int, int], shared: int) -> None:
    """docs/verdicts.md has the figures of a longer simulation."""
    assert false_verdicts(NOISES["normal, 0"], counts, shared, correlation=0.5, samples=400) <= 0.06


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("name", SWEEPS)
def test_sweeps_without_an_effect_have_few_verdicts_whatever_their_spread(name: str, *, same: bool) -> None:
    """docs/reliability.md has the figures of a longer simulation."""
    for configurations, seeds in ((2, 2), (2, 3), (5, 3), (20, 3)):
        samples = 200 // configurations
        assert false_sweeps(SWEEPS[name], configurations, seeds, same=same, samples=samples) <= 0.07


@pytest.mark.parametrize("lower", [(0.30, 0.20), (0.91, 0.80)])
def test_two_seeds_ask_for_a_third_whatever_they_differ_by(lower: tuple[float, float]) -> None:
    (text,) = said(seeds("b", 0.90, 0.92), seeds("o", *lower))
    assert text.startswith("no verdict is possible (-")
    assert text.endswith("Run at least 3 seeds of each")


def test_two_modes_are_named_as_the_reason_why_there_is_no_verdict() -> None:
    high, low, mixed = (0.830, 0.832, 0.831), (0.771, 0.770, 0.769), (0.830, 0.770, 0.831)
    base = seeds("b", *high)
    for start in (0, 10):
        assert said(base, seeds("l", *low, start=start))[0].startswith("worse by 6.1 points")
        first, _ = said(base, seeds("l", *low, start=start), seeds("m", *mixed, start=start))
        assert first.startswith("no verdict is possible")
        assert "at least 4 seeds" in first
    (two,) = said(seeds("b", *high[:2]), seeds("l", 0.769, 0.770))
    assert "at least 3 seeds" in two
    far = seeds("f", 0.5, 0.501, 0.502)  # further than any jump
    assert said(base, far, seeds("m", *mixed))[0].startswith("worse by 33")


def test_folds_are_paired_and_their_seeds_count_as_one() -> None:
    base, expected = folds("b", 0.5, 0.6, 0.7, 0.8, 0.6, 0.6), stats.ttest_rel([0.65, 0.75, 0.65], [0.55, 0.75, 0.6])
    one_seed = Replicates({("0", str(fold)): score for fold, score in enumerate((0.65, 0.75, 0.65))})
    for other in (one_seed, folds("o", 0.6, 0.7, 0.7, 0.8, 0.65, 0.65)):
        found = difference(base, other, ACCURACY)
        assert found is not None
        assert (found.paired, found.counts, found.unit) == (True, (3, 3), "fold")
        assert found.p == pytest.approx(expected.pvalue)


def test_the_correction_of_holm() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("spread", "freedom", "detect", "level", "count"),
    [
        # Cohen 1988: half a standard deviation, two-sided, .05 and .8; the last by scipy's `nct` as well.
        (1.0, 1.0, 0.5, 0.05, 34),
        (math.sqrt(2), 2.0, 0.5, 0.05, 64),
        (1.0, 1.0, 0.5, 0.01, 51),
        (1.0, 1.0, 1e-9, 0.05, MANY),
        (1.0, 1.0, 1e3, 0.05, LEAST),
    ],
)
def test_how_many_are_needed(spread: float, freedom: float, detect: float, level: float, count: int) -> None:
    seen = Difference(0.0, (3, 3), paired=True, p=0.5, spread=spread, freedom=freedom)
    assert needed(seen, detect, level) == count


# --- in words ---


def test_small_scores_keep_their_digits() -> None:
    """Those of numbers in a small unit; shares have four decimals."""
    error = Metric("val_mae", smaller=True, within=(0, math.inf))
    assert [format_score(error, value) for value in (0.0, 12.5, 0.05678, 0.005678, -5.6789e-5)] == [
        "0.0000", "12.5000", "0.0568", "0.005678", "-0.00005679",
    ]  # fmt: skip
    assert format_score(error, 1.25e-6, like=5.6789e-5) == "0.00000125"
    assert format_score(Metric("val_accuracy", within=(0, 1)), 0.00012) == "0.0001"


def test_better_worse_and_no_difference() -> None:
    base = seeds("b", 0.900, 0.910, 0.905, 0.895, 0.900)
    more, less = ([score + sign * d for score, d in zip(base.scores.values(), DELTAS, strict=True)] for sign in (1, -1))
    near = [0.902, 0.904, 0.911, 0.896, 0.894]
    better, worse, none = said(base, seeds("m", *more), seeds("l", *less), seeds("n", *near))
    # A mean of 1.2 and a standard error of 0.0707; t is 2.776 for four degrees of freedom.
    assert better == "better by 1.2 points (95% interval 1.0 to 1.4, corrected p < .001, 5 seeds, paired)"
    assert worse == better.replace("better", "worse")
    assert none.startswith("no difference beyond chance (-0.1 points, 95% interval -0.7 to 0.6, corrected p = .81")
    assert none.endswith(", 5 seeds, paired). Detecting 0.5 points needs about 10 more seeds")


DELTAS = (0.010, 0.012, 0.014, 0.011, 0.013)


@pytest.mark.parametrize("sign", [1, -1])
def test_more_seeds_are_estimated_for_a_large_observed_difference(sign: int) -> None:
    base = seeds("b", 0.90, 0.91, 0.92)
    (verdict,) = said(base, seeds("o", 0.90 + sign * 0.04, 0.91, 0.92 + sign * 0.02))
    assert verdict.startswith(f"no difference beyond chance ({'+' if sign > 0 else '-'}2.0 points")
    assert verdict.endswith(". Detecting 2.0 points needs about 7 more seeds")  # n = 10 for an effect of 1


def test_of_losses_less_is_better_and_has_no_points() -> None:
    base = seeds("b", 0.30, 0.31, 0.32)
    (better,) = said(base, seeds("o", 0.20, 0.215, 0.22), metric=LOSS)
    assert better == "better by 0.0983 (95% interval 0.0912 to 0.1055, p < .001, 3 seeds, paired)"


def test_one_seed_tells_nothing() -> None:
    one, five = seeds("o", 0.9), seeds("b", *[0.9, 0.91, 0.92], start=7)
    assert said(five, one) == ["one seed, which cannot rule out chance. Also run seed=7,8,9"]
    assert said(one, five)[0].startswith("one seed for the baseline, which cannot rule out chance")
    assert said(one, one) == ["one seed here and for the baseline, which cannot rule out chance. Also run seed=1,2,3,4"]


def test_without_any_spread_there_is_no_verdict() -> None:
    base = seeds("b", 0.90, 0.95, 0.90)
    same, shifted = said(base, seeds("s", 0.90, 0.95, 0.90), seeds("o", 0.91, 0.96, 0.91))
    assert same == "the same scores as the baseline (3 seeds), so the change had no effect"
    assert (
        shifted
        == "better by 1 point in each of 3 seeds. Without any variation, chance cannot be estimated. Run more seeds"
    )


def test_runs_at_chance_say_nothing_about_what_was_changed() -> None:
    (said_so,) = said(seeds("b", 0.1, 0.1, 0.1), seeds("s", 0.1, 0.1, 0.1))
    assert said_so.startswith("every run has the same score (3 seeds). ")
