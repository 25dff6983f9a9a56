"""Schedules at the ends, on the edges and beside them, where floats are off by one rounding."""

import math

import pytest

from trainer.optim.schedules import Schedule, cos, drops, exp, flat_cos, one_cycle, position, step


def simulate(schedule: Schedule, total_steps: int) -> list[float]:
    return [schedule(position(step, total_steps)) for step in range(total_steps)]


def test_position_divides_exact_integers() -> None:
    assert [position(step, 4) for step in range(5)] == [0, 0.25, 0.5, 0.75, 1]
    assert position(10**17 + 1, 10**17 + 1) == 1.0
    assert (position(-1, 4), position(5, 4)) == (0, 1)


@pytest.mark.parametrize("shape", [cos, exp])
def test_shapes_meet_their_ends_exactly(shape: type) -> None:
    for start, end in [(0.3, 0.9), (0.9, 0.3), (0.1, 1e-7), (1e-7, 0.1)]:
        schedule = shape(start, end)
        assert (schedule(0.0), schedule(1.0)) == (start, end)


@pytest.mark.parametrize("share", [0.3, 1 / 7, 1 - 1e-12, 1e-17])
def test_the_highest_value_is_where_the_warmup_ends(share: float) -> None:
    schedule = one_cycle(5.0, start=1.0, end=0.0, warmup=share)
    assert (schedule(0.0), schedule(share), schedule(1.0)) == (1, 5, 0)
    near = 1e-3 if min(share, 1 - share) < 1e-9 else 1e-12
    for place in (math.nextafter(share, 0), math.nextafter(share, 1)):
        assert schedule(place) == pytest.approx(5, abs=near)


def test_one_cycle_golden() -> None:
    expected = [0.3, 0.45, 0.75, 0.9, 0.870290661, 0.787046939, 0.66675628, 0.53324372, 0.412953061, 0.329709339]
    assert simulate(one_cycle(0.9, start=0.3, end=0.3), 10) == pytest.approx(expected)


def test_flat_cos_golden() -> None:
    expected = [0.008] * 7 + [0.0068284271, 0.004, 0.0011715729]
    values = [flat_cos(0.008)(place) for place in (0, 0.1, 0.2, 0.4, 0.6, 0.7, 0.75, 0.8125, 0.875, 0.9375)]
    assert values == pytest.approx(expected)
    assert flat_cos(0.008, end=0.001, flat=0)(1.0) == 0.001
    assert flat_cos(0.008, flat=1)(1.0) == 0.008


def test_step_falls_at_every_multiple_of_its_share() -> None:
    found = simulate(step(8.0, share=0.3, factor=0.5), 10)
    assert found == [8, 8, 8, 4, 4, 4, 2, 2, 2, 1]
    assert step(8.0, share=1, factor=0.5)(0.999) == 8


@pytest.mark.parametrize(
    ("scores", "count"),
    [
        ([], 0),
        ([1, 2, 3, 4], 0),
        ([3, 2, 3], 1),
        ([3, 2, 3, 1, 1], 2),
        ([3, 2, 4, 2, 5], 0),
        ([3, math.nan, math.nan, math.nan, 2], 1),
        ([3, math.nan, math.nan, math.nan], 0),
    ],
)
def test_a_plateau_falls_after_epochs_without_a_better_score(scores: list[float], count: int) -> None:
    assert drops(scores, patience=2) == count
