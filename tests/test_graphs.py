"""What is recorded when, that replays equal eager steps, and what happens where recording fails.

On the CPU a backend stands in whose replays execute the work; on the GPU it is done for real.
"""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from fakes import (
    CLASSES,
    CPU,
    MemoryLoader,
    make_learner,
    needs_gpu,
    noise_loader,
    on,
    raises,
    refuse_waiting,
    tiny_model,
)
from torch import Tensor, nn

from augment.loader import Batch
from trainer.callback import CancelFit, CancelStep
from trainer.callbacks import Checkpoint, GradClip, ParamScheduler
from trainer.checkpoint import LAST, load
from trainer.graphs import Eager, Graphs, Runner, Tensors, UncapturableError, capturable, runner
from trainer.learner import Learner
from trainer.losses import CrossEntropy
from trainer.recorder import Recorder
from trainer.schedule import lin, one_cycle
from trainer.xresnet import XResNet

CUDA = torch.device("cuda")


class FakeBackend:
    """Records by remembering the work, which a replay executes; `calls` are what was asked, `fails` what refuses."""

    def __init__(self, fails: Callable[[], bool] = lambda: False) -> None:
        self.calls: list[str] = []
        self.memories: list[str] = []
        self.fails = fails

    def aside(self, work: Callable[[], Tensors]) -> Tensors:
        self.calls.append("eager")
        return work()

    def wait(self) -> None:
        pass

    def record(self, work: Callable[[], Tensors], memory: str) -> tuple[Callable[[], None], Tensors]:
        self.calls.append("record")
        self.memories.append(memory)
        if self.fails():
            raise UncapturableError("it waits")
        results: list[Tensor] = []

        def replay() -> None:
            self.calls.append("replay")
            results[:] = work()

        return replay, cast(Tensors, results)


def double(value: Tensor) -> Tensors:
    return (value * 2,)


def run(graphs: Graphs, *shapes: tuple[int, ...], kind: str = "train") -> list[str]:
    """Run a piece of work on inputs of shapes; return what was asked of the backend."""
    backend = cast(FakeBackend, graphs._backend)
    backend.calls.clear()
    for number, shape in enumerate(shapes):
        given = torch.full(shape, float(number))
        (result,) = graphs.run(kind, double, given)
        assert torch.equal(result, given * 2)
    return list(backend.calls)


# --- when ---

EAGER3 = ["eager"] * 3


def test_the_first_batches_are_run_eagerly_the_next_is_recorded_and_replayed() -> None:
    assert run(Graphs(FakeBackend()), *[(4, 3)] * 6) == [*EAGER3, "record", "replay", "replay", "replay"]


def test_each_shape_has_a_recording_of_its_own() -> None:
    """The smaller last batch of an epoch stays eager until it has been seen often enough."""
    epoch = [(4, 3), (4, 3), (2, 3)]
    graphs = Graphs(FakeBackend())
    assert run(graphs, *epoch, *epoch) == [*EAGER3, "eager", "record", "replay", "eager"]
    assert run(graphs, *epoch, *epoch) == ["replay", "replay", "eager", "replay", "replay", "record", "replay"]


@pytest.mark.parametrize(
    "other",
    [
        lambda images: images.double(),
        lambda images: images[:1],
        lambda images: images.contiguous(memory_format=torch.channels_last),
    ],
    ids=["dtype", "shape", "strides"],
)
def test_a_recording_is_not_used_for_other_inputs(other: Callable[[Tensor], Tensor]) -> None:
    graphs, images = Graphs(FakeBackend(), warm_up=0), torch.randn(2, 3, 4, 4)
    calls = cast(FakeBackend, graphs._backend).calls
    for given in (images, other(images), images, other(images)):
        (result,) = graphs.run("train", double, given)
        assert result.dtype == given.dtype
    assert calls == ["record", "replay", "record", "replay", "replay", "replay"]
    with torch.inference_mode():
        graphs.run("train", double, images)
    graphs.run("validate", double, images)
    assert calls[6:] == ["record", "replay", "record", "replay"]


def test_inputs_are_copied_and_results_are_new_objects() -> None:
    graphs, given = Graphs(FakeBackend(), warm_up=0), torch.ones(2, requires_grad=True)
    seen: list[Tensor] = []

    def work(value: Tensor) -> Tensors:
        seen.append(value)
        return (value.sum() * given.sum(),)

    values = [torch.ones(2), torch.ones(2)]
    results = [graphs.run("train", work, value)[0] for value in values]
    assert seen[0] is seen[1]
    assert all(value is not seen[0] for value in values)
    assert results[0] is not results[1]
    assert not any(result.requires_grad for result in results)


def test_forgetting_begins_anew() -> None:
    graphs = Graphs(FakeBackend())
    for kind in ("train", "validate"):
        run(graphs, *[(2,)] * 4, kind=kind)
    graphs.forget("train")
    assert run(graphs, (2,), kind="train") == ["eager"]
    assert run(graphs, (2,), kind="validate") == ["replay"]
    graphs.forget()
    assert run(graphs, (2,), kind="validate") == ["eager"]


@pytest.mark.parametrize(
    ("change", "forgets"),
    [
        pytest.param(lambda model: None, False, id="nothing"),
        pytest.param(lambda model: [p.data.mul_(2) for p in model.parameters()], False, id="values"),
        pytest.param(lambda model: model[0].requires_grad_(False), True, id="frozen"),
        pytest.param(lambda model: model[1].eval(), True, id="mode"),
        pytest.param(lambda model: model.__setitem__(6, nn.Linear(4, 3)), True, id="layer"),
        pytest.param(lambda model: setattr(model[1], "running_mean", torch.zeros(4)), True, id="buffer"),
    ],
)
def test_a_pass_with_another_model_begins_anew(change: Callable[[Any], object], forgets: bool) -> None:
    graphs, model = Graphs(FakeBackend()), tiny_model()
    graphs.enter("train", model)
    run(graphs, *[(2,)] * 4)
    run(graphs, *[(2,)] * 4, kind="step")
    change(model)
    graphs.enter("train", model)
    assert run(graphs, (2,)) == ["eager" if forgets else "replay"]
    assert run(graphs, (2,), kind="step") == ["eager" if forgets else "replay"]


def test_what_cannot_be_recorded_is_run_eagerly_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    backend = FakeBackend()
    graphs = Graphs(backend)
    run(graphs, *[(2,)] * 4, kind="validate")
    backend.fails = lambda: True
    with caplog.at_level(logging.WARNING):
        assert run(graphs, *[(2,)] * 6) == [*EAGER3, "record", "eager", "eager", "eager"]
        assert run(graphs, *[(3,)] * 5) == ["eager"] * 5
    assert [record.message for record in caplog.records] == ["fit.graph: train is run without a CUDA graph: it waits"]
    backend.fails = lambda: False
    assert run(graphs, *[(2,)] * 4, kind="validate") == [*EAGER3, "record", "replay"]  # the others begin anew


def test_only_a_gpu_records() -> None:
    assert isinstance(runner(torch.device("cpu"), graph=True), Eager)
    assert isinstance(runner(CUDA, graph=False), Eager)


class Own(torch.optim.SGD):
    """Says itself that it may be recorded."""

    capturable = True


class Foreign(torch.optim.SGD):
    """Says nothing."""


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (torch.optim.SGD, True),
        (torch.optim.AdamW, True),
        (torch.optim.NAdam, True),
        (torch.optim.RMSprop, True),
        (torch.optim.Adagrad, False),
        (Own, True),
        (Foreign, False),
    ],
)
def test_which_optimizers_may_be_recorded(make: Any, expected: bool) -> None:
    assert capturable(make([nn.Parameter(torch.ones(1))], 0.1)) is expected


def test_timms_optimizers_are_not_recorded() -> None:
    from timm.optim import Lamb, NAdamW

    parameter = nn.Parameter(torch.ones(1))
    assert not capturable(Lamb([parameter]))
    assert not capturable(NAdamW([parameter]))


# --- that it changes nothing ---

Make = Callable[[nn.Module], torch.optim.Optimizer]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.01)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 0.01)


def lamb(model: nn.Module) -> torch.optim.Optimizer:
    from timm.optim import Lamb

    return cast(torch.optim.Optimizer, Lamb(model.parameters(), lr=0.01))


def rmsprop(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(model.parameters(), 0.01, centered=True)


class Soft(MemoryLoader):
    """Mixes targets."""

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            shares = nn.functional.one_hot(batch.targets, len(CLASSES)).float()
            yield type(batch)(batch.images, shares.lerp(shares.roll(1, 0), 0.3), batch.indices)


def losses(how: Runner, device: torch.device = CPU, **options: Any) -> tuple[list[float], Learner]:
    """Return the losses of 20 training batches of 2, 2, 2 and 1 pictures, and of the validation after each four."""
    found: list[Tensor] = []
    soft = options.pop("soft", False)
    callbacks = [on("after_batch", lambda learner: found.append(learner.loss.detach().clone()))]
    callbacks += options.pop("callbacks", list)()
    train, val = noise_loader(7, device=device), noise_loader(5, shuffle=False, device=device)
    if soft:
        train = Soft(train.images, train.targets)
    defaults = {"epochs": 5, "optimizer": sgd, "device": device}
    schedule = ParamScheduler({"lr": one_cycle(0.1, start=0.01, end=0.0)})
    learner = make_learner(schedule, *callbacks, train=train, val=val, runner=how, **(defaults | options))
    learner.fit()
    return [loss.item() for loss in found], learner


def compare(make: Callable[[], Runner], rel: float = 1e-5, **options: Any) -> Learner:
    eager, _ = losses(Eager(), **options)
    graphed, learner = losses(make(), **options)
    assert len(eager) == 5 * (4 + 3)
    assert len(set(eager)) > 20
    assert graphed == pytest.approx(eager, rel=rel, abs=1e-6)
    return learner


@cache
def class_weights(device: torch.device) -> Tensor:
    return torch.linspace(0.5, 1.5, len(CLASSES), device=device)


def weighed(outputs: Tensor, targets: Tensor) -> Tensor:
    return CrossEntropy(0.1, class_weights(outputs.device))(outputs, targets)


CASES = {
    "sgd": {"optimizer": sgd},
    "adamw": {"optimizer": adamw},
    "timm": {"optimizer": lamb},
    "accumulate": {"accumulate": 2},
    "accumulate_3": {"accumulate": 3},
    "soft": {"soft": True},
    "smoothing": {"loss_function": nn.CrossEntropyLoss(label_smoothing=0.1)},
    "weights": {"loss_function": weighed},
}


def with_clip(options: dict[str, Any]) -> dict[str, Any]:
    return options | {"callbacks": lambda: [GradClip(0.05), on("before_step", raises(CancelStep, at=6))]}


@pytest.mark.parametrize("name", [name for name in CASES if name != "adamw"])
@pytest.mark.parametrize("clip", [False, True])
def test_the_machinery_changes_nothing(name: str, clip: bool) -> None:
    backend = FakeBackend()
    options = with_clip(CASES[name]) if clip else CASES[name]
    compare(lambda: Graphs(backend), **options)
    assert backend.calls.count("replay") > 15


def test_a_scheduled_momentum_keeps_the_step_eager() -> None:
    def recorded(name: str) -> int:
        backend = FakeBackend()
        compare(lambda: Graphs(backend), callbacks=lambda: [ParamScheduler({name: lin(0.1, 0.05)})])
        return backend.calls.count("record")

    assert recorded("lr") == recorded("momentum") + 1


def test_a_rate_is_filled_into_the_tensor_that_a_recorded_step_reads() -> None:
    """Also if a callback puts a number in its place."""
    seen: list[Tensor] = []

    def put(learner: Learner) -> None:
        learner.optimizer.param_groups[0]["lr"] = 0.01 * (learner.step + 1)

    def look(learner: Learner) -> None:
        seen.append(learner.optimizer.param_groups[0]["lr"])
        assert float(seen[-1]) == pytest.approx(0.01 * (learner.step + 1))

    compare(lambda: Graphs(FakeBackend()), callbacks=lambda: [on("before_step", put), on("after_step", look)])
    tensors = seen[20:]  # after those of the eager fit
    assert len(tensors) == 20
    assert isinstance(tensors[0], Tensor)
    assert all(rate is tensors[0] for rate in tensors)


def test_gradients_that_were_dropped_are_noticed() -> None:
    """A callback may forget gradients; work that was recorded would go on adding to the old ones."""

    def drop(learner: Learner) -> None:
        if learner.training and learner.step == 12:
            learner.optimizer.zero_grad(set_to_none=True)

    backend = FakeBackend()
    compare(lambda: Graphs(backend), callbacks=lambda: [on("after_batch", drop)])
    assert backend.calls.count("record") >= 4


def test_a_frozen_layer_stays_as_it_is_and_may_be_trained_again() -> None:
    """Also with momentum and weight decay, which would move it without a gradient, and if its momentum is new."""
    weights: list[Tensor] = []

    def change(learner: Learner) -> None:
        weights.append(learner.model[0].weight.detach().clone())  # type: ignore[index, union-attr, operator]
        learner.model[0].requires_grad_(learner.epoch not in (0, 2))  # type: ignore[index, operator]
        learner.recapture()

    compare(lambda: Graphs(FakeBackend()), callbacks=lambda: [on("before_epoch", change)])
    moved = [not torch.equal(one, other) for one, other in pairwise(weights[5:])]
    assert moved == [False, True, False, True]


# --- on the GPU ---


class SharingBackend(FakeBackend):
    """Its replays write over the results of all others of their memory, as graphs in one pool may."""

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, list[Tensors]] = {}

    def record(self, work: Callable[[], Tensors], memory: str) -> tuple[Callable[[], None], Tensors]:
        replay, results = super().record(work, memory)
        others = self.results.setdefault(memory, [])
        others.append(results)

        def overwrite() -> None:
            with torch.inference_mode():  # those of validation may be changed only here
                for value in (value for theirs in others for value in theirs):
                    value.fill_(math.nan)
            replay()

        return overwrite, results


def test_nothing_writes_over_what_a_batch_came_to_before_it_was_looked_at() -> None:
    """Of several shapes: one that is recorded after the step may lie where the step writes."""
    seen: list[float] = []
    note = on("after_batch", lambda learner: seen.append(float(learner.loss)))
    backend = SharingBackend()
    loader = noise_loader(5)  # batches of 2, 2 and 1
    make_learner(note, train=loader, val=loader, epochs=8, runner=Graphs(backend)).fit()
    assert backend.calls.count("record") == 5  # two shapes in training and in validation, and the step
    assert all(math.isfinite(loss) for loss in seen)


@needs_gpu
def test_sizes_that_change_leave_the_results_right() -> None:
    """With pools that graphs share, the loss of the second size was once that of nobody."""

    class Growing(MemoryLoader):
        """Batches of 8 and, at last, 4: five epochs of 64 px, then 96."""

        def __iter__(self) -> Iterator[Batch]:
            size = 64 if self._consumed < 5 * len(self) else 96
            for batch in super().__iter__():
                yield replace(batch, images=batch.images[..., :size, :size].contiguous())

    def still(model: nn.Module) -> torch.optim.Optimizer:
        # Steps that change nothing: a rounding would grow from batch to batch.
        return torch.optim.SGD(model.parameters(), 0.0, momentum=0.9)

    def losses(how: Runner) -> Tensor:
        found: list[Tensor] = []
        note = on("after_batch", lambda learner: found.append(learner.loss.clone()))
        torch.manual_seed(0)
        images = torch.randn(36, 3, 96, 96, generator=torch.Generator().manual_seed(1)).to(CUDA)
        loader = Growing(images, torch.arange(36, device=CUDA) % 3, 8, shuffle=False)
        model = XResNet(3, depth="18", width=0.25)
        make_learner(
            note, model=model, train=loader, val=loader, epochs=10, optimizer=still, device=CUDA, runner=how
        ).fit()
        return torch.stack(found).cpu()

    found, expected = losses(runner(CUDA, graph=True)), losses(Eager())
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)


@needs_gpu
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("clip", [False, True])
def test_replays_equal_eager_steps(name: str, clip: bool) -> None:
    options = with_clip(CASES[name]) if clip else CASES[name]
    compare(lambda: runner(CUDA, graph=True), rel=2e-3, device=CUDA, **options)


@needs_gpu
def test_replays_equal_eager_steps_in_bf16() -> None:
    compare(lambda: runner(CUDA, graph=True), rel=0.02, device=CUDA, bf16=True)


@needs_gpu
def test_replays_equal_eager_steps_of_other_optimizers_of_pytorch() -> None:
    compare(lambda: runner(CUDA, graph=True), rel=2e-3, device=CUDA, optimizer=rmsprop)


@needs_gpu
def test_dropout_differs_from_step_to_step_and_equals_that_of_eager_steps() -> None:
    def frozen(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), 0.0)

    def train_losses(how: Runner) -> list[float]:
        found: list[Tensor] = []
        note = on("after_batch", lambda learner: found.append(learner.loss.clone()) if learner.training else None)
        loader = noise_loader(2, shuffle=False, device=CUDA)
        model = tiny_model(dropout=0.5)
        model[1] = nn.Identity()
        make_learner(
            note, model=model, train=loader, val=loader, epochs=20, optimizer=frozen, device=CUDA, runner=how
        ).fit()
        return [loss.item() for loss in found]

    torch.cuda.manual_seed(0)
    graphed = train_losses(runner(CUDA, graph=True))
    torch.cuda.manual_seed(0)
    assert graphed == pytest.approx(train_losses(Eager()), rel=1e-4)
    assert len({round(loss, 5) for loss in graphed[10:]}) > 3


@needs_gpu
@pytest.mark.parametrize("optimizer", [sgd, adamw])
def test_a_replayed_batch_does_not_wait(optimizer: Make) -> None:
    """From the second epoch, when all of the larger batches are recorded, to the last."""
    recorder, schedule = Recorder(interval=math.inf), ParamScheduler({"lr": one_cycle(0.1, start=0.01, end=0.0)})
    watched: list[int] = []
    stack = ExitStack()

    def watch(learner: Learner) -> None:
        if learner.epoch >= 1 and learner.position.batch > 1:
            stack.enter_context(refuse_waiting())
            watched.append(learner.step)

    def rest(learner: Learner) -> None:
        stack.close()

    loader = noise_loader(12, shuffle=False, device=CUDA)
    with stack:
        make_learner(
            *(recorder, schedule, GradClip(), on("before_batch", watch, 1000), on("after_batch", rest, 1000)),
            train=loader,
            val=noise_loader(4, shuffle=False, device=CUDA),
            epochs=4,
            optimizer=optimizer,
            device=CUDA,
            runner=runner(CUDA, graph=True),
        ).fit()
    assert len(watched) > 15


class Peeks(nn.Module):
    """Waits for the GPU, which a graph cannot."""

    def forward(self, images: Tensor) -> Tensor:
        if images.abs().max().item() > 100:
            return images * 0
        return images


@needs_gpu
def test_a_model_that_cannot_be_recorded_is_trained_eagerly(caplog: pytest.LogCaptureFixture) -> None:
    """With dropout behind, and other graphs before: random numbers and streams are left as they were."""

    def model() -> nn.Module:
        return nn.Sequential(Peeks(), *tiny_model(dropout=0.5))

    with caplog.at_level(logging.WARNING):
        torch.cuda.manual_seed(0)
        graphed, _ = losses(runner(CUDA, graph=True), CUDA, model=model())
    torch.cuda.manual_seed(0)
    eager, _ = losses(Eager(), CUDA, model=model())
    assert graphed == pytest.approx(eager, rel=1e-3, abs=1e-6)
    said = {record.message.split(": ")[1] for record in caplog.records}
    assert said == {"train is run without a CUDA graph", "validate is run without a CUDA graph"}
    assert len(caplog.records) == 2
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert not torch.cuda.is_current_stream_capturing()
    compare(lambda: runner(CUDA, graph=True), rel=2e-3, device=CUDA)  # and others go on as ever


@needs_gpu
@pytest.mark.parametrize("optimizer", [sgd, adamw, lamb])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_resumed_graphed_fit_equals_one_that_was_not_interrupted(
    optimizer: Make, accumulate: int, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"optimizer": optimizer, "accumulate": accumulate, "epochs": 5, "device": CUDA}

    def learner(folder: Path, *callbacks: Any) -> Learner:
        folder.mkdir()
        train, val = noise_loader(7, device=CUDA), noise_loader(5, shuffle=False, device=CUDA)
        schedule = ParamScheduler({"lr": one_cycle(0.1, start=0.01, end=0.0)})
        return make_learner(
            *(Recorder(), schedule, Checkpoint(), *callbacks),
            train=train,
            val=val,
            folder=folder,
            runner=runner(CUDA, graph=True),
            model=tiny_model(dropout=0.5),
            **options,
        )

    torch.cuda.manual_seed(0)
    whole = learner(tmp_path / "whole")
    whole.fit()
    torch.cuda.manual_seed(0)
    learner(tmp_path / "first", on("after_batch", raises(CancelFit, 7 * 3 + 2))).fit()
    second = learner(tmp_path / "second")
    second.fit(second.load_state_dict(load(tmp_path / "first" / LAST, CUDA)))
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(second.model.state_dict()[name], value, rtol=1e-3, atol=1e-5)
    on_the_cpu = make_learner(optimizer=optimizer)
    on_the_cpu.optimizer.load_state_dict(load(tmp_path / "second" / LAST)["optimizer"])
    assert isinstance(on_the_cpu.optimizer.param_groups[0]["lr"], float)
    on_the_cpu.train_loader.fetched.clear()  # type: ignore[attr-defined]
    on_the_cpu.fit()  # steps there
    assert on_the_cpu.position == (2, 0)


def test_a_state_knows_nothing_of_recording() -> None:
    """No tensors for rates and no settings of recording: what was saved on a GPU loads anywhere."""

    def groups(how: Runner) -> tuple[list[float], list[dict[str, Any]]]:
        _, learner = losses(how, callbacks=lambda: [on("after_batch", raises(CancelFit, at=20))])
        state = learner.state_dict()["optimizer"]
        assert state["state"].keys() == {0, 1, 2, 3}
        rates = [group.pop("lr") for group in state["param_groups"]]
        return rates, state["param_groups"]

    (ours, our_groups), (theirs, their_groups) = groups(Graphs(FakeBackend())), groups(Eager())
    assert all(isinstance(rate, float) for rate in ours)
    assert ours == pytest.approx(theirs)
    assert our_groups == their_groups


@pytest.mark.parametrize("first", [Eager, lambda: Graphs(FakeBackend())])
@pytest.mark.parametrize("second", [Eager, lambda: Graphs(FakeBackend())])
def test_a_fit_may_be_resumed_with_or_without_recording(
    first: Callable[[], Runner], second: Callable[[], Runner]
) -> None:
    """A state that is put back replaces the optimizer's tensors, which what was recorded would still write to."""

    def learner(how: Runner, *callbacks: Any) -> Learner:
        schedule = ParamScheduler({"lr": one_cycle(0.1, start=0.01, end=0.0)})
        return make_learner(schedule, *callbacks, train=noise_loader(7), epochs=5, optimizer=sgd, runner=how)

    whole = learner(Eager())
    whole.fit()
    stopped = learner(first(), on("after_batch", raises(CancelFit, 20)))
    stopped.fit()
    state = deepcopy(stopped.state_dict())
    resumed = learner(second())
    resumed.fit()
    resumed.fit(resumed.load_state_dict(state))
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[name], value, rtol=1e-4, atol=1e-6)


@needs_gpu
# What torch.compile imports warns of parts of PyTorch itself.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_model_is_recorded_and_has_its_own_keys() -> None:
    learner = compare(lambda: runner(CUDA, graph=True), rel=1e-2, device=CUDA, compile=True)
    assert list(learner.model.state_dict()) == list(tiny_model().state_dict())
