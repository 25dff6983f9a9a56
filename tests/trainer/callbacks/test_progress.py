"""The line of each epoch, the bar, and the remaining time of a fit."""

import re
import sys
from io import StringIO
from types import SimpleNamespace

import pytest
from fakes import make_learner, on, raises
from rich.console import Console

from trainer.callbacks import progress, recorder
from trainer.callbacks.progress import ProgressBar, seconds_left
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import CancelFit, Phase
from trainer.loop.learner import Learner
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


def test_a_notebook_shows_one_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[dict[str, str]] = []
    handle = SimpleNamespace(update=lambda bundle, raw: shown.append(bundle))
    module = SimpleNamespace(display=lambda bundle, raw, display_id: shown.append(bundle) or handle)
    monkeypatch.setitem(sys.modules, "IPython.display", module)  # type: ignore[arg-type]
    monkeypatch.setattr(progress, "_REDRAWN", 0.0)
    bar, recorder = ProgressBar(), Recorder()
    bar.console = Console(force_jupyter=True)
    make_learner(recorder, bar).fit()
    assert capsys.readouterr().out == ""
    assert any("epoch 2/2 train 3/3" in bundle["text/plain"] for bundle in shown)
    lines = shown[-1]["text/plain"].splitlines()
    assert [line.split()[0] for line in lines] == ["epoch", "1/2", "2/2", "best"]
    best = max(recorder.rows, key=lambda row: row["val_accuracy"])
    assert lines[-1] == f"best val_accuracy {best['val_accuracy']:.4f} in epoch {int(best['epoch']) + 1}"
    assert shown[-1]["text/html"].count("<tr>") == 4


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
