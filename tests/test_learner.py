"""The loop: its events in order, how a level is left, what is counted, what is saved, and that nothing waits."""

import ast
import inspect
import math
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import (
    CPU,
    assert_same,
    journal,
    logits_loader,
    make_learner,
    needs_gpu,
    noise_loader,
    on,
    raises,
    sgd,
    tiny_model,
)
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import trainer.learner
from augment.loader import Batch
from trainer.callback import (
    CANCELS,
    EVENTS,
    Callback,
    Cancel,
    CancelBatch,
    CancelEpoch,
    CancelFit,
    CancelStep,
    CancelTrain,
    CancelValidate,
)
from trainer.callbacks import Checkpoint, GradClip, ParamScheduler
from trainer.checkpoint import LAST, load
from trainer.learner import Learner, Position
from trainer.pictures import Plots
from trainer.progress import ProgressBar
from trainer.recorder import TIMES, Recorder, read_metrics
from trainer.schedule import one_cycle

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


def small(*callbacks: Callback, **options: Any) -> Learner:
    """Two epochs of 2 + 1 batches."""
    return make_learner(*callbacks, train=noise_loader(4), val=noise_loader(2), **options)


def trace(*callbacks: Callback, **options: Any) -> list[str]:
    events: list[str] = []
    small(journal(events, order=-1000), *callbacks, **options).fit()
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


@pytest.mark.parametrize(
    ("cancel", "event", "expected"),
    [
        (CancelFit, "before_fit", ["before_fit", "after_fit"]),
        (CancelFit, "before_step", [*FIT[:5], "after_fit"]),
        (CancelEpoch, "before_epoch", ["before_fit", "before_epoch", "after_epoch", *EPOCH, "after_fit"]),
        (CancelTrain, "before_train", ["before_fit", *EPOCH[:2], *EPOCH[10:], *EPOCH, "after_fit"]),
        (CancelValidate, "before_validate", ["before_fit", *EPOCH[:12], *EPOCH[14:], *EPOCH, "after_fit"]),
        (CancelBatch, "before_batch", ["before_fit", *EPOCH[:3], *EPOCH[5:], *EPOCH, "after_fit"]),
        (CancelStep, "before_step", ["before_fit", *EPOCH, *EPOCH, "after_fit"]),
    ],
)
def test_a_cancelled_level_by_hand(cancel: type[Cancel], event: str, expected: list[str]) -> None:
    assert trace(on(event, raises(cancel))) == expected


@pytest.mark.parametrize("level", CANCELS)
def test_each_level_can_be_left_from_each_event_in_it(level: str) -> None:
    """What is left out ends with the level's own after event, and everything else happens."""
    places = [index for index in range(len(FIT)) if level in open_levels(index)]
    assert places
    for index in places:
        after = FIT.index(f"after_{level}", index + 1)
        events: list[str] = []
        learner = small(journal(events, order=-1000), at_call(index, throw(CANCELS[level]())))
        learner.fit()
        assert events == FIT[: index + 1] + FIT[after:], f"{level} left in event {index}, {FIT[index]}"
        assert learner.error is None


def test_the_callbacks_behind_the_one_that_cancels_miss_the_event_and_get_the_after_event() -> None:
    events: list[str] = []
    small(on("before_train", raises(CancelTrain)), journal(events, order=1), epochs=1).fit()
    assert events == ["before_fit", "before_epoch", *EPOCH[10:], "after_fit"]


@pytest.mark.parametrize(("every", "expected"), [(1, [0, 1, 2, 3, 4]), (2, [1, 3, 4]), (9, [4])])
def test_epochs_between_validations(every: int, expected: list[int]) -> None:
    learner = make_learner(Recorder(), epochs=5, validate_every=every)
    learner.fit()
    assert [row["epoch"] for row in learner.find(Recorder).rows if "val_loss" in row] == expected
    assert len(learner.find(Recorder).rows) == 5


def test_validation_may_stand_alone() -> None:
    events: list[str] = []
    learner = small(journal(events))
    learner.validate()
    assert events == ["before_validate", *VAL_BATCH, "after_validate"]


# --- failures ---


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
@pytest.mark.parametrize("event", [event for event in EVENTS if event != "after_fit"])
def test_after_fit_reaches_everybody_when_a_callback_fails(event: str, error: BaseException) -> None:
    seen: list[tuple[str, BaseException | None]] = []
    first = on("after_fit", lambda learner: seen.append(("first", learner.error)), -1)
    last = on("after_fit", lambda learner: seen.append(("last", learner.error)), 1)
    learner = small(first, on(event, raises(error)), last)
    with pytest.raises(type(error)) as caught:
        learner.fit()
    assert caught.value is error
    assert learner.error is error
    assert seen == [("first", error), ("last", error)]


def test_after_fit_reaches_everybody_when_the_model_fails() -> None:
    events: list[str] = []
    learner = small(journal(events), model=nn.Sequential(nn.Flatten(), nn.Linear(7, 3)))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        learner.fit()
    assert isinstance(learner.error, RuntimeError)
    assert events == ["before_fit", "before_epoch", "before_train", "before_batch", "after_fit"]


def test_one_failing_after_fit_does_not_keep_the_others_from_running() -> None:
    seen: list[str] = []
    learner = small(
        on("after_fit", lambda learner: seen.append("a"), -1),
        on("after_fit", raises(OSError("disk full")), 0),
        on("after_fit", lambda learner: seen.append("b"), 1),
        on("after_fit", raises(ValueError("and this")), 2),
        on("after_fit", lambda learner: seen.append("c"), 3),
    )
    with pytest.raises(ValueError, match="and this") as caught:
        learner.fit()
    assert seen == ["a", "b", "c"]
    assert str(caught.value.__context__) == "disk full"


def test_a_failing_after_fit_does_not_hide_why_the_fit_failed() -> None:
    error = RuntimeError("boom")
    learner = small(on("before_step", raises(error)), on("after_fit", raises(OSError("disk full"))))
    with pytest.raises(OSError, match="disk full") as caught:
        learner.fit()
    assert caught.value.__context__ is error
    assert learner.error is error


def test_a_fit_after_a_failed_one_has_no_error() -> None:
    learner = small(on("before_step", raises(RuntimeError("boom"))))
    with pytest.raises(RuntimeError, match="boom"):
        learner.fit()
    learner.fit()
    assert learner.error is None


# --- one place for each attribute ---


def stored_attributes(method: ast.FunctionDef) -> set[str]:
    """Return the x of every `self.x` that a method assigns, in whatever way, also by setattr."""
    names = set()
    for node in ast.walk(method):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store() | ast.Del()):
                names.add(name)
            case ast.Call(func=ast.Name(id="setattr"), args=[ast.Name(id="self"), *_]):
                names.add("setattr")
    return names


def test_each_attribute_of_the_learner_is_assigned_in_one_method() -> None:
    (definition,) = ast.parse(inspect.getsource(Learner)).body
    assert isinstance(definition, ast.ClassDef)
    methods = [node for node in definition.body if isinstance(node, ast.FunctionDef)]
    places: defaultdict[str, list[str]] = defaultdict(list)
    for method in methods:
        for name in stored_attributes(method):
            places[name].append(method.name)
    assert {"model", "epoch", "batch", "loss", "output", "training", "position", "error"} <= places.keys()
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
    assert "setattr" not in places


def test_nobody_but_the_learner_assigns_its_attributes() -> None:
    folder = Path(trainer.learner.__file__).parent
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Attribute(value=ast.Name(id="learner"), attr=name, ctx=ast.Store()):
                    raise AssertionError(f"{file.name} line {node.lineno} assigns learner.{name}")


# --- counting ---


@pytest.mark.parametrize("samples", [1, 4, 5])
@pytest.mark.parametrize("limit", [None, 1, 2, 3, 99])
def test_steps_are_counted_exactly(samples: int, limit: int | None) -> None:
    train, val = noise_loader(samples), noise_loader(5)
    steps: list[int] = []
    count = on("before_batch", lambda learner: steps.append(learner.step) if learner.training else None)
    learner = make_learner(count, train=train, val=val, epochs=3, limit_batches=limit)
    learner.fit()
    batches = min(limit or 99, math.ceil(samples / 2))
    assert learner.batches(train) == batches
    assert learner.total_steps == 3 * batches
    assert steps == list(range(3 * batches))


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_no_batch_is_fetched_beyond_the_limit(limit: int) -> None:
    train, val = noise_loader(8), noise_loader(8)
    make_learner(train=train, val=val, limit_batches=limit).fit()
    batches = [(epoch, number) for epoch in range(2) for number in range(limit)]
    assert train.fetched == batches
    assert val.fetched == batches


def test_without_a_limit_every_batch_is_fetched_once() -> None:
    train, val = noise_loader(5), noise_loader(3)
    make_learner(train=train, val=val).fit()
    assert train.fetched == [(epoch, number) for epoch in range(2) for number in range(3)]
    assert val.fetched == [(epoch, number) for epoch in range(2) for number in range(2)]


def test_the_position_counts_the_batches_fetched() -> None:
    positions: list[Position] = []
    learner = small(on("before_batch", lambda learner: positions.append(learner.position)))
    learner.fit()
    assert positions == [(0, 1), (0, 2), (0, 2), (1, 1), (1, 2), (1, 2)]
    assert learner.position == (2, 0)


def test_a_fit_may_start_in_the_middle() -> None:
    train = noise_loader(4)
    train.load_state_dict({"consumed": 1})
    events: list[str] = []
    make_learner(journal(events), train=train, val=noise_loader(2)).fit(Position(0, 1))
    assert train.fetched == [(0, 1), (1, 0), (1, 1)]
    assert events == ["before_fit", *EPOCH[:2], *EPOCH[6:], *EPOCH, "after_fit"]


def test_an_epoch_with_no_batch_left_fetches_none() -> None:
    train = noise_loader(4)
    train.load_state_dict({"consumed": 2})
    events: list[str] = []
    make_learner(journal(events), train=train, val=noise_loader(2), epochs=1).fit(Position(0, 2))
    assert train.fetched == []
    assert events == ["before_fit", *EPOCH[:2], *EPOCH[10:], "after_fit"]


# --- what a batch does ---


def test_modes_and_gradients() -> None:
    seen: defaultdict[str, set[tuple[bool, bool]]] = defaultdict(set)
    gradients: set[tuple[bool, bool, bool]] = set()

    def look(event: str) -> Callback:
        return on(event, lambda learner: seen[event].add((learner.training, learner.model.training)))

    def graph(learner: Learner) -> None:
        gradients.add((learner.training, learner.output.requires_grad, learner.output.is_inference()))

    passes = [event for event in EVENTS if event not in ("before_fit", "before_epoch")]
    small(*(look(event) for event in passes), on("after_batch", graph)).fit()
    assert gradients == {(True, True, False), (False, False, True)}
    for event in ("before_batch", "after_batch"):
        assert seen[event] == {(True, True), (False, False)}, event
    for event in ("before_train", "after_train", "before_step", "after_step"):
        assert seen[event] == {(True, True)}, event
    for event in ("before_validate", "after_validate", "after_epoch", "after_fit"):
        assert seen[event] == {(False, False)}, event


def test_validation_changes_nothing() -> None:
    learner = small(model=tiny_model(dropout=0.5))
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    random = torch.get_rng_state()
    learner.validate()
    assert_same(learner.model.state_dict(), before)
    assert_same(torch.get_rng_state(), random)
    assert all(p.grad is None for p in learner.model.parameters())


class Linear(nn.Linear):
    """Takes pictures of one pixel; has no bias and starts with the weights given."""

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


def test_every_training_batch_steps_and_clears_the_gradients() -> None:
    weights: list[Tensor] = []

    def note(learner: Learner) -> None:
        if learner.training:
            assert all(p.grad is None or not p.grad.any() for p in learner.model.parameters())
            weights.append(learner.model.state_dict()["6.weight"].clone())

    make_learner(on("before_batch", note), on("after_batch", note), epochs=1).fit()
    changed = [not torch.equal(one, other) for one, other in pairwise(weights)]
    assert changed == [True, False, True, False, True]  # within each batch, and not between them


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


def test_the_batch_the_output_and_the_loss_are_there_after_a_batch() -> None:
    def check(learner: Learner) -> None:
        assert isinstance(learner.batch, Batch)
        assert learner.output.shape == (len(learner.batch), 3)
        expected = nn.functional.cross_entropy(learner.output, learner.batch.targets)
        assert torch.equal(learner.loss, expected)
        seen.append(len(learner.batch))

    seen: list[int] = []
    make_learner(on("after_batch", check), epochs=1).fit()
    assert seen == [2, 2, 1, 2, 1]


def test_the_model_is_moved_before_the_optimizer_is_made() -> None:
    model = nn.Conv2d(3, 4, 3)
    made: list[bool] = []

    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        made.extend(p.is_contiguous(memory_format=torch.channels_last) for p in model.parameters() if p.dim() == 4)
        return sgd(model)

    make_learner(model=model, optimizer=optimizer)
    assert made == [True]


@pytest.mark.parametrize(("bf16", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_bf16_is_autocast_of_the_forward_pass_alone(bf16: bool, dtype: torch.dtype) -> None:
    seen: list[tuple[torch.dtype, torch.dtype]] = []
    learner = small(
        on("after_batch", lambda learner: seen.append((learner.output.dtype, learner.loss.dtype))), bf16=bf16
    )
    learner.fit()
    assert set(seen) == {(dtype, torch.float32)}
    assert {p.dtype for p in learner.model.parameters()} == {torch.float32}


def test_a_compiled_model_keeps_its_keys() -> None:
    learner = make_learner(compile=True)
    assert list(learner.model.state_dict()) == list(tiny_model().state_dict())
    assert learner.model._compiled_call_impl is not None
    assert make_learner().model._compiled_call_impl is None


def test_validation_may_have_a_loss_of_its_own() -> None:
    seen: list[tuple[bool, float]] = []
    look = on("after_batch", lambda learner: seen.append((learner.training, learner.loss.item())))

    def nine(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.sum() * 0 + 9

    small(look, val_loss_function=nine, epochs=1).fit()
    assert [(training, loss == 9) for training, loss in seen] == [(True, False), (True, False), (False, True)]


def test_find() -> None:
    recorder, clips = Recorder(), [GradClip(), GradClip()]
    learner = make_learner(*clips, recorder)
    assert learner.find(Recorder) is recorder
    assert learner.find(GradClip) is clips[0]
    with pytest.raises(LookupError, match="the learner has no Checkpoint"):
        learner.find(Checkpoint)


# --- saving and resuming ---

EPOCHS = 3


def resumable(folder: Path | None, *callbacks: Callback, seed: int = 0, **options: Any) -> Learner:
    """Three epochs of 3 + 2 batches with dropout, momentum, a schedule and checkpoints."""
    schedule = one_cycle(0.2, start=0.01, end=0.0)
    return make_learner(
        Recorder(),
        ParamScheduler({"lr": schedule}),
        Checkpoint(monitor="val_loss"),
        *callbacks,
        model=tiny_model(dropout=0.5, seed=seed),
        epochs=EPOCHS,
        folder=folder,
        **options,
    )


def outcome(learner: Learner) -> dict[str, Any]:
    """Return all that two equal fits have in common."""
    checkpoint, recorder = learner.find(Checkpoint), learner.find(Recorder)
    assert learner.folder is not None
    return {
        "model": learner.model.state_dict(),
        "optimizer": learner.optimizer.state_dict(),
        "loader": learner.train_loader.state_dict(),
        "random": torch.get_rng_state(),
        "rows": [timeless(row) for row in recorder.rows],
        "file": [timeless(row) for row in read_metrics(learner.folder)],
        "confusion": recorder.confusion,
        "best": (checkpoint.best, checkpoint.best_epoch),
    }


def timeless(row: dict[str, float]) -> dict[str, float]:
    return {key: value for key, value in row.items() if key not in TIMES}


def interrupt(folder: Path, event: str, at: int, start: Path | None = None) -> Learner:
    """Fit until an event is reached for the time number `at`, in a folder of its own."""
    folder.mkdir()
    learner = resumable(folder, on(event, raises(CancelFit, at), 100))
    learner.fit(Position() if start is None else learner.load_state_dict(load(start / LAST)))
    return learner


def resume(run: Path, folder: Path, **options: Any) -> Learner:
    """Go on with what a folder holds, by a learner that knows nothing of the one before."""
    folder.mkdir()
    learner = resumable(folder, seed=99, **options)
    torch.manual_seed(1234)
    learner.fit(learner.load_state_dict(load(run / LAST)))
    return learner


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    learner = resumable(tmp_path_factory.mktemp("uninterrupted"))
    learner.fit()
    assert [row["epoch"] for row in learner.find(Recorder).rows] == [0, 1, 2]
    return outcome(learner)


@pytest.mark.parametrize("batch", range(EPOCHS * 5))
def test_a_fit_interrupted_in_any_batch_equals_one_that_was_not(
    batch: int, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    learner = interrupt(tmp_path / "first", "after_batch", batch)
    assert learner.position == (batch // 5, min(batch % 5 + 1, 3))
    assert_same(outcome(resume(tmp_path / "first", tmp_path / "second")), uninterrupted)


@pytest.mark.parametrize(
    "event",
    ["before_epoch", "before_train", "after_train", "before_validate", "after_validate", "after_epoch"],
)
def test_a_fit_stopped_in_any_event_equals_one_that_was_not(
    event: str, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    interrupt(tmp_path / "first", event, 1)
    assert_same(outcome(resume(tmp_path / "first", tmp_path / "second")), uninterrupted)


def test_a_fit_may_be_interrupted_again_and_again(uninterrupted: dict[str, Any], tmp_path: Path) -> None:
    interrupt(tmp_path / "0", "after_batch", 5)
    for number in range(1, 8):
        interrupt(tmp_path / str(number), "after_batch", 0, tmp_path / str(number - 1))
    assert_same(outcome(resume(tmp_path / "7", tmp_path / "end")), uninterrupted)


def test_a_resumed_fit_that_is_stopped_at_once_loses_nothing(uninterrupted: dict[str, Any], tmp_path: Path) -> None:
    interrupt(tmp_path / "0", "after_batch", 6)
    interrupt(tmp_path / "1", "before_fit", 0, tmp_path / "0")
    assert_same(outcome(resume(tmp_path / "1", tmp_path / "end")), uninterrupted)


def test_a_finished_fit_may_be_extended(tmp_path: Path) -> None:
    (tmp_path / "short").mkdir()
    short = resumable(tmp_path / "short")
    short.fit()
    (tmp_path / "long").mkdir()
    longer = resumable(tmp_path / "long")
    longer.epochs = EPOCHS + 1
    longer.fit(longer.load_state_dict(load(tmp_path / "short" / LAST)))
    assert [row["epoch"] for row in read_metrics(tmp_path / "long")] == [0, 1, 2, 3]
    assert longer.train_loader.fetched == [(3, 0), (3, 1), (3, 2)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("limit", [1, 2])
def test_a_smaller_limit_than_the_batches_done_ends_that_epoch(limit: int, tmp_path: Path) -> None:
    interrupt(tmp_path / "first", "after_batch", 1)
    learner = resume(tmp_path / "first", tmp_path / "second", limit_batches=limit)
    expected = [(epoch, number) for epoch in (1, 2) for number in range(limit)]
    assert learner.train_loader.fetched == expected  # type: ignore[attr-defined]


def test_a_limited_fit_interrupted_at_its_limit_goes_on_with_the_next_epoch(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    first = resumable(tmp_path / "first", on("after_batch", raises(CancelFit, 1)), limit_batches=2)
    first.fit()
    assert first.position == (0, 2)
    learner = resume(tmp_path / "first", tmp_path / "second", limit_batches=2)
    assert learner.train_loader.fetched == [(1, 0), (1, 1), (2, 0), (2, 1)]  # type: ignore[attr-defined]
    assert [row["epoch"] for row in read_metrics(tmp_path / "second")] == [0, 1, 2]


class Counter(Callback):
    """Counts training batches."""

    def __init__(self) -> None:
        self.count = 0

    def after_step(self, learner: Learner) -> None:
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def test_two_callbacks_of_one_class_keep_a_state_each() -> None:
    def pair() -> tuple[Counter, Counter]:
        return Counter(), Counter()

    first = pair()
    saved = make_learner(*first)
    saved.fit()
    first[1].count = 100
    second = pair()
    make_learner(*second).load_state_dict(saved.state_dict())
    assert [counter.count for counter in second] == [6, 100]


def test_a_callback_that_the_saved_run_had_not_starts_fresh() -> None:
    saved = make_learner()
    saved.fit()
    counter = Counter()
    make_learner(counter).load_state_dict(saved.state_dict())
    assert counter.count == 0


def test_states_are_plain_values_and_tensors(tmp_path: Path) -> None:
    learner = resumable(tmp_path, on("after_batch", raises(CancelFit, 6)))
    learner.fit()
    state = load(tmp_path / LAST)
    assert_same(state, learner.state_dict() | {"callbacks": state["callbacks"]})
    assert state["position"] == (1, 2)


@needs_gpu
def test_a_fit_on_the_gpu_may_be_resumed(tmp_path: Path) -> None:
    device = torch.device("cuda")

    def learner(folder: Path, *callbacks: Callback) -> Learner:
        folder.mkdir()
        train, val = noise_loader(device=device), noise_loader(3, shuffle=False, device=device)
        return resumable(folder, *callbacks, device=device, train=train, val=val)

    whole = learner(tmp_path / "whole")
    whole.fit()
    learner(tmp_path / "first", on("after_batch", raises(CancelFit, 6))).fit()
    second = learner(tmp_path / "second")
    torch.manual_seed(1234)
    second.fit(second.load_state_dict(load(tmp_path / "first" / LAST, device)))
    for ours, theirs in zip(second.find(Recorder).rows, whole.find(Recorder).rows, strict=True):
        assert timeless(ours) == pytest.approx(timeless(theirs), rel=1e-4)
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(second.model.state_dict()[name], value, rtol=1e-4, atol=1e-6)


# --- no hidden synchronization ---


class _Functions(TorchFunctionMode):
    """Refuses what a tensor offers to come to the host."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        waits = {"item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__", "nonzero"}
        assert name not in waits, f"Tensor.{name} waits for the device"
        return func(*args, **(kwargs or {}))


# Operators whose result, or its size, has to be known on the host.
_WAITING = (
    *(torch.ops.aten._local_scalar_dense, torch.ops.aten.item, torch.ops.aten.nonzero, torch.ops.aten.masked_select),
    *(torch.ops.aten._unique2, torch.ops.aten.bincount, torch.ops.aten.equal),
)


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses the operators behind it, whoever calls them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        by_mask = func.overloadpacket is torch.ops.aten.index and any(
            i is not None and i.dtype == torch.bool for i in args[1]
        )
        assert func.overloadpacket not in _WAITING, f"{func} waits for the device"
        assert not by_mask, "indexing by a mask waits for the device"
        return func(*args, **(kwargs or {}))


class NoWaiting:
    """Refuses transfers to the host from the first training batch, which is looked at, to the end of each pass."""

    def __init__(self, switch: Callable[[bool], None]) -> None:
        self.watched = 0
        self._switch, self._on = switch, False

    def callbacks(self) -> tuple[Callback, ...]:
        return (
            on("before_validate", self.begin, 1000),
            on("before_batch", self.count, 1000),
            on("after_batch", self.begin, 1000),
            on("after_train", self.end, -1000),
            on("after_validate", self.end, -1000),
            on("after_fit", self.end, -1000),
        )

    def begin(self, learner: Learner) -> None:
        if not self._on:
            self._on = True
            self._switch(True)

    def count(self, learner: Learner) -> None:
        self.watched += self._on

    def end(self, learner: Learner) -> None:
        if self._on:
            self._on = False
            self._switch(False)


def on_the_cpu() -> Callable[[bool], None]:
    stack = ExitStack()

    def switch(on: bool) -> None:
        if on:
            stack.enter_context(_Functions())
            stack.enter_context(_Operators())  # type: ignore[no-untyped-call]
        else:
            stack.close()

    return switch


def switch_on_the_gpu(on: bool) -> None:
    torch.cuda.set_sync_debug_mode("error" if on else "default")


def watched_learner(guard: NoWaiting, *callbacks: Callback, device: torch.device = CPU, **options: Any) -> Learner:
    return make_learner(
        Recorder(interval=math.inf),
        ParamScheduler({"lr": one_cycle(0.2, start=0.01, end=0.0)}),
        GradClip(),
        Checkpoint(),
        Plots(),
        ProgressBar(),
        *guard.callbacks(),
        *callbacks,
        model=tiny_model(dropout=0.5),
        train=noise_loader(7, shuffle=False, device=device),  # an order would have to be copied to the device
        val=noise_loader(5, shuffle=False, device=device),
        device=device,
        **options,
    )


@pytest.mark.parametrize("bf16", [False, True])
def test_between_looks_nothing_comes_to_the_host(bf16: bool) -> None:
    guard = NoWaiting(on_the_cpu())
    learner = watched_learner(guard, bf16=bf16)
    learner.fit()
    assert guard.watched == 2 * (3 + 3)
    assert all(math.isfinite(row["val_loss"]) for row in learner.find(Recorder).rows)


@pytest.mark.parametrize(
    "wait",
    [
        pytest.param(Tensor.item, id="item"),
        pytest.param(Tensor.tolist, id="tolist"),
        pytest.param(Tensor.cpu, id="cpu"),
        pytest.param(lambda loss: float(loss.detach()), id="float"),
        pytest.param(bool, id="bool"),
        pytest.param(lambda loss: loss[None][loss[None] > 0], id="mask"),
        pytest.param(torch.unique, id="unique"),
        pytest.param(lambda loss: torch.equal(loss, loss.clone()), id="equal"),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_the_guard_of_the_test_before_sees_what_waits(wait: Callable[[Tensor], object], training: bool) -> None:
    def look(learner: Learner) -> None:
        if learner.training == training:
            wait(learner.loss)

    with pytest.raises(AssertionError, match="waits"):
        watched_learner(NoWaiting(on_the_cpu()), on("after_batch", look)).fit()


@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("optimizer", [sgd, lambda model: torch.optim.AdamW(model.parameters())], ids=["sgd", "adamw"])
def test_between_looks_nothing_waits_for_the_gpu(optimizer: Any, bf16: bool) -> None:
    guard = NoWaiting(switch_on_the_gpu)
    learner = watched_learner(guard, device=torch.device("cuda"), bf16=bf16, optimizer=optimizer)
    try:
        learner.fit()
    finally:
        switch_on_the_gpu(False)
    assert guard.watched == 2 * (3 + 3)
    assert all(math.isfinite(row["val_loss"]) for row in learner.find(Recorder).rows)


@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("training", [True, False])
def test_the_guard_on_the_gpu_sees_what_waits(training: bool) -> None:
    def look(learner: Learner) -> None:
        if learner.training == training:
            learner.loss.item()

    try:
        with pytest.raises(RuntimeError, match="synchronizing"):
            watched_learner(NoWaiting(switch_on_the_gpu), on("after_batch", look), device=torch.device("cuda")).fit()
    finally:
        switch_on_the_gpu(False)
