"""Benchmarks: what is timed, in turns, and how rows are compared."""

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from augment.cli.benchmark import LeftOutError, Result, Row, Timing, consumer, time_interleaved

pytestmark = pytest.mark.usefixtures("no_settling")


def result(name: str, *speeds: float) -> Result:
    return Result(Row(name, name, lambda: len), [Timing(round(2 * speed), 1, 2.0, 3.0) for speed in speeds])


def test_ratios_are_medians_over_rounds() -> None:
    slow, fast = result("slow", 100, 50, 30), result("fast", 200, 200, 300)
    assert slow.ratio(fast) == 0.25  # of 0.5, 0.25 and 0.1
    assert (slow.speed, slow.cores) == (50, 1.5)
    # The machine was slow in the second round: both rows say so, and it cancels out.
    assert result("a", 100, 10, 90).ratio(result("b", 200, 20, 180)) == 0.5


def test_rows_take_turns_and_what_is_ready_is_not_timed() -> None:
    ran: list[tuple[str, int]] = []

    def recorded(name: str) -> Callable[[int], int]:
        def run(batches: int) -> int:
            ran.append((name, batches))
            return 10 * batches

        return run

    rows = [Row("a", "A", lambda: recorded("a"), ahead=7, stride=3), Row("b", "B", lambda: recorded("b"), ahead=2)]
    first, second = time_interleaved(rows, rounds=2, seconds=1e-9)
    assert [name for name, _ in ran[-8:]] == ["a", "a", "b", "b"] * 2
    assert [batches for name, batches in ran[-8:] if name == "a"][::2] == [7, 7]
    assert len(first.timings) == len(second.timings) == 2
    for timing in first.timings:
        assert timing.images == 10 * timing.batches
        assert timing.batches % 3 == 0


@pytest.mark.parametrize("late", [False, True])
def test_a_row_that_cannot_run_is_left_out_with_the_reason(late: bool) -> None:
    def batches() -> Iterator[str]:
        raise LeftOutError("no GPU")
        yield "never"

    def start() -> Callable[[int], int]:
        return consumer(batches() if late else iter(next(batches())))

    endless = consumer("x" * 5 for _ in count())
    left_out, other = time_interleaved([Row("a", "A", start), Row("b", "B", lambda: endless)], rounds=1, seconds=1e-9)
    assert (left_out.left_out, left_out.timings) == ("no GPU", [])
    assert other.timings[0].images == 5 * other.timings[0].batches
