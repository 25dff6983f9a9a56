"""The recorder: rows by hand, files of rows and of steps, epochs cut short or resumed, losses that are not finite."""

import json
import math
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import Logits, MemoryLoader, frozen, logits_loader, make_learner, needs_gpu, noise_loader, on, raises
from runs import read_metrics, timeless

from augment.pipeline.batch import Batch
from augment.support.errors import UserError
from augment.support.files import json_line
from trainer.callbacks import recorder
from trainer.callbacks.recorder import METRICS_FILE, STEPS_FILE, NonFiniteLossError, Recorder
from trainer.loop.callback import Callback, CancelBatch, CancelEpoch, CancelFit, CancelTrain
from trainer.loop.checkpoint import to_host
from trainer.loop.learner import Learner
from trainer.run.folder.reader import RunFolder

# Outputs of which softmax makes probabilities that can be read off: the logarithms of thirds, quarters and halves.
HALF, QUARTER = math.log(1 / 2), math.log(1 / 4)
TRAIN = [[HALF, QUARTER, QUARTER], [HALF, QUARTER, QUARTER], [QUARTER, QUARTER, HALF]], [0, 1, 0]
VAL = [[QUARTER, HALF, QUARTER], [HALF, QUARTER, QUARTER], [QUARTER, QUARTER, HALF]], [1, 2, 2]
TRAIN_KEYS = ["epoch", "train_loss", "train_accuracy", "lr", "seconds", "images_per_second", "waiting"]
KEYS = [*TRAIN_KEYS, "val_loss", "val_accuracy"]


def known(*callbacks: Callback, **options: object) -> Learner:
    """Batches of 2 and 1, the outputs known and never changing."""
    parts = {"train": logits_loader(*TRAIN), "val": logits_loader(*VAL), "model": Logits(), "optimizer": frozen}
    return make_learner(*callbacks, **(parts | options))


def single_images() -> MemoryLoader:
    """The training images four times over, one in a batch."""
    return logits_loader(TRAIN[0] * 4, TRAIN[1] * 4, batch_size=1)


class Clock:
    """A clock that advances by one second with every batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(recorder, "monotonic", lambda: self.now)

    def tick(self, learner: Learner) -> None:
        self.now += 1.0


def test_a_row_by_hand(tmp_path: Path) -> None:
    learner = known(Recorder(), folder=tmp_path, epochs=1)
    learner.fit()
    (row,) = learner.find(Recorder).rows
    assert list(row) == KEYS
    # The mean over three images; over the batches of two and one it would be 1.75 and 1.25 times log 2.
    expected = {
        "epoch": 0,
        "train_loss": (1 + 2 + 2) / 3 * math.log(2),
        "train_accuracy": 1 / 3,
        "lr": 0.0,
        "val_loss": (1 + 2 + 1) / 3 * math.log(2),
        "val_accuracy": 2 / 3,
    }
    assert timeless(row) == pytest.approx(expected)
    assert row["seconds"] > 0
    assert row["images_per_second"] == pytest.approx(3 / row["seconds"])
    samples = learner.find(Recorder).samples
    assert samples is not None
    assert sorted(zip(samples.target.tolist(), samples.prediction.tolist(), strict=True)) == [(1, 1), (2, 0), (2, 2)]
    assert (samples.index.tolist(), samples.target.tolist()) == ([0, 1, 2], VAL[1])
    assert learner.find(Recorder).val == {key: row[key] for key in ("val_loss", "val_accuracy")}


def test_metrics_jsonl_gets_a_line_after_each_epoch(tmp_path: Path) -> None:
    lines: list[int] = []
    count = on("after_epoch", lambda learner: lines.append(len(read_metrics(tmp_path))))
    for _ in range(2):  # a new run in an old folder starts a new file
        learner = known(Recorder(), count, folder=tmp_path, epochs=3)
        learner.fit()
    assert lines == [1, 2, 3] * 2
    text = (tmp_path / METRICS_FILE).read_text()
    assert text.endswith("\n")
    assert [json.loads(line) for line in text.splitlines()] == learner.find(Recorder).rows
    assert '"epoch": 1,' in text
    set_nan = on("after_validate", lambda learner: learner.find(Recorder).val.update(val_loss=math.nan))
    known(Recorder(), set_nan, folder=tmp_path, epochs=1).fit()
    assert json.loads((tmp_path / METRICS_FILE).read_text())["val_loss"] is None
    assert math.isnan(read_metrics(tmp_path)[0]["val_loss"])


def test_a_last_line_that_is_cut_loses_that_line_only(tmp_path: Path) -> None:
    text = b"".join(json_line({"epoch": epoch, "val_loss": math.nan}).encode() for epoch in range(3))
    file = tmp_path / METRICS_FILE
    for length in range(len(text) + 1):
        for tail in (b"", b"\0" * 9):
            file.write_bytes(text[:length] + tail)
            rows = read_metrics(tmp_path)
            assert [row["epoch"] for row in rows] in (
                list(range(text[:length].count(b"}"))),
                list(range(text[:length].count(b"\n"))),
            )


@pytest.mark.parametrize("line", ["", "3", '{"epoch": 1'])
def test_a_damaged_line_before_others_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / METRICS_FILE).write_text(f'{{"epoch": 0}}\n{line}\n{{"epoch": 2}}\n')
    run = RunFolder(tmp_path)
    if not line:
        assert len(run.rows) == 2
        return
    assert not run.rows
    assert "metrics.jsonl: line 2 is not a row of metrics (" in run.notes["metrics.jsonl"]


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("[" * 10**6, "line 1 is not a row"),
        ("[[1, 2.0]]\n" * 2, "line 1 is not a row"),
        ('{"a":1}\n' * 2_100_000, "values"),
    ],
)
def test_rows_that_no_run_writes_are_noted(text: str, note: str, tmp_path: Path) -> None:
    (tmp_path / METRICS_FILE).write_text(text + '\n{"epoch": 0}\n')
    run = RunFolder(tmp_path)
    assert run.rows == []
    assert note in run.notes[METRICS_FILE]


@pytest.mark.parametrize(
    ("interval", "training", "step", "epoch", "rows"),
    [(0.0, True, 4, 2, 1), (math.inf, True, 2, 1, 0), (0.0, False, 4, 2, 1)],
)
def test_a_loss_that_is_not_finite_ends_the_fit_when_next_read(
    interval: float, training: bool, step: int, epoch: int, rows: int, tmp_path: Path
) -> None:
    learner = known(Recorder(interval=interval), folder=tmp_path, epochs=3)

    def spoil(model: object, images: object, output: torch.Tensor) -> torch.Tensor:
        here = learner.training == training and learner.progress.batches_done == step
        return output * (math.nan if here else 1.0)

    learner.model.register_forward_hook(spoil)
    named = "training" if training else "validation"
    message = (
        rf"^the {named} loss is nan at batch {step} \(epoch {epoch}\)\..* fit\.lr.* callbacks\.grad_clip\.max_norm=1"
    )
    with pytest.raises(NonFiniteLossError, match=message) as caught:
        learner.fit()
    assert isinstance(caught.value, UserError)
    assert learner.error is caught.value
    assert len(read_metrics(tmp_path)) == rows


@needs_gpu
def test_gpu_memory_is_in_the_row() -> None:
    device = torch.device("cuda")
    train, val = noise_loader(device=device), noise_loader(3, device=device)
    learner = make_learner(Recorder(), train=train, val=val, device=device)
    learner.fit()
    assert all(row["gpu_memory_mib"] > 0 for row in learner.find(Recorder).rows)


def test_an_epoch_cut_short_has_a_row_of_what_it_measured(tmp_path: Path) -> None:
    cancel = on("after_step", raises(CancelEpoch, at=3))
    learner = known(Recorder(), cancel, folder=tmp_path, epochs=3)
    learner.fit()
    rows = read_metrics(tmp_path)
    assert [list(row) for row in rows] == [KEYS, ["epoch"], KEYS]
    assert [row["epoch"] for row in rows] == [0, 1, 2]
    assert rows[2]["train_loss"] == rows[0]["train_loss"]
    assert rows[2]["val_loss"] == rows[0]["val_loss"]


@pytest.mark.parametrize(
    ("event", "error", "at", "loss", "accuracy"),
    [
        ("before_batch", CancelBatch, 0, 2.0, 0.0),
        ("before_batch", CancelBatch, 1, 1.5, 1 / 2),
        ("after_batch", CancelTrain, 0, 1.5, 1 / 2),
    ],
)
def test_only_batches_that_were_trained_count(
    event: str, error: type[BaseException], at: int, loss: float, accuracy: float
) -> None:
    learner = known(Recorder(), on(event, raises(error, at)), epochs=1)
    learner.fit()
    (row,) = learner.find(Recorder).rows
    assert (row["train_loss"], row["train_accuracy"]) == (pytest.approx(loss * math.log(2)), accuracy)


# --- running values and times ---


def test_times_of_an_epoch_in_two_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seconds count both parts, but not what is between them; the rate is that of the second part alone."""
    clock = Clock(monkeypatch)
    first = known(Recorder(), on("before_batch", clock.tick))
    saved: list[dict[str, object]] = []
    first.callbacks += (on("after_batch", lambda learner: saved.append(learner.state())),)
    first.fit()
    clock.now += 1000.0
    second = known(Recorder(), on("before_batch", clock.tick), epochs=1)
    second.fit(second.restore(saved[0]))
    (row,) = second.find(Recorder).rows
    assert (row["seconds"], row["images_per_second"]) == (2.0, 1.0)
    assert [(row["seconds"], row["images_per_second"]) for row in first.find(Recorder).rows] == [(2.0, 1.5)] * 2


def test_values_are_read_at_the_first_batch_and_then_at_the_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, seen = Clock(monkeypatch), dict[int, float]()

    def note(learner: Learner) -> None:
        if learner.training and (latest := learner.find(Recorder).latest)["loss"] not in seen.values():
            seen[learner.progress.batches_done - 1] = latest["loss"]

    callbacks = Recorder(interval=3.0), on("before_batch", clock.tick), on("after_batch", note)
    known(*callbacks, train=single_images(), folder=tmp_path, epochs=1).fit()
    # The running value is over all images so far, that of a row over those since the last one.
    assert seen == pytest.approx({0: math.log(2), 3: 1.5 * math.log(2), 6: 11 / 7 * math.log(2), 9: 1.6 * math.log(2)})
    values = [json.loads(line) for line in (tmp_path / STEPS_FILE).read_text().splitlines()]
    assert [(row["seconds"], row["step"]) for row in values] == [(step, step) for step in (1, 4, 7, 10, 12)]
    assert [row["images_per_second"] for row in values] == [1.0] * 5
    thirds = (2 + 2 + 1) / 3
    assert [row["loss"] / math.log(2) for row in values] == pytest.approx([1, thirds, thirds, thirds, 2])


def test_the_rows_of_a_resumed_epoch_equal_those_of_a_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time in between does not count, nor do losses of the first part in rows of the second."""
    clock = Clock(monkeypatch)

    def learner(*callbacks: Callback) -> Learner:
        ticking = Recorder(interval=1.0), on("before_batch", clock.tick)
        return known(*ticking, *callbacks, train=single_images(), epochs=1)

    first = learner(on("after_batch", raises(CancelFit, 4)))
    first.fit()
    clock.now += 1000.0
    second = learner()
    second.fit(second.restore(first.state()))
    values = second.find(Recorder).steps
    assert [(row.seconds, row.step) for row in values] == [(step, step) for step in range(1, 13)]
    assert [row.loss / math.log(2) for row in values] == pytest.approx([1, 2, 2] * 4)


def test_the_scores_of_an_epoch_resumed_on_other_ranks_cover_its_rest() -> None:
    def learner(*callbacks: Callback) -> Learner:
        return known(Recorder(), *callbacks, train=single_images(), epochs=1)

    first = learner(on("after_batch", raises(CancelFit, 4)))
    first.fit()
    losses = {}
    for ranks in (1, 2):
        resumed = learner()
        position = resumed.restore(deepcopy(first.state()))
        resumed.find(Recorder).saved_ranks = ranks
        resumed.fit(position)
        losses[ranks] = resumed.find(Recorder).rows[-1]["train_loss"] / math.log(2)
    assert losses == {1: pytest.approx(20 / 12), 2: pytest.approx(12 / 7)}  # see the losses above


def test_rows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.callbacks.recorder.MAX_STEPS", 6)
    learner = known(Recorder(interval=0.0), epochs=6)
    learner.fit()
    steps = [step.step for step in learner.find(Recorder).steps]
    assert 3 <= len(steps) <= 6
    assert (steps, steps[0]) == (sorted(steps), 1)


@pytest.mark.parametrize(
    "state",
    [
        *({"rows": [{"loss": {1}}]}, {"steps": [(0.5, 1, 2.0, 3.0, "rates")]}),
        *({"rows": [{"loss": "a"}]}, {"seconds": "a"}, {"seconds": None}, {"since": "a"}, {"since": None}),
    ],
)
def test_rows_that_cannot_be_written_are_rejected_before_the_fit(state: dict[str, Any]) -> None:
    saved = Recorder().state_dict()
    with pytest.raises((TypeError, ValueError)):
        Recorder().load_state_dict(saved | state)


def test_steps_without_rates_can_be_saved_again() -> None:
    recorder = Recorder()
    recorder.load_state_dict(recorder.state_dict() | {"steps": [(0.5, 1, 2.0, 3.0)]})
    assert to_host(recorder.state_dict())["steps"] == [(0.5, 1, 2.0, 3.0, {})]


def test_the_share_of_time_spent_waiting_for_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch takes a second to come and three to be trained on; validation counts for neither."""
    clock = Clock(monkeypatch)
    monkeypatch.setattr("trainer.loop.learner.monotonic", lambda: clock.now)

    class Slow(MemoryLoader):
        def __iter__(self) -> Iterator[Batch]:
            for batch in super().__iter__():
                clock.now += 1.0
                yield batch

    train = Slow(torch.tensor(TRAIN[0])[:, :, None, None], torch.tensor(TRAIN[1]), 1, shuffle=False)
    learner = known(Recorder(), *[on("before_batch", clock.tick) for _ in range(3)], train=train)
    learner.fit()
    assert [row["waiting"] for row in learner.find(Recorder).rows] == [0.25, 0.25]
