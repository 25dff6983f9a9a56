"""The loop: what is counted, what a batch does, events in order, how a level is left, and failures."""

import copy
import math
import pickle
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fakes import (
    assert_same,
    journal,
    logits_loader,
    make_learner,
    noise_loader,
    on,
    raises,
    sgd,
    small_learner,
    tiny_model,
)
from torch import Tensor, nn

from augment.support.errors import UserError
from trainer.callbacks.checkpoint import Checkpoint
from trainer.callbacks.optimizer_steps import EarlyStopping, PrepareValidation
from trainer.callbacks.progress import ProgressBar
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import CANCELS, EVENTS, Callback, CancelStep, CancelTrain
from trainer.loop.learner import Learner
from trainer.loop.progress import Position
from trainer.loop.settings import LoopSettings

# --- counting ---


@pytest.mark.parametrize(("samples", "limit"), [(1, None), (5, None), (4, 1), (5, 2), (5, 99)])
def test_steps_are_counted_exactly_and_no_batch_is_fetched_beyond_the_limit(samples: int, limit: int | None) -> None:
    train, val = noise_loader(samples), noise_loader(5)
    steps: list[int] = []
    count = on(
        "before_batch", lambda learner: steps.append(learner.progress.batches_done - 1) if learner.training else None
    )
    learner = make_learner(count, train=train, val=val, epochs=3, limit_batches=limit)
    learner.fit()
    batches = min(limit or 99, math.ceil(samples / 2))
    assert learner.settings.limited(len(train)) == batches
    assert learner.progress.total_batches == 3 * batches
    assert steps == list(range(3 * batches))
    for loader, of_pass in ((train, batches), (val, min(limit or 99, 3))):
        assert loader.fetched == [(epoch, number) for epoch in range(3) for number in range(of_pass)]


# --- what a batch does ---


def test_modes_and_gradients() -> None:
    seen: defaultdict[str, set[tuple[bool, bool]]] = defaultdict(set)
    gradients: set[tuple[bool, bool, bool]] = set()

    def look(event: str) -> Callback:
        return on(event, lambda learner: seen[event].add((learner.training, learner.model.training)))

    def graph(learner: Learner) -> None:
        gradients.add((learner.training, learner.output.requires_grad, learner.output.is_inference()))

    passes = [event for event in EVENTS if event not in ("before_fit", "before_epoch")]
    small_learner(*(look(event) for event in passes), on("after_batch", graph)).fit()
    assert gradients == {(True, True, False), (False, False, True)}
    for event in ("before_batch", "after_batch"):
        assert seen[event] == {(True, True), (False, False)}, event
    for event in ("before_train", "after_train", "before_step", "after_step"):
        assert seen[event] == {(True, True)}, event
    for event in ("before_validate", "after_validate", "after_epoch", "after_fit"):
        assert seen[event] == {(False, False)}, event


def test_validation_changes_nothing() -> None:
    learner = small_learner(model=tiny_model(dropout=0.5))
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    random = torch.get_rng_state()
    learner.validate()
    assert_same(learner.model.state_dict(), before)
    assert_same(torch.get_rng_state(), random)
    assert all(p.grad is None for p in learner.model.parameters())


class Linear(nn.Linear):
    """Takes images of one pixel; has no bias and starts with the weights given."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__(3, 3, bias=False)
        self.weight.data.copy_(weight)

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.flatten(1))


def test_a_step_is_that_of_the_optimizer() -> None:
    """The weight of one linear layer after one step, from the gradient of softmax and cross entropy by hand."""
    weight = torch.diag(torch.tensor([1.0, 2.0, 3.0]))
    model = Linear(weight)
    loader = logits_loader([[1.0, 2.0, 3.0], [0.5, 0.0, -1.0]], [0, 2])
    learner = make_learner(
        model=model, train=loader, val=loader, epochs=1, optimizer=lambda m: torch.optim.SGD(m.parameters(), 0.5)
    )
    learner.fit()
    images = torch.tensor([[1.0, 2.0, 3.0], [0.5, 0.0, -1.0]])
    errors = (images @ weight.T).softmax(1) - torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    torch.testing.assert_close(model.weight.data, weight - 0.5 * errors.T @ images / 2)


def test_cancel_step_adds_gradients_up() -> None:
    """Two batches with one step equal one step of the sum of their gradients."""

    def weights(skip: bool, loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        model = Linear(torch.eye(3))
        loader = logits_loader([[1, 2, 3], [0, 1, 0], [3, 1, 0], [2, 2, 1]], [0, 1, 1, 2], 2 if skip else 4)
        every_other = [on("before_step", raises(CancelStep))] if skip else []
        make_learner(*every_other, train=loader, val=loader, model=model, epochs=1, loss_function=loss).fit()
        return model.weight.data

    mean, total = nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="sum")
    torch.testing.assert_close(weights(True, mean), weights(False, lambda o, t: total(o, t) / 2))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epoch": 1}, r"^LoopSettings\.epoch: unknown key\. Did you mean 'epochs'\?"),
        ({"max_epochs": 1}, r"^LoopSettings\.max_epochs: unknown key\. Did you mean 'epochs'\?"),
        ({"epochs": 0}, r"^LoopSettings\.epochs: 0 is not allowed\."),
        ({"precision": "bfloat16"}, r"^LoopSettings\.precision: .* Did you mean 'bf16'\?"),
    ],
)
def test_settings_from_python_are_checked(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LoopSettings(**given)
    assert LoopSettings(device=torch.device("cpu")).torch_device() == torch.device("cpu")  # type: ignore[arg-type]
    settings = LoopSettings(epochs=2)
    assert copy.deepcopy(settings) == pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize("native", [True, False])
def test_auto_is_bf16_only_where_the_device_computes_in_it(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: native)
    monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda: False)
    settings = LoopSettings(precision="auto", device="cpu")
    assert (settings.half, settings.scaled) == (native, False)
    assert settings.autocast(torch.device("cpu"))._enabled is native


@pytest.mark.parametrize(
    ("precision", "native", "noted"), [("bf16", False, True), ("bf16", True, False), ("fp32", False, False)]
)
def test_bf16_that_is_slower_has_a_note(
    precision: str, native: bool, noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.loop.settings.has_bf16", lambda _: native)
    note = LoopSettings(precision=precision, device="cpu").slow_precision
    assert ("fit.precision=auto" in note) == noted


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_bf16_is_autocast_of_the_forward_pass_alone(precision: str, dtype: torch.dtype) -> None:
    seen: list[tuple[torch.dtype, torch.dtype]] = []
    learner = small_learner(
        on("after_batch", lambda learner: seen.append((learner.output.dtype, learner.loss.dtype))), precision=precision
    )
    learner.fit()
    assert set(seen) == {(dtype, torch.float32)}
    assert {p.dtype for p in learner.model.parameters()} == {torch.float32}


def test_validation_may_have_a_loss_of_its_own() -> None:
    seen: list[tuple[bool, float]] = []
    look = on("after_batch", lambda learner: seen.append((learner.training, learner.loss.item())))

    def nine(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.sum() * 0 + 9

    small_learner(look, val_loss_function=nine, epochs=1).fit()
    assert [(training, loss == 9) for training, loss in seen] == [(True, False), (True, False), (False, True)]


def test_a_fit_without_validation(capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder()
    learner = Learner(
        tiny_model(),
        noise_loader(),
        settings=LoopSettings(epochs=2, device="cpu"),
        optimizer=sgd,
        callbacks=[recorder, PrepareValidation(), ProgressBar(), EarlyStopping(), Checkpoint()],
    )
    learner.fit()
    learner.validate()
    assert [sorted(key for key in row if "loss" in key) for row in recorder.rows] == [["train_loss"]] * 2
    assert "val" not in capsys.readouterr().out


# --- events ---


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
        learner.after_this_batch(lambda learner: done.append(learner.progress.position))

    make_learner(on("before_step", ask), on("after_batch", raises(CancelTrain, 1), 99)).fit()
    assert done == [(0, 1), (1, 1), (1, 2), (1, 3)]
