"""Timed stretches of batches: the loader itself holds the watch, so that every row is timed alike."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from time import monotonic

from augment.bench.cpu_time import machine_seconds, own_seconds
from augment.bench.report import Timing
from augment.bench.run import synchronize
from augment.loader import Batch


@dataclass(frozen=True)
class Window(Timing):
    """One row in one round.

    Attributes:
        batches: how many came.
        waited: seconds that the host spent in asking for them. On a GPU the host runs ahead of it, so that this may
            be as long as training takes although no data are missing.
        issue: seconds that the host took for a batch when the GPU had nothing else to do: what it takes to start a
            step. On the CPU it is the step.
    """

    batches: int = 0
    waited: float = 0.0
    issue: float = 0.0


class Metered:
    """A loader of so many batches, which come out of an endless stream, are timed and never more than once.

    Whoever iterates over it does its work on each batch. The window opens after some batches that may have lain ready,
    and closes when all work is done: the GPU is waited for at its edges and nowhere else.

    Args:
        stream: the batches.
        batches: to be timed.
        ahead: batches before the window, of which each is timed alone; at least one.
        clock: returns seconds.

    Attributes:
        window: what was measured, once it has been iterated over.
    """

    def __init__(
        self, stream: Iterator[Batch], batches: int, *, ahead: int = 1, clock: Callable[[], float] = monotonic
    ) -> None:
        self._stream, self._batches, self._ahead, self._clock = stream, batches, ahead, clock
        self.window: Window | None = None

    def __len__(self) -> int:
        """Batches in all, and one that does not come: asked for it, the loader learns that the last one is done."""
        return self._ahead + self._batches + 1

    def batches_in(self, epoch: int) -> int:
        """As many in every epoch."""
        return len(self)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches."""
        issues = []
        for _ in range(self._ahead):
            batch = next(self._stream)
            synchronize()
            asked = self._clock()
            yield batch
            issues.append(self._clock() - asked)
        synchronize()
        machine, own, begun = machine_seconds(), own_seconds(), self._clock()
        pictures, waited = 0, 0.0
        for _ in range(self._batches):
            asked = self._clock()
            batch = next(self._stream)
            waited += self._clock() - asked
            pictures += len(batch)
            yield batch
        synchronize()
        seconds, own, now = self._clock() - begun, own_seconds() - own, machine_seconds()
        others = None if machine is None or now is None else max(now - machine - own, 0.0)
        self.window = Window(pictures, seconds, own, others, self._batches, waited, median(issues))

    # Nothing of it is saved.

    def end_pass(self) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, object]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Take nothing back."""


Consume = Callable[[Metered], None]


class Row:
    """A way to use up batches, timed in windows of about so many seconds.

    The number of batches is settled beforehand, from the last window's speed: a host that runs ahead of the GPU does
    not know how much time has passed.

    Args:
        stream: endless batches.
        consume: iterates over a loader, with its work.
        ahead: batches before each window, see `Metered`.
        clock: returns seconds.
    """

    def __init__(
        self,
        stream: Callable[[], Iterator[Batch]],
        consume: Consume,
        *,
        ahead: int = 1,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._stream, self._consume, self._ahead, self._clock = stream, consume, ahead, clock
        self._batches = 1

    def warm_up(self, seconds: float) -> None:
        """Run until a window is long enough to tell how many batches make one of so many seconds."""
        self.time(seconds)  # what happens once: graphs are recorded, kernels are chosen, memory is taken
        while self._window.seconds < seconds / 4:
            self._batches = 4 * self._window.batches  # not more at once: a few batches say little
            self.time(seconds)

    def time(self, seconds: float) -> Window:
        """Time a window; the next one will be of about so many seconds."""
        metered = Metered(self._stream(), self._batches, ahead=self._ahead, clock=self._clock)
        self._consume(metered)
        assert metered.window is not None, "not all batches were used up"
        self._window = metered.window
        per_batch = max(self._window.seconds / self._window.batches, 1e-9)
        self._batches = max(1, round(seconds / per_batch))
        return self._window
