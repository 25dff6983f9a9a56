"""Time windows of batches inside the loader, so that every row is timed in the same way."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from time import monotonic
from typing import Any

from augment.pipeline.batch import Batch
from augment.support.timing import Timing, stopwatch, synchronize


@dataclass(frozen=True)
class Window(Timing):
    """A measurement of one row in one round.

    Attributes:
        batches: number of batches.
        waited: seconds that the host waited for them. As the host runs ahead of a GPU, this may be as long as training
            takes although no data are missing.
        issue: seconds that the host took for a batch while the GPU was idle: the time to start a step. On the CPU it
            is the whole step.
    """

    batches: int = 0
    waited: float = 0.0
    issue: float = 0.0


class Metered:
    """A loader that yields a number of batches of an endless stream once, and times them.

    The consumer does its work on each batch. The window starts after some batches that may have been prefetched and
    ends when all work is done. The host waits for the GPU at both ends and nowhere else.

    Args:
        stream: the batches.
        batches: number of batches to time.
        ahead: batches before the window, each timed alone; at least one.

    Attributes:
        window: the measurement, after an iteration.
    """

    plan = None

    def __init__(self, stream: Iterator[Batch], batches: int, *, ahead: int) -> None:
        self._stream, self._batches, self._ahead = stream, batches, ahead
        self.window: Window | None = None

    def __len__(self) -> int:
        """All batches, and one that never comes: when it is requested, the last one is done."""
        return self._ahead + self._batches + 1

    def batches_in(self, epoch: int) -> int:
        """Return the same number for every epoch."""
        return len(self)

    def images_in(self, epoch: int, first: int, batches: int) -> int:
        """Return the number of batches, which are all alike."""
        return batches

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches."""
        issues = []
        for _ in range(self._ahead):
            batch = next(self._stream)
            synchronize()
            asked = monotonic()
            yield batch
            issues.append(monotonic() - asked)
        stop, images, waited = stopwatch(), 0, 0.0
        for _ in range(self._batches):
            asked = monotonic()
            batch = next(self._stream)
            waited += monotonic() - asked
            images += len(batch)
            yield batch
        self.window = Window(images, *stop(), self._batches, waited, median(issues))

    # There is nothing to prepare or to save.

    def prepare(self) -> None:
        """Do nothing."""

    def end_pass(self) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""


Consume = Callable[[Metered], None]


class TimedRow:
    """A consumer of batches, timed in windows of a given length.

    The number of batches is computed in advance from the speed of the previous window, as a host that runs ahead of the
    GPU does not know how much time has passed.

    Args:
        stream: endless batches.
        consume: iterates over a loader, with its work.
        ahead: batches before each window, see `Metered`.
    """

    def __init__(self, stream: Callable[[], Iterator[Batch]], consume: Consume, *, ahead: int) -> None:
        self._stream, self._consume, self._ahead = stream, consume, ahead
        self._batches = 1

    def warm_up(self, seconds: float) -> Callable[[float], Window]:
        """Run until a window is long enough to estimate how many batches take so many seconds; return `time`."""
        self.time(seconds)  # first-time work: recording graphs, choosing kernels, allocating memory
        while self._window.seconds < seconds / 4:
            self._batches = 4 * self._window.batches  # not more at once, as a few batches give a poor estimate
            self.time(seconds)
        return self.time

    def time(self, seconds: float) -> Window:
        """Time a window; the next one will take about so many seconds."""
        metered = Metered(self._stream(), self._batches, ahead=self._ahead)
        self._consume(metered)
        assert metered.window is not None, "not all batches were consumed"
        self._window = metered.window
        per_batch = max(self._window.seconds / self._window.batches, 1e-9)
        self._batches = max(1, round(seconds / per_batch))
        return self._window
