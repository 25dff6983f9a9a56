"""The loop's events in order, how a level is left, and who is told of a failure."""

from collections.abc import Callable
from typing import Any

import pytest
from fakes import (
    journal,
    make_learner,
    on,
    raises,
    small_learner,
)

from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import (
    CANCELS,
    EVENTS,
    Callback,
    CancelTrain,
)
from trainer.loop.counts import Position
from trainer.loop.learner import Learner

TRAIN_BATCH = ["before_batch", "before_step", "after_step", "after_batch"]
VAL_BATCH = ["before_batch", "after_batch"]
EPOCH = [
    "before_epoch",
    *["before_train", *TRAIN_BATCH, *TRAIN_BATCH, "after_train"],
    *["before_validate", *VAL_BATCH, "after_validate"],
    "after_epoch",
]
FIT = ["before_fit", *EPOCH, *EPOCH, "after_fit"]


def trace(*callbacks: Callback, **options: Any) -> list[str]:
    events: list[str] = []
    small_learner(journal(events, order=-1000), *callbacks, **options).fit()
    return events


def at_call(index: int, action: Callable[[], None]) -> Callback:
    """Make a callback that acts at the event that is number `index` of the whole fit."""
    seen: list[str] = []

    def event(name: str) -> Callable[[Callback, Learner], None]:
        def method(self: Callback, learner: Learner) -> None:
            seen.append(name)
            if len(seen) == index + 1:
                action()

        return method

    made: Callback = type("AtCall", (Callback,), {name: event(name) for name in EVENTS})()
    return made


def throw(error: BaseException) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


def open_levels(index: int) -> set[str]:
    """Return the levels that the event number `index` of `FIT` is in, its own included if it is the first of it."""
    levels: list[str] = []
    for event in FIT[: index + 1]:
        when, level = event.split("_")
        if when == "before":
            levels.append(level)
        else:
            levels.remove(level)
    return set(levels)


def test_all_events_in_order() -> None:
    assert trace() == FIT


@pytest.mark.parametrize("level", CANCELS)
def test_each_level_can_be_left_from_each_event_in_it(level: str) -> None:
    """What is left out ends with the level's own after event, and everything else happens."""
    places = [index for index in range(len(FIT)) if level in open_levels(index)]
    assert places
    for index in places:
        after = FIT.index(f"after_{level}", index + 1)
        events: list[str] = []
        learner = small_learner(journal(events, order=-1000), at_call(index, throw(CANCELS[level]())))
        learner.fit()
        assert events == FIT[: index + 1] + FIT[after:], f"{level} left in event {index}, {FIT[index]}"
        assert learner.error is None


def test_the_callbacks_behind_the_one_that_cancels_miss_the_event_and_get_the_after_event() -> None:
    events: list[str] = []
    small_learner(on("before_train", raises(CancelTrain)), journal(events, order=1), epochs=1).fit()
    assert events == ["before_fit", "before_epoch", *EPOCH[10:], "after_fit"]


@pytest.mark.parametrize(("every", "expected"), [(1, [0, 1, 2, 3, 4]), (2, [1, 3, 4]), (9, [4])])
def test_epochs_between_validations(every: int, expected: list[int]) -> None:
    learner = make_learner(Recorder(), epochs=5, validate_every=every)
    learner.fit()
    assert [row["epoch"] for row in learner.find(Recorder).rows if "val_loss" in row] == expected
    assert len(learner.find(Recorder).rows) == 5


def test_validation_may_stand_alone() -> None:
    events: list[str] = []
    learner = small_learner(journal(events))
    learner.validate()
    assert events == ["before_validate", *VAL_BATCH, "after_validate"]


# --- failures ---


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
@pytest.mark.parametrize("event", [event for event in EVENTS if event != "after_fit"])
def test_after_fit_reaches_everybody_when_a_callback_fails(event: str, error: BaseException) -> None:
    seen: list[tuple[str, BaseException | None]] = []
    first = on("after_fit", lambda learner: seen.append(("first", learner.error)), -1)
    last = on("after_fit", lambda learner: seen.append(("last", learner.error)), 1)
    learner = small_learner(first, on(event, raises(error)), last)
    with pytest.raises(type(error)) as caught:
        learner.fit()
    assert caught.value is error
    assert learner.error is error
    assert seen == [("first", error), ("last", error)]


def test_one_failing_after_fit_does_not_keep_the_others_from_running() -> None:
    seen: list[BaseException | None] = []
    error = OSError("disk full")
    learner = small_learner(
        on("after_fit", lambda learner: seen.append(learner.error), -1),
        on("after_fit", raises(error), 0),
        on("after_fit", lambda learner: seen.append(learner.error), 1),
        on("after_fit", raises(ValueError("and this")), 2),
        on("after_fit", lambda learner: seen.append(learner.error), 3),
    )
    with pytest.raises(ValueError, match="and this") as caught:
        learner.fit()
    assert seen == [None, error, error]
    assert caught.value.__context__ is error


def test_what_waits_for_the_end_of_a_batch_waits_for_no_other_one() -> None:
    done: list[Position] = []

    def ask(learner: Learner) -> None:
        learner.after_this_batch(lambda learner: done.append(learner.position))

    make_learner(on("before_step", ask), on("after_batch", raises(CancelTrain, 1), 99)).fit()
    assert done == [(0, 1), (1, 1), (1, 2), (1, 3)]
