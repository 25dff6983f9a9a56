"""Fits whose work is recorded as CUDA graphs equal eager ones, and wait for nothing."""

import logging
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import MemoryLoader, make_learner, needs_gpu, noise_loader, on, raises, reject_waiting, tiny_model
from graphed import CASES, CUDA, How, Make, adamw, compare, lamb, losses, on_gpu, rmsprop, sgd, with_clip
from torch import Tensor, nn

from augment.params import Size
from augment.pipeline.batch import Batch
from trainer.callbacks.checkpoint import Checkpoint
from trainer.callbacks.optimizer_steps import GradClip, ParamScheduler
from trainer.callbacks.recorder import Recorder
from trainer.loop.batch_runner import Runner
from trainer.loop.callback import CancelFit
from trainer.loop.checkpoint import LAST, FitState, load
from trainer.loop.learner import Learner
from trainer.models.registry import Xresnet
from trainer.optim.schedules import one_cycle


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

    def losses(how: How) -> Tensor:
        found: list[Tensor] = []
        note = on("after_batch", lambda learner: found.append(learner.loss.clone()))
        torch.manual_seed(0)
        images = torch.randn(36, 3, 96, 96, generator=torch.Generator().manual_seed(1)).to(CUDA)
        loader = Growing(images, torch.arange(36, device=CUDA) % 3, 8, shuffle=False)
        model = Xresnet(depth="18", width=0.25).build(3, Size(96, 96))
        make_learner(
            note, model=model, train=loader, val=loader, epochs=10, optimizer=still, device=CUDA, runner=how
        ).fit()
        return torch.stack(found).cpu()

    found, expected = losses(on_gpu), losses(Runner)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)


@needs_gpu
@pytest.mark.parametrize("name", CASES)
def test_replays_equal_eager_steps(name: str) -> None:
    compare(on_gpu, rel=2e-3, device=CUDA, **with_clip(CASES[name]))


@needs_gpu
@pytest.mark.parametrize(("options", "rel"), [({"precision": "bf16"}, 0.02), ({"optimizer": rmsprop}, 2e-3)])
def test_replays_equal_eager_steps_in_bf16_and_of_other_optimizers(options: dict[str, Any], rel: float) -> None:
    compare(on_gpu, rel=rel, device=CUDA, **options)


@needs_gpu
def test_dropout_differs_from_step_to_step_and_equals_that_of_eager_steps() -> None:
    def frozen(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), 0.0)

    def train_losses(how: How) -> list[float]:
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
    graphed = train_losses(on_gpu)
    torch.cuda.manual_seed(0)
    assert graphed == pytest.approx(train_losses(Runner), rel=1e-4)
    assert len({round(loss, 5) for loss in graphed[10:]}) > 3


@needs_gpu
@pytest.mark.parametrize("optimizer", [sgd, adamw])
def test_a_replayed_batch_does_not_wait(optimizer: Make) -> None:
    """From the second epoch, when all of the larger batches are recorded, to the last."""
    recorder, schedule = Recorder(interval=math.inf), ParamScheduler({"lr": one_cycle(0.1, start=0.01, end=0.0)})
    watched: list[int] = []
    stack = ExitStack()

    def watch(learner: Learner) -> None:
        if learner.progress.epoch >= 1 and learner.progress.position.batch > 1:
            stack.enter_context(reject_waiting())
            watched.append(learner.progress.batches_done - 1)

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
            runner=on_gpu,
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
        graphed, _ = losses(on_gpu, CUDA, model=model())
    torch.cuda.manual_seed(0)
    eager, _ = losses(Runner, CUDA, model=model())
    assert graphed == pytest.approx(eager, rel=1e-3, abs=1e-6)
    said = {record.message.split(": ")[1] for record in caplog.records}
    assert said == {"'train' runs without a CUDA graph", "'validate' runs without a CUDA graph"}
    assert len(caplog.records) == 2
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert not torch.cuda.is_current_stream_capturing()
    compare(on_gpu, rel=2e-3, device=CUDA)  # and others go on as ever


class Disturbed(nn.Module):
    """Has another thread call a function while it is recorded for the first time, in training and in validation."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self.work = work
        self.done: set[bool] = set()

    def forward(self, images: Tensor) -> Tensor:
        if torch.cuda.is_current_stream_capturing() and self.training not in self.done:
            self.done.add(self.training)
            with ThreadPoolExecutor() as pool:
                pool.submit(self.work).result()
        return images


def wait_for_the_gpu() -> None:
    """Wait for the whole GPU, as DALI does to free a batch."""
    with suppress(RuntimeError):  # it must not wait either
        torch.cuda.synchronize()


@needs_gpu
@pytest.mark.parametrize("layer", [0, 1, 6])
def test_a_recording_that_another_thread_disturbs_is_repeated(layer: int, caplog: pytest.LogCaptureFixture) -> None:
    """Before a convolution, a batch norm and a matrix product, each of which reports it in its own way."""
    disturbed = Disturbed(wait_for_the_gpu)

    def model() -> nn.Module:
        layers = tiny_model(dropout=0.5)
        return nn.Sequential(*layers[:layer], disturbed, *layers[layer:])

    with caplog.at_level(logging.WARNING):
        torch.cuda.manual_seed(0)
        graphed, _ = losses(on_gpu, CUDA, model=model())
    assert disturbed.done == {True, False}
    assert not caplog.records
    torch.cuda.manual_seed(0)
    eager, _ = losses(Runner, CUDA, model=model())
    assert graphed == pytest.approx(eager, rel=2e-3, abs=1e-6)


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
            runner=on_gpu,
            model=tiny_model(dropout=0.5),
            **options,
        )

    torch.cuda.manual_seed(0)
    whole = learner(tmp_path / "whole")
    whole.fit()
    torch.cuda.manual_seed(0)
    learner(tmp_path / "first", on("after_batch", raises(CancelFit, 7 * 3 + 2))).fit()
    second = learner(tmp_path / "second")
    second.fit(second.restore(load(tmp_path / "first" / LAST, FitState, CUDA)))
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(second.model.state_dict()[name], value, rtol=1e-3, atol=1e-5)
    on_the_cpu = make_learner(optimizer=optimizer)
    on_the_cpu.optimizer.load_state_dict(load(tmp_path / "second" / LAST, FitState).optimizer)
    assert isinstance(on_the_cpu.optimizer.param_groups[0]["lr"], float)
    on_the_cpu.train_loader.fetched.clear()  # type: ignore[attr-defined]
    on_the_cpu.fit()  # steps there
    assert on_the_cpu.progress.position == (2, 0)


@needs_gpu
def test_an_eager_optimizer_that_gets_a_state_back_counts_its_steps_on_the_host() -> None:
    """A state that was read to the GPU brings the counts along, and each step would wait for each of them."""

    def foreach(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), 0.01, foreach=True)

    loaders = {"train": noise_loader(device=CUDA), "val": noise_loader(3, shuffle=False, device=CUDA)}
    first = make_learner(optimizer=foreach, device=CUDA, **loaders)
    first.fit()
    state = first.state()
    for values in state.optimizer["state"].values():
        values["step"] = values["step"].to(CUDA)
    second = make_learner(optimizer=foreach, device=CUDA, **loaders)
    second.restore(state)
    counts = [values["step"] for values in second.optimizer.state.values()]
    assert {count.device.type for count in counts} == {"cpu"}
    assert {int(count) for count in counts} == {6}


@needs_gpu
# What torch.compile imports warns of parts of PyTorch itself.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_model_is_recorded_and_has_its_own_keys() -> None:
    learner = compare(on_gpu, rel=1e-2, device=CUDA, compile=True)
    assert list(learner.model.state_dict()) == list(tiny_model().state_dict())
