"""The line of each epoch, and the bar."""

import re
from io import StringIO

import pytest
from fakes import make_learner, on, raises
from rich.console import Console

from trainer.callbacks.progress import Pace, ProgressBar, _running
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import CancelEpoch
from trainer.loop.learner import Learner


def test_a_head_and_a_line_for_each_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder()
    make_learner(recorder, ProgressBar()).fit()
    shown = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert len({len(line) for line in shown}) == 1  # numbers end where their titles do
    head, *lines = (line.split() for line in shown)
    assert head[:5] == ["epoch", "train", "loss", "train", "acc"]
    assert [line[:5] for line in lines] == [
        [
            f"{epoch}/2",
            *(f"{row[key]:.4f}" for key in ("train_loss", "train_accuracy", "val_loss", "val_accuracy")),
        ]
        for epoch, row in enumerate(recorder.rows, 1)
    ]


def test_the_bar_shows_the_running_values() -> None:
    recorder = Recorder()
    learner = make_learner(recorder)
    recorder.before_fit(learner)
    assert _running(learner) == ""
    recorder.latest = {"loss": 0.12345, "accuracy": 0.5, "images_per_second": 1234.5}
    assert _running(learner) == "loss 0.1235  acc 0.5000  1,234 img/s"


def test_the_bar_fits_80_columns_and_has_running_values_in_training_only(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: dict[bool, str] = {}

    def draw(learner: Learner) -> None:
        recorder.latest = {"loss": 0.12345, "accuracy": 0.5, "images_per_second": 1234.5}
        bar.after_batch(learner)
        Console(file=(text := StringIO()), width=80).print(bar._bar)
        shown[learner.training] = " ".join(re.sub("[━╸╺]", "", text.getvalue()).split())

    bar, recorder, pace = ProgressBar(), Recorder(), Pace()
    monkeypatch.setattr(pace, "left", lambda learner: 723)
    monkeypatch.setattr(Learner, "batches", lambda *_: 147)
    monkeypatch.setattr(Learner, "batches_in", lambda *_: 147)
    make_learner(recorder, pace, bar, on("after_batch", draw, order=90), epochs=10).fit()
    assert shown[True] == "epoch 10/10 train 6/147 loss 0.1235 acc 0.5000 1,234 img/s 12 min 3 s left"
    assert shown[False] == "epoch 10/10 val 4/147 12 min 3 s left"


def test_missing_values_are_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    make_learner(Recorder(), ProgressBar(), on("before_train", raises(CancelEpoch)), epochs=1).fit()
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "1/1" in line)
    assert line.split() == ["1/1", *"-------"]


def test_a_second_fit_has_a_bar_of_its_own() -> None:
    learner = make_learner(Recorder(), ProgressBar(), epochs=1)
    learner.fit()
    learner.fit()
    assert len(learner.find(Recorder).rows) == 2
