"""Schedules at the ends, on the edges and beside them, where floats are off by one rounding."""

import math
import pickle

import pytest

from trainer.optim.schedule import Schedule, combine, constant, cos, exp, flat_cos, lin, one_cycle, position

ABOVE_ONE = 1.0000000000000022
SHARES = [[0.3, 0.7], [0.1] * 10, [1 / 3] * 3, [1 / 7] * 7, [1 / 49] * 49, [0.25, 0.25, 0.5], [1.0], [1e-12, 1 - 1e-12]]


def simulate(schedule: Schedule, total_steps: int) -> list[float]:
    return [schedule(position(step, total_steps)) for step in range(total_steps)]


def staircase(shares: list[float]) -> Schedule:
    """Phase i of the result runs from i to i + 1, so its value tells the phase and the place in it."""
    return combine(shares, [lin(index, index + 1) for index in range(len(shares))])


def test_position_divides_exact_integers() -> None:
    assert [position(step, 4) for step in range(5)] == [0, 0.25, 0.5, 0.75, 1]
    assert position(10**17 + 1, 10**17 + 1) == 1.0


def test_position_is_clamped() -> None:
    assert position(-1, 10) == 0.0
    assert position(11, 10) == 1.0


@pytest.mark.parametrize("total_steps", [0, -3])
def test_position_refuses_an_empty_run(total_steps: int) -> None:
    with pytest.raises(ValueError, match=f"at least 1, not {total_steps}"):
        position(0, total_steps)


@pytest.mark.parametrize(("step", "total_steps"), [(1.5, 10), (1, 147.06)])
def test_position_refuses_counts_that_are_no_integers(step: float, total_steps: float) -> None:
    with pytest.raises(TypeError):
        position(step, total_steps)  # type: ignore[arg-type]


@pytest.mark.parametrize("total_steps", [1, 3, 7, 147, 148, 1176, 9469])
def test_every_step_of_any_total_has_a_value(total_steps: int) -> None:
    values = simulate(staircase([0.1] * 10), total_steps + 1)
    assert values[0] == 0
    assert values == sorted(values)
    assert staircase([0.1] * 10)(position(total_steps, total_steps)) == 10


@pytest.mark.parametrize("shape", [lin, cos, exp])
def test_shapes_meet_their_ends_exactly(shape: type) -> None:
    for start, end in [(0.3, 0.9), (0.9, 0.3), (0.1, 1e-7), (1e-7, 0.1)]:
        schedule = shape(start, end)
        assert (schedule(0.0), schedule(1.0)) == (start, end)


def test_shapes_halfway() -> None:
    assert lin(1, 3)(0.5) == 2
    assert cos(1, 3)(0.5) == pytest.approx(2)
    assert cos(0, 1)(0.25) == pytest.approx((1 - math.sqrt(0.5)) / 2)
    assert exp(1e-4, 1e-2)(0.5) == pytest.approx(1e-3)
    assert constant(0.7)(0.5) == 0.7


@pytest.mark.parametrize(
    "schedule", [constant(1), lin(1, 2), cos(1, 2), exp(1, 2), staircase([0.3, 0.7]), one_cycle(1, start=0, end=0)]
)
def test_positions_outside_are_clamped_and_nan_is_refused(schedule: Schedule) -> None:
    for above in (ABOVE_ONE, 1 + 2e-15, 1.5, math.inf):
        assert schedule(above) == schedule(1.0)
    for below in (-1e-300, -0.5, -math.inf):
        assert schedule(below) == schedule(0.0)
    with pytest.raises(ValueError, match="NaN"):
        schedule(math.nan)


@pytest.mark.parametrize("shares", SHARES, ids=lambda shares: f"{len(shares)}x{shares[0]:.3g}")
def test_edges_of_phases(shares: list[float]) -> None:
    schedule = staircase(shares)
    assert (schedule(0.0), schedule(1.0), schedule(ABOVE_ONE)) == (0, len(shares), len(shares))
    assert schedule(math.nextafter(1, 0)) == pytest.approx(len(shares))
    for index in range(1, len(shares)):
        edge = math.fsum(shares[:index])
        for place in (math.nextafter(edge, 0), edge, math.nextafter(edge, 1)):
            assert schedule(place) == pytest.approx(index, abs=1e-3 if min(shares) < 1e-9 else 1e-12)


def test_an_edge_is_the_start_of_the_later_phase() -> None:
    schedule = combine([0.3, 0.7], [constant(1), lin(5, 6)])
    assert schedule(math.nextafter(0.3, 0)) == 1
    assert schedule(0.3) == 5
    assert schedule(math.nextafter(0.3, 1)) == pytest.approx(5)


@pytest.mark.parametrize("phases", range(2, 60))
def test_step_k_of_n_equal_phases_starts_phase_k(phases: int) -> None:
    schedule = combine([1 / phases] * phases, [constant(index) for index in range(phases)])
    assert simulate(schedule, phases) == list(range(phases))


@pytest.mark.parametrize("shares", [[0.5, 1e-17, 0.5], [1.0, 5e-10], [0.5, 0.5 + 9e-10], [5e-324, 1.0]])
def test_phases_too_short_for_a_float_do_no_harm(shares: list[float]) -> None:
    schedule = staircase(shares)
    values = [schedule(place) for place in (0.0, 5e-324, 0.25, 0.5, math.nextafter(1, 0), 1.0)]
    assert values == sorted(values)
    assert values[-1] == len(shares)


def test_combined_schedules_nest() -> None:
    inner = combine([0.5, 0.5], [constant(1), constant(2)])
    schedule = combine([0.5, 0.5], [inner, constant(3)])
    assert [schedule(place) for place in (0.0, 0.25, 0.5, 1.0)] == [1, 2, 3, 3]


def test_any_function_of_the_position_can_be_a_phase() -> None:
    schedule = combine([0.5, 0.5], [lambda place: place, constant(3)])
    assert schedule(0.25) == 0.5


@pytest.mark.parametrize(
    "shares",
    [[0.5, 0.4], [0.5, 0.5 + 2e-9], [1.5, -0.5], [0.0, 1.0], [math.nan, 1.0], [math.inf, 0.5]],
)
def test_bad_fractions_are_refused(shares: list[float]) -> None:
    with pytest.raises(ValueError, match="must be positive and sum to 1"):
        combine(shares, [constant(1), constant(2)])


@pytest.mark.parametrize(("fractions", "schedules"), [([], []), ([1.0], []), ([0.5, 0.5], [constant(1)])])
def test_each_phase_needs_a_fraction_and_a_schedule(fractions: list[float], schedules: list[Schedule]) -> None:
    with pytest.raises(ValueError, match=f"one fraction for each schedule, not {len(fractions)} for {len(schedules)}"):
        combine(fractions, schedules)


@pytest.mark.parametrize(("start", "end"), [(0, 1), (1, 0), (-1, 1), (math.nan, 1)])
def test_exp_refuses_what_is_not_positive(start: float, end: float) -> None:
    with pytest.raises(ValueError, match="positive start and end"):
        exp(start, end)


def test_one_cycle_golden() -> None:
    expected = [0.3, 0.45, 0.75, 0.9, 0.870290661, 0.787046939, 0.66675628, 0.53324372, 0.412953061, 0.329709339]
    assert simulate(one_cycle(0.9, start=0.3, end=0.3), 10) == pytest.approx(expected)


def test_one_cycle_rises_to_its_peak_and_falls() -> None:
    schedule = one_cycle(0.9, start=0.3, end=0.001, warmup=0.25)
    values = simulate(schedule, 1001)
    top = values.index(max(values))
    assert top == pytest.approx(0.25 * 1001, abs=1)
    assert values[:top] == sorted(values[:top])
    assert values[top:] == sorted(values[top:], reverse=True)
    assert (schedule(0.0), schedule(0.25), schedule(1.0)) == (0.3, 0.9, 0.001)


def test_one_cycle_without_or_with_nothing_but_warmup() -> None:
    assert one_cycle(0.9, start=0.3, end=0.1, warmup=0)(0.0) == 0.9
    assert one_cycle(0.9, start=0.3, end=0.1, warmup=1)(1.0) == 0.9


def test_flat_cos_golden() -> None:
    expected = [0.008] * 7 + [0.0068284271, 0.004, 0.0011715729]
    values = [flat_cos(0.008)(place) for place in (0, 0.1, 0.2, 0.4, 0.6, 0.7, 0.75, 0.8125, 0.875, 0.9375)]
    assert values == pytest.approx(expected)
    assert flat_cos(0.008)(1.0) == 0
    assert flat_cos(0.008, end=0.001, flat=0)(1.0) == 0.001
    assert flat_cos(0.008, flat=1)(1.0) == 0.008


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_shares_outside_the_run_are_refused(share: float) -> None:
    with pytest.raises(ValueError, match="warmup must be in"):
        one_cycle(1, start=0, end=0, warmup=share)
    with pytest.raises(ValueError, match="flat must be in"):
        flat_cos(1, flat=share)


def test_a_schedule_prints_as_the_call_that_made_it() -> None:
    schedule = combine([0.25, 0.75], [exp(0.1, 1.0), one_cycle(0.9, start=0.3, end=0.3)])
    text = "combine([0.25, 0.75], [exp(0.1, 1.0), one_cycle(0.9, start=0.3, end=0.3, warmup=0.3)])"
    assert repr(schedule) == text
    assert eval(text) == schedule
    assert repr(flat_cos(0.1)) == "flat_cos(0.1, end=0.0, flat=0.75)"


def test_a_schedule_can_be_pickled() -> None:
    schedule = one_cycle(0.9, start=0.3, end=0.3)
    assert pickle.loads(pickle.dumps(schedule))(0.15) == schedule(0.15)
