"""Fits whose length is a number of optimizer steps."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import assert_same, make_learner, noise_loader, on, raises, small_learner, tiny_model
from runs import read_metrics, rows_of
from torch.utils.data import DataLoader, IterableDataset

from augment.cli.compose import compose
from augment.support.errors import UserError
from trainer.callbacks.checkpoint import Checkpoint
from trainer.callbacks.optimizer_steps import ParamScheduler
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import Callback, CancelFit
from trainer.loop.checkpoint import LAST, FitState, load
from trainer.loop.learner import Learner
from trainer.loop.progress import Position
from trainer.loop.settings import LoopSettings
from trainer.run.config.schema import parse_config


def counted(**options: Any) -> tuple[Learner, list[Position]]:
    """Fit epochs of 3 batches; return the learner, and the positions of its steps."""
    steps: list[Position] = []
    learner = make_learner(
        Recorder(), on("after_step", lambda learner: steps.append(learner.progress.position)), **options
    )
    return learner, steps


@pytest.mark.parametrize(
    ("steps", "accumulate", "last", "total"),
    [
        (1, 1, (0, 1), 1),
        (3, 1, (0, 3), 3),
        (7, 1, (2, 1), 7),
        (2, 2, (0, 3), 3),
        (5, 2, (2, 2), 8),
        (6, 2, (2, 3), 9),
        (2, 9, (1, 3), 6),
    ],
)
def test_a_fit_makes_exactly_the_given_steps(
    steps: int, accumulate: int, last: tuple[int, int], total: int, tmp_path: Path
) -> None:
    learner, made = counted(steps=steps, accumulate=accumulate, folder=tmp_path, epochs=9, validate_every=9)
    learner.fit()
    assert (len(made), made[-1]) == (steps, last)
    progress = learner.progress
    assert (progress.epochs, progress.total_batches, progress.batches_done) == (last[0] + 1, total, total)
    assert progress.position == (last[0] + 1, 0)
    rows = read_metrics(tmp_path)
    assert [row["epoch"] for row in rows] == [*range(last[0] + 1)]
    assert "val_loss" in rows[-1]


def test_steps_of_too_many_epochs_are_rejected() -> None:
    scheduler, unused = ParamScheduler({"lr": lambda position: position}), on("after_step", raises(AssertionError))
    with pytest.raises(UserError, match=r"fit\.steps=90001 needs 30,001 epochs\. The limit is 30,000\."):
        make_learner(scheduler, unused, steps=90_001).fit()


def test_schedules_cover_exactly_the_steps() -> None:
    rates: list[float] = []
    look = on("after_step", lambda learner: rates.append(learner.optimizer.param_groups[0]["lr"]))
    make_learner(ParamScheduler({"lr": lambda position: position}), look, steps=5).fit()
    assert rates == [0.0, 0.2, 0.4, 0.6, 0.8]


def test_the_length_can_be_given_to_fit() -> None:
    learner, made = counted(epochs=9)
    learner.fit(steps=4)
    assert (len(made), learner.progress.epochs) == (4, 2)
    learner.fit(steps=0)
    assert len(made) == 4
    whole, expected = counted(steps=4)
    whole.fit()
    assert made == expected


def resumable(folder: Path, *callbacks: Callback, seed: int = 0) -> Learner:
    folder.mkdir(exist_ok=True)
    return make_learner(
        *(Recorder(), ParamScheduler({"lr": lambda position: 0.2 - 0.1 * position}), Checkpoint(), *callbacks),
        model=tiny_model(dropout=0.5, seed=seed),
        folder=folder,
        train=noise_loader(9),
        accumulate=2,
        steps=4,
    )


def test_a_fit_interrupted_in_any_batch_equals_one_that_was_not(tmp_path: Path) -> None:
    whole = resumable(tmp_path / "whole")
    whole.fit()
    assert whole.progress.total_batches == 5 + 2
    for batch in range(5 + 2 + 2 * 2):
        folder = tmp_path / str(batch)
        resumable(folder, on("after_batch", raises(CancelFit, batch), 100)).fit()
        resumed = resumable(folder, seed=9)
        resumed.fit(resumed.restore(load(folder / LAST, FitState)))
        assert_same(resumed.model.state_dict(), whole.model.state_dict())
        assert rows_of(folder) == rows_of(tmp_path / "whole")


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from [(torch.zeros(3, 8, 8), 0)] * 7


@pytest.mark.parametrize(("accumulate", "steps", "epochs"), [(1, 9, 3), (1, 3, 1), (3, 5, 3), (3, 2, 1)])
def test_data_without_a_length_can_be_trained_for_steps(accumulate: int, steps: int, epochs: int) -> None:
    made: list[float] = []
    learner = Learner(
        tiny_model(),
        DataLoader(Stream(), 2),
        settings=LoopSettings(steps=steps, accumulate=accumulate, device="cpu"),
        callbacks=[
            ParamScheduler({"lr": lambda position: 0.1}),
            on("after_step", lambda learner: made.append(learner.progress.batches_done)),
        ],
    )
    learner.fit()
    assert (len(made), learner.progress.epochs) == (steps, epochs)
    assert learner.progress.batches_done == made[-1] == learner.progress.total_batches


def test_stages_have_epochs() -> None:
    with pytest.raises(UserError, match=r"^fit\.steps=5: .*fit\.stages"):
        parse_config(compose(["fit.steps=5", "fit.stages={a: {size: 16}}"]))


def test_a_number_of_epochs_without_effect_is_named() -> None:
    both = parse_config(compose(["fit.steps=5", "fit.epochs=3"]))
    assert any("fit.epochs=3 has no effect" in note for note in both.notes)
    assert not any("fit.steps" in note for note in parse_config(compose(["fit.steps=5"])).notes)


def test_early_ends_count_epochs() -> None:
    learner = small_learner(Recorder(), on("after_epoch", raises(CancelFit, 0)), steps=9)
    learner.fit()
    assert learner.progress.position == (1, 0)
