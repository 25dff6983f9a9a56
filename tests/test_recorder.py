"""The recorder: rows worked out by hand, the file they are written to, and what it says of a loss that is no number."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from fakes import (
    CLASSES,
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
from torch import nn

import trainer.learner
from augment.errors import UserError
from augment.loader import Batch
from trainer import recorder
from trainer.callback import Callback, CancelBatch, CancelEpoch, CancelFit, CancelTrain, CancelValidate
from trainer.callbacks import Checkpoint
from trainer.learner import Learner
from trainer.recorder import LOOKS_FILE, METRICS_FILE, TIMES, NonFiniteLossError, Recorder, read_metrics

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
    # The mean over three pictures; over the batches of two and one it would be 1.75 and 1.25 times log 2.
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
    confusion = learner.find(Recorder).confusion
    assert confusion is not None
    assert confusion.tolist() == [[0, 0, 0], [0, 1, 0], [1, 0, 1]]
    assert learner.find(Recorder).val == {key: row[key] for key in ("val_loss", "val_accuracy")}


def test_the_training_loss_is_that_of_the_batches_as_they_were_trained() -> None:
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


def test_metrics_jsonl_has_a_line_an_epoch_as_it_ends(tmp_path: Path) -> None:
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


def test_without_a_folder_rows_are_kept_all_the_same() -> None:
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


@pytest.mark.parametrize("there", [True, False])
def test_read_metrics_of_a_folder_that_is_no_run(there: bool, tmp_path: Path) -> None:
    folder = tmp_path if there else tmp_path / "missing"
    with pytest.raises(UserError) as caught:
        read_metrics(folder)
    assert str(caught.value) == f"{folder}: no metrics.jsonl in it. Allowed: the folder of a run."


# --- looks at the running values ---


class Clock:
    """Time that moves on by one second with every batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(recorder, "monotonic", lambda: self.now)

    def tick(self, learner: Learner) -> None:
        self.now += 1.0


def test_looks_happen_at_the_first_batch_and_then_at_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    looks: list[tuple[int, dict[str, float]]] = []

    def note(learner: Learner) -> None:
        latest = learner.find(Recorder).latest
        if learner.training and (not looks or latest is not looks[-1][1]):
            looks.append((learner.step, latest))

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
    assert [step for step, _ in looks] == [0, 3, 6, 9]
    assert [latest["images_per_second"] for _, latest in looks] == [1.0] * 4
    # Over all pictures so far, not those since the last look.
    assert looks[1][1]["loss"] == pytest.approx((1 + 2 + 2 + 1) / 4 * math.log(2))
    assert looks[1][1]["accuracy"] == pytest.approx(2 / 4)


def test_times_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two training batches of an epoch last a second each, and validation counts for neither value."""
    clock = Clock(monkeypatch)
    learner = known(Recorder(), on("before_batch", clock.tick))
    learner.fit()
    assert [row["seconds"] for row in learner.find(Recorder).rows] == [2.0, 2.0]
    assert [row["images_per_second"] for row in learner.find(Recorder).rows] == [1.5, 1.5]


def test_times_of_a_resumed_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seconds are those of both parts, the rate that of the second one."""
    clock = Clock(monkeypatch)
    first = known(Recorder(), on("before_batch", clock.tick))
    saved: list[dict[str, object]] = []
    first.callbacks += (on("after_batch", lambda learner: saved.append(learner.state_dict())),)
    first.fit()
    clock.now += 1000.0
    second = known(Recorder(), on("before_batch", clock.tick), epochs=1)
    second.fit(second.load_state_dict(saved[0]))
    (row,) = second.find(Recorder).rows
    assert (row["seconds"], row["images_per_second"]) == (2.0, 1.0)


def test_times_of_an_epoch_that_was_interrupted_in_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is trained any more: the rate is that of the first part, and what validation took is not in it."""
    clock = Clock(monkeypatch)
    first = known(Recorder(), on("before_batch", clock.tick))
    saved: list[dict[str, object]] = []
    first.callbacks += (on("after_validate", lambda learner: saved.append(learner.state_dict())),)
    first.fit()
    second = known(Recorder(), on("before_batch", clock.tick), epochs=1)
    second.fit(second.load_state_dict(saved[0]))
    (row,) = second.find(Recorder).rows
    assert (row["seconds"], row["images_per_second"]) == (2.0, 1.5)


# --- a loss that is no number ---


def broken(value: float, when: Callable[[Learner], bool], learner: Learner) -> Learner:
    """Multiply the outputs by a value at certain steps."""
    learner.model.register_forward_hook(lambda model, images, output: output * (value if when(learner) else 1.0))
    return learner


def test_a_training_loss_that_is_no_number_ends_the_fit_at_the_next_look(tmp_path: Path) -> None:
    learner = known(Recorder(interval=0.0), folder=tmp_path, epochs=3)
    broken(math.nan, lambda learner: learner.training and learner.step == 3, learner)
    with pytest.raises(NonFiniteLossError) as caught:
        learner.fit()
    assert str(caught.value) == (
        "the training loss is nan at step 4 of 6 (epoch 2). "
        "A smaller fit.lr or callbacks.grad_clip.max_norm=1 may help."
    )
    assert isinstance(caught.value, UserError)
    assert learner.error is caught.value
    assert len(read_metrics(tmp_path)) == 1


def test_it_is_found_at_the_end_of_the_pass_at_the_latest() -> None:
    learner = known(Recorder(interval=math.inf))
    broken(math.inf, lambda learner: learner.training and learner.step == 1, learner)
    with pytest.raises(NonFiniteLossError, match=r"at step 2 of 4 \(epoch 1\)"):
        learner.fit()


def test_a_validation_loss_that_is_no_number_is_only_written_down() -> None:
    learner = broken(math.nan, lambda learner: not learner.training, known(Recorder()))
    learner.fit()
    assert all(math.isnan(row["val_loss"]) for row in learner.find(Recorder).rows)


# --- what a report shows ---


def test_each_look_is_kept_with_the_loss_since_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses of single pictures, looked at at the first and then every third."""
    clock = Clock(monkeypatch)
    train = logits_loader(TRAIN[0] * 4, TRAIN[1] * 4, batch_size=1)
    parts = {"train": train, "val": logits_loader(*VAL), "model": Logits(), "optimizer": frozen, "folder": tmp_path}
    learner = make_learner(Recorder(interval=3.0), on("before_batch", clock.tick), epochs=1, **parts)
    learner.fit()
    looks = [json.loads(line) for line in (tmp_path / LOOKS_FILE).read_text().splitlines()]
    assert [look["seconds"] for look in looks] == [1.0, 4.0, 7.0, 10.0, 12.0]
    assert [look["step"] for look in looks] == [1, 4, 7, 10, 12]
    assert [look["images_per_second"] for look in looks] == [1.0] * 5
    thirds = (2 + 2 + 1) / 3
    assert [look["loss"] / math.log(2) for look in looks] == pytest.approx([1, thirds, thirds, thirds, 2])


def test_the_looks_of_a_resumed_epoch_equal_those_of_a_whole_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time in between does not count, nor do losses of the first part for the looks of the second."""
    clock = Clock(monkeypatch)

    def learner(*callbacks: Callback) -> Learner:
        train = logits_loader(TRAIN[0] * 4, TRAIN[1] * 4, batch_size=1)
        parts = {"train": train, "val": logits_loader(*VAL), "model": Logits(), "optimizer": frozen}
        return make_learner(Recorder(interval=1.0), on("before_batch", clock.tick), *callbacks, epochs=1, **parts)

    first = learner(on("after_batch", raises(CancelFit, 4)))
    first.fit()
    clock.now += 1000.0
    second = learner()
    second.fit(second.load_state_dict(first.state_dict()))
    looks = second.find(Recorder).looks
    assert [(look.seconds, look.step) for look in looks] == [(step, step) for step in range(1, 13)]
    assert [look.loss / math.log(2) for look in looks] == pytest.approx([1, 2, 2] * 4)


def test_looks_go_on_after_an_interruption_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MAX_LOOKS", 6)
    clock = Clock(monkeypatch)
    first = known(Recorder(interval=0.0), on("before_batch", clock.tick), on("after_batch", raises(CancelFit, 5)))
    first.fit()
    clock.now += 1000.0
    second = known(Recorder(interval=0.0), on("before_batch", clock.tick), epochs=6)
    second.fit(second.load_state_dict(first.state_dict()))
    looks = second.find(Recorder).looks
    assert 3 <= len(looks) <= 6
    seconds, steps = [look.seconds for look in looks], [look.step for look in looks]
    assert seconds == sorted(seconds)
    assert steps == sorted(steps)
    assert steps[0] == 1
    assert seconds[-1] < 100


def test_the_share_of_the_time_that_batches_were_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch takes a second to come and three to be trained on; validation counts for neither."""
    clock = Clock(monkeypatch)
    monkeypatch.setattr(trainer.learner, "monotonic", lambda: clock.now)

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


def test_what_was_said_of_each_picture_of_the_validation_data() -> None:
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


def test_an_epoch_left_in_the_middle_has_a_row_of_what_it_came_to(tmp_path: Path) -> None:
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


def test_an_epoch_without_validation_has_no_confusion_either(tmp_path: Path) -> None:
    """The best model may be one that was never validated, if it is chosen by what training says."""
    cancel = on("before_validate", raises(CancelEpoch))
    known(Recorder(), Checkpoint(monitor="train_loss"), cancel, folder=tmp_path, epochs=1).fit()
    assert (tmp_path / "best.pt").is_file()


def test_a_training_pass_left_early_counts_what_it_saw() -> None:
    learner = known(Recorder(), on("after_batch", raises(CancelTrain)), epochs=1)
    learner.fit()
    (row,) = learner.find(Recorder).rows
    assert list(row) == KEYS
    assert row["train_loss"] == pytest.approx(1.5 * math.log(2))


def test_passes_left_before_their_first_batch_are_not_numbers() -> None:
    cancels = [on("before_train", raises(CancelTrain)), on("before_validate", raises(CancelValidate))]
    learner = known(Recorder(), *cancels, epochs=1)
    learner.fit()
    (row,) = learner.find(Recorder).rows
    measured = [key for key in KEYS if key.endswith(("loss", "accuracy"))]
    assert {key: math.isnan(row[key]) for key in measured} == dict.fromkeys(measured, True)


@pytest.mark.parametrize("at", [0, 1])
def test_a_batch_that_was_left_out_is_not_measured(at: int) -> None:
    learner = known(Recorder(), on("before_batch", raises(CancelBatch, at)), epochs=1)
    learner.fit()
    (row,) = learner.find(Recorder).rows
    kept = [(1 + 2) / 2, 2.0][1 - at]
    assert row["train_loss"] == pytest.approx(kept * math.log(2))
    assert row["train_accuracy"] == [1 / 2, 0.0][1 - at]


def test_the_classes_give_the_size_of_the_confusion_matrix() -> None:
    learner = known(Recorder(), classes=(*CLASSES, "dog"), epochs=1)
    learner.model.register_forward_hook(lambda model, images, output: nn.functional.pad(output, (0, 1), value=-99.0))
    learner.fit()
    confusion = learner.find(Recorder).confusion
    assert confusion is not None
    assert confusion.shape == (4, 4)
