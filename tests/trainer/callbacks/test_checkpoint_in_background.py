"""Checkpoints within an epoch, and all that are written while training continues."""

from copy import deepcopy
from pathlib import Path
from threading import Event

import pytest
import torch
from fakes import assert_same, make_learner, needs_gpu, noise_loader, on

from trainer.callbacks.checkpoint import Checkpoint
from trainer.callbacks.recorder import Recorder
from trainer.loop.checkpoint import BEST, LAST, BestModel, FitState, load, save
from trainer.loop.learner import Learner


class Clock:
    """Stands for `monotonic`; a batch takes a minute."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def positions(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return a list that collects the position of every write of last.pt."""
    saved: list[tuple[int, int]] = []

    def remember(state: BestModel | FitState, path: Path, **options: int) -> None:
        if isinstance(state, FitState):
            saved.append(state.position)
        save(state, path, **options)

    monkeypatch.setattr("trainer.callbacks.checkpoint.save", remember)
    return saved


def test_last_is_saved_some_minutes_after_the_last_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch is 3 batches, and 2 of validation."""
    saved, clock = positions(monkeypatch), Clock()
    monkeypatch.setattr("trainer.callbacks.checkpoint.monotonic", clock)

    def wait(learner: Learner) -> None:
        clock.now += 60

    slow = on("before_batch", wait)
    make_learner(Recorder(), Checkpoint(every_minutes=2), slow, folder=tmp_path).fit()
    assert saved == [(0, 2), (1, 0), (1, 2), (2, 0)]
    saved.clear()
    make_learner(Recorder(), Checkpoint(every_minutes=6, every=9), slow, folder=tmp_path).fit()
    assert saved == [(1, 1), (2, 0)]
    saved.clear()
    make_learner(Recorder(), Checkpoint(every_minutes=None), slow, folder=tmp_path).fit()
    assert saved == [(1, 0), (2, 0)]


@pytest.mark.parametrize(("every_batches", "at"), [(2, (0, 2)), (None, (1, 0))])
def test_what_is_saved_is_as_it_was_then(
    every_batches: int | None, at: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write happens in the background, while training changes the weights."""
    trained, weights = Event(), {}

    def write_late(state: BestModel | FitState, path: Path, **options: int) -> None:
        assert trained.wait(60)
        save(state, path, **options)

    def remember(learner: Learner) -> None:
        if learner.position == at:
            weights.update(deepcopy(learner.model.state_dict()))
        elif learner.position > at and learner.training:
            trained.set()
            raise RuntimeError("boom")

    monkeypatch.setattr("trainer.callbacks.checkpoint.save", write_late)
    watch = (on("after_batch", remember, order=99), on("after_epoch", remember, order=99))
    learner = make_learner(Recorder(), Checkpoint(every_batches=every_batches), *watch, folder=tmp_path)
    with pytest.raises(RuntimeError, match="boom"):
        learner.fit()
    assert load(tmp_path / LAST, FitState).position == at
    assert_same(load(tmp_path / LAST, FitState).model, weights)
    assert (tmp_path / BEST).is_file() == (every_batches is None)
    if every_batches is None:
        assert_same(load(tmp_path / BEST, BestModel).model, weights)


@needs_gpu
@pytest.mark.parametrize("graph", [False, True])
def test_what_is_saved_within_an_epoch_on_a_gpu_is_as_it_was_then(graph: bool, tmp_path: Path) -> None:
    device = torch.device("cuda")
    weights: dict[tuple[int, int], dict[str, torch.Tensor]] = {}

    def remember(learner: Learner) -> None:
        if learner.training:
            weights[learner.position] = deepcopy(learner.model.state_dict())

    train, val = noise_loader(41, device=device), noise_loader(3, shuffle=False, device=device)
    callbacks = (Recorder(), Checkpoint(every_batches=1, keep=30), on("after_batch", remember, order=99))
    make_learner(*callbacks, train=train, val=val, device=device, graph=graph, epochs=1, folder=tmp_path).fit()
    for number in range(1, 22):
        saved = load(tmp_path / f"last.{number}.pt", FitState, device)
        assert saved.position == (0, 22 - number)
        assert_same(saved.model, weights[saved.position])


def test_a_write_in_the_background_that_fails_ends_the_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(state: object, path: Path, **_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("trainer.callbacks.checkpoint.save", fail)
    learner = make_learner(Recorder(), Checkpoint(every_batches=1), folder=tmp_path)
    with pytest.raises(OSError, match="no space left"):
        learner.fit()
    assert learner.position.epoch == 0
    learner = make_learner(Recorder(), Checkpoint(), folder=tmp_path, epochs=1)
    with pytest.raises(OSError, match="no space left") as caught:
        learner.fit()
    assert learner.error is caught.value  # also seen by the callbacks after it, as the report
    monkeypatch.undo()
    learner.fit()
    assert load(tmp_path / LAST, FitState).position == (1, 0)
