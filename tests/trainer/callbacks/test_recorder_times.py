"""The recorder: running values, rows of steps, and times, also of epochs that are resumed."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fakes import MemoryLoader, on, raises
from recorded import TRAIN, Clock, known, single_images

import trainer.loop.learner
from augment.pipeline.batch import Batch
from trainer.callbacks import recorder
from trainer.callbacks.recorder import STEPS_FILE, Recorder
from trainer.loop.callback import Callback, CancelFit
from trainer.loop.learner import Learner


def test_values_are_read_at_the_first_batch_and_then_at_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    values: list[tuple[int, dict[str, float]]] = []

    def note(learner: Learner) -> None:
        latest = learner.find(Recorder).latest
        if learner.training and (not values or latest is not values[-1][1]):
            values.append((learner.step, latest))

    callbacks = Recorder(interval=3.0), on("before_batch", clock.tick), on("after_batch", note)
    known(*callbacks, train=single_images(), epochs=1).fit()
    assert [step for step, _ in values] == [0, 3, 6, 9]
    assert [latest["images_per_second"] for _, latest in values] == [1.0] * 4
    # Over all images so far, not those since the last row.
    assert values[1][1]["loss"] == pytest.approx((1 + 2 + 2 + 1) / 4 * math.log(2))
    assert values[1][1]["accuracy"] == pytest.approx(2 / 4)


def test_times_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two training batches of an epoch last a second each, and validation counts for neither value."""
    clock = Clock(monkeypatch)
    learner = known(Recorder(), on("before_batch", clock.tick))
    learner.fit()
    assert [row["seconds"] for row in learner.find(Recorder).rows] == [2.0, 2.0]
    assert [row["images_per_second"] for row in learner.find(Recorder).rows] == [1.5, 1.5]


@pytest.mark.parametrize(
    ("stopped", "rate"),
    [
        ("after_batch", 1.0),  # that of the second part alone
        ("after_validate", 1.5),  # nothing is left to train: that of the first part, without validation
    ],
)
def test_times_of_an_epoch_in_two_parts(stopped: str, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seconds count both parts, but not what is between them."""
    clock = Clock(monkeypatch)
    first = known(Recorder(), on("before_batch", clock.tick))
    saved: list[dict[str, object]] = []
    first.callbacks += (on(stopped, lambda learner: saved.append(learner.state())),)
    first.fit()
    clock.now += 1000.0
    second = known(Recorder(), on("before_batch", clock.tick), epochs=1)
    second.fit(second.restore(saved[0]))
    (row,) = second.find(Recorder).rows
    assert (row["seconds"], row["images_per_second"]) == (2.0, rate)


def test_each_row_has_the_loss_since_the_previous_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses of single images, read at the first one and then at every third."""
    clock = Clock(monkeypatch)
    callbacks = Recorder(interval=3.0), on("before_batch", clock.tick)
    known(*callbacks, train=single_images(), folder=tmp_path, epochs=1).fit()
    values = [json.loads(line) for line in (tmp_path / STEPS_FILE).read_text().splitlines()]
    assert [row["seconds"] for row in values] == [1.0, 4.0, 7.0, 10.0, 12.0]
    assert [row["step"] for row in values] == [1, 4, 7, 10, 12]
    assert [row["images_per_second"] for row in values] == [1.0] * 5
    thirds = (2 + 2 + 1) / 3
    assert [row["loss"] / math.log(2) for row in values] == pytest.approx([1, thirds, thirds, thirds, 2])


def test_the_rows_of_a_resumed_epoch_equal_those_of_a_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time in between does not count, nor do losses of the first part in rows of the second."""
    clock = Clock(monkeypatch)

    def learner(*callbacks: Callback) -> Learner:
        ticking = Recorder(interval=1.0), on("before_batch", clock.tick)
        return known(*ticking, *callbacks, train=single_images(), epochs=1)

    first = learner(on("after_batch", raises(CancelFit, 4)))
    first.fit()
    clock.now += 1000.0
    second = learner()
    second.fit(second.restore(first.state()))
    values = second.find(Recorder).steps
    assert [(row.seconds, row.step) for row in values] == [(step, step) for step in range(1, 13)]
    assert [row.loss / math.log(2) for row in values] == pytest.approx([1, 2, 2] * 4)


def test_rows_continue_after_an_interruption_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MAX_STEPS", 6)
    clock = Clock(monkeypatch)
    first = known(Recorder(interval=0.0), on("before_batch", clock.tick), on("after_batch", raises(CancelFit, 5)))
    first.fit()
    clock.now += 1000.0
    second = known(Recorder(interval=0.0), on("before_batch", clock.tick), epochs=6)
    second.fit(second.restore(first.state()))
    values = second.find(Recorder).steps
    assert 3 <= len(values) <= 6
    seconds, steps = [step.seconds for step in values], [step.step for step in values]
    assert seconds == sorted(seconds)
    assert steps == sorted(steps)
    assert steps[0] == 1
    assert seconds[-1] < 100


def test_the_share_of_time_spent_waiting_for_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch takes a second to come and three to be trained on; validation counts for neither."""
    clock = Clock(monkeypatch)
    monkeypatch.setattr(trainer.loop.learner, "monotonic", lambda: clock.now)

    class Slow(MemoryLoader):
        def __iter__(self) -> Iterator[Batch]:
            for batch in super().__iter__():
                clock.now += 1.0
                yield batch

    images = torch.tensor(TRAIN[0])[:, :, None, None]
    train = Slow(images, torch.tensor(TRAIN[1]), 1, shuffle=False)

    def work(learner: Learner) -> None:
        clock.now += 3.0

    learner = known(Recorder(), on("before_batch", work), train=train)
    learner.fit()
    assert [row["waiting"] for row in learner.find(Recorder).rows] == [0.25, 0.25]
