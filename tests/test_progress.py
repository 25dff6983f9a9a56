"""The line an epoch, and a bar that any fit may start."""

import pytest
from fakes import make_learner, on, raises

from trainer.callback import CancelEpoch
from trainer.progress import ProgressBar
from trainer.recorder import Recorder


def test_a_line_an_epoch_below_a_head(capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder()
    make_learner(recorder, ProgressBar()).fit()
    head, *lines = (line.split() for line in capsys.readouterr().out.splitlines() if line.strip())
    assert head[:5] == ["epoch", "train", "loss", "train", "acc"]
    assert [line[:5] for line in lines] == [
        [
            f"{epoch}/2",
            *(f"{row[key]:.4f}" for key in ("train_loss", "train_accuracy", "val_loss", "val_accuracy")),
        ]
        for epoch, row in enumerate(recorder.rows, 1)
    ]


def test_what_an_epoch_did_not_measure_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    make_learner(Recorder(), ProgressBar(), on("before_train", raises(CancelEpoch)), epochs=1).fit()
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "1/1" in line)
    assert line.split() == ["1/1", *"-------"]


def test_a_second_fit_has_a_bar_of_its_own() -> None:
    learner = make_learner(Recorder(), ProgressBar(), epochs=1)
    learner.fit()
    learner.fit()
    assert len(learner.find(Recorder).rows) == 2
