"""What is saved when, also within an epoch and in the background, and which epoch counts as the best."""

import math
from copy import deepcopy
from pathlib import Path
from threading import Event

import pytest
import torch
from fakes import assert_same, make_learner, needs_gpu, noise_loader, on, raises

from trainer.callbacks.checkpoint import Checkpoint, best_model, best_of
from trainer.callbacks.optimizer_steps import EarlyStopping
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import Callback, RunDescription
from trainer.loop.checkpoint import BEST, LAST, BestModel, FitState, load, save
from trainer.loop.learner import Learner, Position
from trainer.run.train import describe_changed_validation


def scores(values: list[float], key: str = "val_accuracy") -> Callback:
    """Make a callback that replaces what the recorder measured, before the checkpoint sees it."""
    given = iter(values)

    def replace(learner: Learner) -> None:
        learner.find(Recorder).rows[-1][key] = next(given)

    return on("after_epoch", replace)


NAN = math.nan


@pytest.mark.parametrize(
    ("monitor", "values", "best"),
    [
        ("val_accuracy", [0.2, 0.3, 0.3], 1),
        ("val_loss", [NAN, 0.2, 0.3], 1),
        ("val_loss", [0.3, NAN, 0.2], 2),
        ("val_accuracy", [NAN, NAN, NAN], 2),
    ],
)
def test_best_is_the_first_of_the_best(monitor: str, values: list[float], best: int, tmp_path: Path) -> None:
    weights: list[dict[str, torch.Tensor]] = []
    copy = on("after_epoch", lambda learner: weights.append(deepcopy(learner.model.state_dict())))
    checkpoint = Checkpoint(monitor=monitor)
    learner = make_learner(Recorder(), scores(values, monitor), checkpoint, copy, folder=tmp_path, epochs=3)
    learner.fit()
    saved = load(tmp_path / BEST, BestModel)
    assert_same(saved.model, weights[best])
    assert_same(saved.row, learner.find(Recorder).rows[best])


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
def test_what_failed_is_not_saved(error: BaseException, tmp_path: Path) -> None:
    learner = make_learner(Recorder(), Checkpoint(), on("after_step", raises(error, at=4)), folder=tmp_path)
    with pytest.raises(type(error)):
        learner.fit()
    assert load(tmp_path / LAST, FitState).position == (1, 0)


def test_the_files_before_the_last_one_are_kept(tmp_path: Path) -> None:
    make_learner(Recorder(), Checkpoint(every_batches=1, keep=2), folder=tmp_path).fit()
    files = [tmp_path / name for name in (LAST, "last.1.pt", "last.2.pt")]
    assert [load(file, FitState).position for file in files] == [(2, 0), (1, 3), (1, 2)]
    assert sorted(file.name for file in tmp_path.glob("*.pt")) == [BEST, "last.1.pt", "last.2.pt", LAST]


def test_a_resumed_run_that_goes_by_another_value_seeks_the_best_again(tmp_path: Path) -> None:
    """A loss that is compared with an accuracy would be the best in no epoch."""
    runs = (RunDescription(validation={"callbacks.checkpoint.monitor": key}) for key in ("val_accuracy", "val_loss"))
    first = make_learner(Recorder(), scores([0.1], "val_loss"), Checkpoint(), folder=tmp_path, epochs=1, run=next(runs))
    first.fit()
    given = Recorder(), scores([0.8, 0.7], "val_loss"), Checkpoint(monitor="val_loss")
    second = make_learner(*given, folder=tmp_path, epochs=3, run=next(runs))
    second.fit(second.restore(load(tmp_path / LAST, FitState)))
    assert load(tmp_path / BEST, BestModel).row["epoch"] == 2


def test_a_resumed_run_that_validates_in_another_way_determines_the_best_again(tmp_path: Path) -> None:
    """Scores on smaller crops, say, do not compare with those before, for early stopping either."""

    def run(epochs: int, values: list[float], validation: dict[str, str], *, resumed: bool = True) -> Learner:
        learner = make_learner(
            *(Recorder(), scores(values), Checkpoint(), EarlyStopping(patience=2)),
            folder=tmp_path,
            epochs=epochs,
            run=RunDescription(validation=validation),
        )
        start = learner.restore(load(tmp_path / LAST, FitState)) if resumed else Position()
        said.append(describe_changed_validation(learner))
        learner.fit(start)
        return learner

    said: list[str] = []
    run(1, [0.9], {"aug.val": "a", "fit.tta": "none"}, resumed=False)
    run(2, [0.5], {"aug.val": "a", "fit.tta": "none"})
    assert load(tmp_path / BEST, BestModel).row["epoch"] == 0
    third = run(4, [0.6, 0.7], {"aug.val": "b", "fit.tta": "none"})
    assert said == ["", "", said[2]]
    assert said[2].startswith("aug.val: changed since the saved run, so old and new scores cannot be compared.")
    assert said[2].endswith(" from epoch 3 on.")
    assert [len(third.find(Recorder).rows), load(tmp_path / BEST, BestModel).row["epoch"]] == [4, 3]
    fourth = run(5, [0.65], {"aug.val": "b", "fit.tta": "none"})
    assert best_of(fourth)[1]["epoch"] == 3


# --- the best epoch in memory ---


def test_a_best_epoch_before_this_fit_is_read(tmp_path: Path) -> None:
    first = make_learner(Recorder(), scores([0.3]), Checkpoint(), folder=tmp_path, epochs=1)
    first.fit()
    second = make_learner(Recorder(), scores([0.2]), Checkpoint(), folder=tmp_path, epochs=2)
    assert best_model(second) is not None
    second.fit(second.restore(first.state()))
    known = best_model(second)
    assert known is not None
    assert_same(vars(known), vars(load(tmp_path / BEST, BestModel)))


# --- in the background ---


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
    saved, now = positions(monkeypatch), [0]
    monkeypatch.setattr("trainer.callbacks.checkpoint.monotonic", lambda: now[0])

    def wait(learner: Learner) -> None:
        now[0] += 60

    slow = on("before_batch", wait)
    make_learner(Recorder(), Checkpoint(every_minutes=2), slow, folder=tmp_path).fit()
    assert saved == [(0, 2), (1, 0), (1, 2), (2, 0)]
    saved.clear()
    worse = on(
        "after_epoch", lambda learner: learner.find(Recorder).rows[-1].update(val_accuracy=-learner.progress.epoch), 1
    )
    make_learner(Recorder(), Checkpoint(every_minutes=7, every=9), slow, worse, folder=tmp_path).fit()
    assert saved == [(1, 0), (2, 0)]  # with best.pt, and at the end
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
        if learner.progress.position == at:
            weights.update(deepcopy(learner.model.state_dict()))
        elif learner.progress.position > at and learner.training:
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
            weights[learner.progress.position] = deepcopy(learner.model.state_dict())

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
    assert learner.progress.position.epoch == 0
    learner = make_learner(Recorder(), Checkpoint(), folder=tmp_path, epochs=1)
    with pytest.raises(OSError, match="no space left") as caught:
        learner.fit()
    assert learner.error is caught.value  # also seen by the callbacks after it, as the report
    monkeypatch.undo()
    learner.fit()
    assert load(tmp_path / LAST, FitState).position == (1, 0)
