"""Stages in a fit: steps, schedule, table, memory."""

import io
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from fakes import CLASSES, frozen, on, tiny_model
from nvidia.dali.pipeline import Pipeline
from rich.console import Console
from stages import SIZES, config_of, staged, wait_for_threads

from augment.data.dataset import Split
from augment.recipe.plan import build_plan
from trainer.callbacks.steps import Prepare
from trainer.loop.callback import RunDescription
from trainer.loop.counts import Position
from trainer.loop.learner import Learner
from trainer.run import train as run
from trainer.run.build import make_loader


def learner_of(data: Split, *callbacks: Any, **fit: Any) -> Learner:
    config = config_of(**fit)
    return Learner(
        tiny_model(),
        staged(config, data),
        make_loader(config, build_plan(config.aug, "val"), data),
        config.fit,
        optimizer=frozen,
        callbacks=callbacks,
        classes=CLASSES,
        run=RunDescription(stages=config.fit.full_stages(config.aug.size)),
    )


def note(notes: list[tuple[bool, int, int, int]]) -> Any:
    return on(
        "after_batch", lambda learner: notes.append((learner.training, learner.step, *learner.batch.images.shape[::3]))
    )


@pytest.mark.parametrize(("limit", "batches"), [(None, [3, 3, 2, 2, 2]), (2, [2] * 5), (1, [1] * 5)])
def test_steps_count_the_batches_of_all_stages(limit: int | None, batches: list[int], data: Split) -> None:
    notes: list[tuple[bool, int, int, int]] = []
    learner = learner_of(data, note(notes), limit_batches=limit)
    learner.fit()
    assert learner.total_steps == sum(batches)
    assert [step for training, step, *_ in notes if training] == list(range(sum(batches)))
    sizes = [(count, size) for size, counts in SIZES for count in counts[:limit]]
    assert [(count, size) for training, _, count, size in notes if training] == sizes
    assert {size for training, *_, size in notes if not training} == {12}


def test_validation_is_prepared_while_the_first_epoch_trains(data: Split, alive: "weakref.WeakSet[Pipeline]") -> None:
    counts: list[int] = []

    def look(learner: Learner) -> None:
        wait_for_threads()
        counts.append(len(alive))

    learner = learner_of(data, Prepare(), on("after_train", look))
    learner.fit(Position(4, 0))  # no other stage comes after it
    # One for training and one for validation.
    assert counts == [2]


@pytest.mark.slow
def test_a_run_with_stages(
    data: Split, tmp_path: Path, alive: "weakref.WeakSet[Pipeline]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "keep_freed_memory", lambda: None)  # it is for good
    summary = run.train(config_of(drop_last=True), tmp_path, console=Console(file=io.StringIO()))
    assert (summary.status, summary.epochs) == ("finished", 5)
    assert len(alive) == 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("background")]
