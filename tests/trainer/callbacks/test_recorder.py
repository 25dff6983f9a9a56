"""The recorder: rows by hand, the file with the rows, and the error for a loss that is not finite."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from fakes import (
    Logits,
    MemoryLoader,
    frozen,
    logits_loader,
    make_learner,
    needs_gpu,
    noise_loader,
    on,
    raises,
)

import trainer.loop.learner
from augment.pipeline.batch import Batch
from augment.support.errors import UserError
from augment.support.files import json_line
from trainer.callbacks import recorder
from trainer.callbacks.checkpoint import Checkpoint
from trainer.callbacks.recorder import METRICS_FILE, STEPS_FILE, TIMES, NonFiniteLossError, Recorder, read_metrics
from trainer.loop.callback import Callback, CancelBatch, CancelEpoch, CancelFit, CancelTrain, CancelValidate
from trainer.loop.learner import Learner
from trainer.tasks.classify import ClassSamples

# Outputs of which softmax makes probabilities that can be read off: the logarithms of thirds, quarters and halves.
HALF, QUARTER, TINY = math.log(1 / 2), math.log(1 / 4), math.log(1e-30)
TRAIN = [[HALF, QUARTER, QUARTER], [HALF, QUARTER, QUARTER], [QUARTER, QUARTER, HALF]], [0, 1, 0]
VAL = [[QUARTER, HALF, QUARTER], [HALF, QUARTER, QUARTER], [QUARTER, QUARTER, HALF]], [1, 2, 2]
TRAIN_KEYS = ["epoch", "train_loss", "train_accuracy", "lr", "seconds", "images_per_second", "waiting"]
KEYS = [*TRAIN_KEYS, "val_loss", "val_accuracy"]


def known(*callbacks: Callback, **options: object) -> Learner:
    """Batches of 2 and 1, the outputs known and never changing."""
    train, val = logits_loader(*TRAIN), logits_loader(*VAL)
    return make_learner(*callbacks, train=train, val=val, model=Logits(), optimizer=frozen, **options)


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
    assert {key: value for key, value in row.items() if key not in TIMES} == pytest.approx(expected)
    assert row["seconds"] > 0
    assert row["images_per_second"] == pytest.approx(3 / row["seconds"])
    samples = learner.find(Recorder).samples
    assert isinstance(samples, ClassSamples)
    assert samples.confusion(3).tolist() == [[0, 0, 0], [0, 1, 0], [1, 0, 1]]
    assert learner.find(Recorder).val == {key: row[key] for key in ("val_loss", "val_accuracy")}


def test_the_training_loss_is_measured_before_each_step() -> None:
    losses: list[tuple[int, float]] = []
    note = on(
        "after_batch",
        lambda learner: losses.append((len(learner.batch), learner.loss.item())) if learner.training else None,
    )
    learner = make_learner(Recorder(), note)
    learner.fit()
    assert [size for size, _ in losses] == [2, 2, 1] * 2
    for epoch, row in enumerate(learner.find(Recorder).rows):
        expected = sum(size * loss for size, loss in losses[3 * epoch : 3 * epoch + 3]) / 5
        assert row["train_loss"] == pytest.approx(expected)


def test_metrics_jsonl_gets_a_line_after_each_epoch(tmp_path: Path) -> None:
    lines: list[int] = []
    count = on("after_epoch", lambda learner: lines.append(len(read_metrics(tmp_path))))
    learner = known(Recorder(), count, folder=tmp_path, epochs=3)
    learner.fit()
    assert lines == [1, 2, 3]
    text = (tmp_path / METRICS_FILE).read_text()
    assert text.endswith("\n")
    assert [json.loads(line) for line in text.splitlines()] == learner.find(Recorder).rows
    assert [row["epoch"] for row in read_metrics(tmp_path)] == [0, 1, 2]
    assert '"epoch": 1,' in text


def test_without_a_folder_rows_are_still_kept() -> None:
    learner = known(Recorder())
    learner.fit()
    assert [row["epoch"] for row in learner.find(Recorder).rows] == [0, 1]


def test_a_new_run_in_an_old_folder_starts_a_new_file(tmp_path: Path) -> None:
    for _ in range(2):
        known(Recorder(), folder=tmp_path).fit()
    assert len(read_metrics(tmp_path)) == 2


def test_nan_is_null_in_the_file_and_nan_again_when_read(tmp_path: Path) -> None:
    set_nan = on("after_validate", lambda learner: learner.find(Recorder).val.update(val_loss=math.nan))
    known(Recorder(), set_nan, folder=tmp_path, epochs=1).fit()
    text = (tmp_path / METRICS_FILE).read_text()
    assert "NaN" not in text
    assert json.loads(text)["val_loss"] is None
    (row,) = read_metrics(tmp_path)
    assert math.isnan(row["val_loss"])


def test_a_last_line_that_is_cut_loses_that_line_only(tmp_path: Path) -> None:
    text = b"".join(json_line({"epoch": epoch, "val_loss": math.nan}).encode() for epoch in range(3))
    file = tmp_path / METRICS_FILE
    for length in range(len(text) + 1):
        for tail in (b"", b"\0" * 9, b"\xff\xfe"):
            file.write_bytes(text[:length] + tail)
            rows = read_metrics(tmp_path)
            assert [row["epoch"] for row in rows] in (
                list(range(text[:length].count(b"}"))),
                list(range(text[:length].count(b"\n"))),
            )


@pytest.mark.parametrize("line", ["", "{", "3", "[1]", "null", '{"epoch": 1'])
def test_a_damaged_line_before_others_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / METRICS_FILE).write_text(f'{{"epoch": 0}}\n{line}\n{{"epoch": 2}}\n')
    if not line:
        assert len(read_metrics(tmp_path)) == 2
        return
    with pytest.raises(UserError, match=r"metrics\.jsonl: line 2 is no row of metrics \("):
        read_metrics(tmp_path)


@pytest.mark.parametrize("there", [True, False])
def test_read_metrics_refuses_a_folder_without_a_run(there: bool, tmp_path: Path) -> None:
    folder = tmp_path if there else tmp_path / "missing"
    with pytest.raises(UserError) as caught:
        read_metrics(folder)
    assert str(caught.value) == f"{folder}: no metrics.jsonl in it. Allowed: the folder of a run."


# --- running values ---


class Clock:
    """A clock that advances by one second with every batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(recorder, "monotonic", lambda: self.now)

    def tick(self, learner: Learner) -> None:
        self.now += 1.0


def test_values_are_read_at_the_first_batch_and_then_at_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    values: list[tuple[int, dict[str, float]]] = []

    def note(learner: Learner) -> None:
        latest = learner.find(Recorder).latest
        if learner.training and (not values or latest is not values[-1][1]):
            values.append((learner.step, latest))

    train = logits_loader(TRAIN[0] * 4, TRAIN[1] * 4, batch_size=1)
    learner = make_learner(
        Recorder(interval=3.0),
        on("before_batch", clock.tick),
        on("after_batch", note),
        train=train,
        val=logits_loader(*VAL),
        model=Logits(),
        optimizer=frozen,
        epochs=1,
    )
    learner.fit()
    assert [step for step, _ in values] == [0, 3, 6, 9]
    assert [latest["images_per_second"] for _, latest in values] == [1.0] * 4
    # Over all images so far, not those since the last row.
    assert values[1][1]["loss"] == pytest.approx((1 + 2 + 2 + 1) / 4 * math.log(2))
    assert values[1][1]["accuracy"] == pytest.approx(2 / 4)


def test_times_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two training batches of an epoch last a second each, and validation counts for neither value."""
    clock = Clock(monkeypatch)
    learner = known(Recorder(), on("before_batch", clock.tick))
    learner.fit()
    assert [row["seconds"] for row in learner.find(Recorder).rows] == [2.0, 2.0]
    assert [row["images_per_second"] for row in learner.find(Recorder).rows] == [1.5, 1.5]


def test_times_of_a_resumed_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seconds count both parts, the rate only the second one."""
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


def test_times_of_an_epoch_that_was_interrupted_in_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left to train: the rate is that of the first part, without the time of validation."""
    clock = Clock(monkeypatch)
    first = known(Recorder(), on("before_batch", clock.tick))
    saved: list[dict[str, object]] = []
    first.callbacks += (on("after_validate", lambda learner: saved.append(learner.state())),)
    first.fit()
    second = known(Recorder(), on("before_batch", clock.tick), epochs=1)
    second.fit(second.restore(saved[0]))
    (row,) = second.find(Recorder).rows
    assert (row["seconds"], row["images_per_second"]) == (2.0, 1.5)


# --- a loss that is no number ---


def broken(value: float, when: Callable[[Learner], bool], learner: Learner) -> Learner:
    """Multiply the outputs by a value at certain steps."""
    learner.model.register_forward_hook(lambda model, images, output: output * (value if when(learner) else 1.0))
    return learner


def test_a_training_loss_that_is_not_finite_ends_the_fit_when_next_read(tmp_path: Path) -> None:
    learner = known(Recorder(interval=0.0), folder=tmp_path, epochs=3)
    broken(math.nan, lambda learner: learner.training and learner.step == 3, learner)
    with pytest.raises(NonFiniteLossError) as caught:
        learner.fit()
    assert str(caught.value) == (
        "the training loss is nan at step 4 of 6 (epoch 2). "
        "A smaller fit.lr or callbacks.grad_clip.max_norm=1 may help; "
        "fit.skip_nonfinite=10 skips such batches, up to 10, and saves them for a look."
    )
    assert isinstance(caught.value, UserError)
    assert learner.error is caught.value
    assert len(read_metrics(tmp_path)) == 1


def test_it_ends_the_fit_after_the_pass_at_the_latest() -> None:
    learner = known(Recorder(interval=math.inf))
    broken(math.inf, lambda learner: learner.training and learner.step == 1, learner)
    with pytest.raises(NonFiniteLossError, match=r"at step 2 of 4 \(epoch 1\)"):
        learner.fit()


def test_a_validation_loss_that_is_not_finite_is_only_recorded() -> None:
    learner = broken(math.nan, lambda learner: not learner.training, known(Recorder()))
    learner.fit()
    assert all(math.isnan(row["val_loss"]) for row in learner.find(Recorder).rows)


# --- what a report shows ---


def test_each_row_has_the_loss_since_the_previous_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses of single images, read at the first one and then at every third."""
    clock = Clock(monkeypatch)
    train = logits_loader(TRAIN[0] * 4, TRAIN[1] * 4, batch_size=1)
    parts = {"train": train, "val": logits_loader(*VAL), "model": Logits(), "optimizer": frozen, "folder": tmp_path}
    learner = make_learner(Recorder(interval=3.0), on("before_batch", clock.tick), epochs=1, **parts)
    learner.fit()
    values = [json.loads(line) for line in (tmp_path / STEPS_FILE).read_text().splitlines()]
    assert [row["seconds"] for row in values] == [1.0, 4.0, 7.0, 10.0, 12.0]
    assert [row["step"] for row in values] == [1, 4, 7, 10, 12]
    assert [row["images_per_second"] for row in values] == [1.0] * 5
    thirds = (2 + 2 + 1) / 3
    assert [row["loss"] / math.log(2) for row in values] == pytest.approx([1, thirds, thirds, thirds, 2])


def test_the_rows_of_a_resumed_epoch_equal_those_of_a_whole_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time in between does not count, nor do losses of the first part in rows of the second."""
    clock = Clock(monkeypatch)

    def learner(*callbacks: Callback) -> Learner:
        train = logits_loader(TRAIN[0] * 4, TRAIN[1] * 4, batch_size=1)
        parts = {"train": train, "val": logits_loader(*VAL), "model": Logits(), "optimizer": frozen}
        return make_learner(Recorder(interval=1.0), on("before_batch", clock.tick), *callbacks, epochs=1, **parts)

    first = learner(on("after_batch", raises(CancelFit, 4)))
    first.fit()
    clock.now += 1000.0
    second = learner()
    second.fit(second.restore(first.state()))
    values = second.find(Recorder).steps
    assert [(row.seconds, row.step) for row in values] == [(step, step) for step in range(1, 13)]
    assert [row.loss / math.log(2) for row in values] == pytest.approx([1, 2, 2] * 4)


def test_rows_continue_after_an_interruption_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MAX_STEPS", 6)
    clock = Clock(monkeypatch)
    first = known(Recorder(interval=0.0), on("before_batch", clock.tick), on("after_batch", raises(CancelFit, 5)))
    first.fit()
    clock.now += 1000.0
    second = known(Recorder(interval=0.0), on("before_batch", clock.tick), epochs=6)
    second.fit(second.restore(first.state()))
    values = second.find(Recorder).steps
    assert 3 <= len(values) <= 6
    seconds, steps = [step.seconds for step in values], [step.step for step in values]
    assert seconds == sorted(seconds)
    assert steps == sorted(steps)
    assert steps[0] == 1
    assert seconds[-1] < 100


def test_the_share_of_time_spent_waiting_for_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch takes a second to come and three to be trained on; validation counts for neither."""
    clock = Clock(monkeypatch)
    monkeypatch.setattr(trainer.loop.learner, "monotonic", lambda: clock.now)

    class Slow(MemoryLoader):
        def __iter__(self) -> Iterator[Batch]:
            for batch in super().__iter__():
                clock.now += 1.0
                yield batch

    images = torch.tensor(TRAIN[0])[:, :, None, None]
    train = Slow(images, torch.tensor(TRAIN[1]), 1, shuffle=False)

    def work(learner: Learner) -> None:
        clock.now += 3.0

    parts = {"val": logits_loader(*VAL), "model": Logits(), "optimizer": frozen}
    learner = make_learner(Recorder(), on("before_batch", work), train=train, **parts)
    learner.fit()
    assert [row["waiting"] for row in learner.find(Recorder).rows] == [0.25, 0.25]


def test_the_predictions_for_each_validation_image() -> None:
    learner = known(Recorder(), epochs=1)
    learner.fit()
    samples = learner.find(Recorder).samples
    assert samples is not None
    assert samples.index.tolist() == [0, 1, 2]
    assert samples.target.tolist() == VAL[1]
    assert samples.prediction.tolist() == [1, 0, 2]
    assert samples.confidence.tolist() == pytest.approx([0.5, 0.5, 0.5])
    assert samples.target_confidence.tolist() == pytest.approx([0.5, 0.25, 0.5])


@needs_gpu
def test_gpu_memory_is_in_the_row() -> None:
    device = torch.device("cuda")
    train, val = noise_loader(device=device), noise_loader(3, device=device)
    learner = make_learner(Recorder(), train=train, val=val, device=device)
    learner.fit()
    assert all(row["gpu_memory_mib"] > 0 for row in learner.find(Recorder).rows)


# --- epochs that are cut short ---


def test_an_epoch_cut_short_has_a_row_of_what_it_measured(tmp_path: Path) -> None:
    cancel = on("after_step", raises(CancelEpoch, at=3))
    learner = known(Recorder(), cancel, folder=tmp_path, epochs=3)
    learner.fit()
    rows = read_metrics(tmp_path)
    assert [list(row) for row in rows] == [KEYS, ["epoch"], KEYS]
    assert [row["epoch"] for row in rows] == [0, 1, 2]
    assert rows[2]["train_loss"] == rows[0]["train_loss"]
    assert rows[2]["val_loss"] == rows[0]["val_loss"]


def test_an_epoch_without_validation_has_no_validation_in_its_row() -> None:
    learner = known(Recorder(), on("before_validate", raises(CancelEpoch, at=1)))
    learner.fit()
    assert [list(row) for row in learner.find(Recorder).rows] == [KEYS, TRAIN_KEYS]


def test_an_epoch_without_validation_can_be_the_best(tmp_path: Path) -> None:
    """The best model may be one that was never validated, if a training metric is monitored."""
    cancel = on("before_validate", raises(CancelEpoch))
    known(Recorder(), Checkpoint(monitor="train_loss"), cancel, folder=tmp_path, epochs=1).fit()
    assert (tmp_path / "best.pt").is_file()


def test_a_training_pass_cut_short_counts_what_it_saw() -> None:
    learner = known(Recorder(), on("after_batch", raises(CancelTrain)), epochs=1)
    learner.fit()
    (row,) = learner.find(Recorder).rows
    assert list(row) == KEYS
    assert row["train_loss"] == pytest.approx(1.5 * math.log(2))


def test_passes_cut_short_before_their_first_batch_are_nan() -> None:
    cancels = [on("before_train", raises(CancelTrain)), on("before_validate", raises(CancelValidate))]
    learner = known(Recorder(), *cancels, epochs=1)
    learner.fit()
    (row,) = learner.find(Recorder).rows
    measured = [key for key in KEYS if key.endswith(("loss", "accuracy"))]
    assert {key: math.isnan(row[key]) for key in measured} == dict.fromkeys(measured, True)


@pytest.mark.parametrize("at", [0, 1])
def test_a_skipped_batch_is_not_measured(at: int) -> None:
    learner = known(Recorder(), on("before_batch", raises(CancelBatch, at)), epochs=1)
    learner.fit()
    (row,) = learner.find(Recorder).rows
    kept = [(1 + 2) / 2, 2.0][1 - at]
    assert row["train_loss"] == pytest.approx(kept * math.log(2))
    assert row["train_accuracy"] == [1 / 2, 0.0][1 - at]
