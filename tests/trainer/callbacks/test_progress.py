"""The line of each epoch, the bar, and the remaining time of a fit."""

import re
from io import StringIO

import pytest
from fakes import make_learner, on, raises
from rich.console import Console

from trainer.callbacks import progress, recorder
from trainer.callbacks.progress import ProgressBar, seconds_left
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import CancelFit, Phase
from trainer.loop.learner import Learner
from trainer.loop.progress import Position
from trainer.loop.settings import LoopSettings


def test_a_head_and_a_line_for_each_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder()
    make_learner(recorder, ProgressBar()).fit()
    shown = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert len({len(line) for line in shown}) == 1  # numbers end where their titles do
    head, *lines = (line.split() for line in shown)
    assert head[:5] == ["epoch", "train", "loss", "train", "acc"]
    assert [line[:5] for line in lines] == [
        [f"{epoch}/2", *(f"{row[key]:.4f}" for key in ("train_loss", "train_accuracy", "val_loss", "val_accuracy"))]
        for epoch, row in enumerate(recorder.rows, 1)
    ]


def test_the_bar_fits_80_columns_and_has_running_values_in_training_only(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: dict[bool, str] = {}

    def draw(learner: Learner) -> None:
        recorder.latest = {"loss": 0.12345, "accuracy": 0.5, "images_per_second": 1234.5}
        bar.after_batch(learner)
        Console(file=(text := StringIO()), width=80).print(bar._bar)
        shown[learner.training] = " ".join(re.sub("[━╸╺]", "", text.getvalue()).split())

    bar, recorder = ProgressBar(), Recorder()
    monkeypatch.setattr(progress, "seconds_left", lambda learner: 723)
    monkeypatch.setattr(LoopSettings, "limited", lambda *_: 147)
    make_learner(recorder, bar, on("after_batch", draw, order=90), epochs=10).fit()
    assert shown[True] == "epoch 10/10 train 6/147 loss 0.1235 acc 0.5000 1,234 img/s 12 min 3 s left"
    assert shown[False] == "epoch 10/10 val 4/147 12 min 3 s left"


def test_a_narrow_terminal_shows_the_columns_that_fit() -> None:
    bar, recorder = ProgressBar(), Recorder()
    bar.console = Console(file=(text := StringIO()), width=60, force_terminal=True, no_color=True)
    make_learner(recorder, bar, epochs=1).fit()
    lines = [re.sub(r"\x1b\[[0-9;?]*\w", "", line) for line in text.getvalue().splitlines()]
    (head,) = (line for line in lines if "val acc" in line)
    assert head.split() == ["epoch", "train", "loss", "train", "acc", "val", "loss", "val", "acc", "lr"]
    assert max(len(line.rstrip()) for line in lines if "1/1 " in line and "train" not in line) <= 60


def test_a_resumed_run_prints_its_last_epochs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_MAX_EARLIER", 3)
    recorder = Recorder()
    recorder.rows = [{"epoch": epoch} for epoch in range(9)]
    make_learner(recorder, ProgressBar(), epochs=10).fit(Position(9))
    epochs = [line.split("/")[0].strip() for line in capsys.readouterr().out.splitlines() if "/10 " in line]
    assert epochs == ["7", "8", "9", "10"]


# --- the remaining time, with a clock that stands still unless a batch is made ---


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds on the clock."""
    now = [0.0]
    for module in (progress, recorder):
        monkeypatch.setattr(module, "monotonic", lambda: now[0])
    return now


def learner_of(clock: list[float], left: list[float | None], *others: object) -> Learner:
    """Make a learner of three batches of 3 s in each epoch, and two of validation of 1 s.

    What is left after each batch is added to `left`.
    """

    def pass_time(learner: Learner) -> None:
        clock[0] += 3 if learner.training else 1

    note = on("after_batch", lambda learner: left.append(seconds_left(learner)), Phase.LAST)
    return make_learner(
        *(Recorder(), on("before_batch", pass_time), note, *others),  # type: ignore[arg-type]
        epochs=3,
    )


def test_what_is_left_follows_from_what_was_done(clock: list[float]) -> None:
    left: list[float | None] = []
    learner_of(clock, left).fit()
    assert left[:3] == [None, pytest.approx(7 * 3), pytest.approx(6 * 3)]
    assert left[4] == pytest.approx(6 * (2 * 3 + 2) / 2)  # with the validation, after two batches
    assert left[-1] == 0


def test_a_resumed_run_counts_what_it_has_left(clock: list[float]) -> None:
    left: list[float | None] = []
    first = learner_of(clock, [], on("after_batch", raises(CancelFit(), 6), Phase.LAST))
    first.fit()  # to the second batch of the second epoch
    second = learner_of(clock, left)
    second.fit(second.restore(first.state()))
    assert left[0] is None
    assert left[3] == pytest.approx(2 * (3 + 2))
