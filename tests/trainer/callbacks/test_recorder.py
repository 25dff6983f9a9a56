"""The recorder: rows by hand, the file with the rows, epochs cut short, and a loss that is not finite."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fakes import make_learner, needs_gpu, noise_loader, on, raises
from recorded import KEYS, TRAIN_KEYS, VAL, known
from runs import read_metrics, timeless

from augment.support.errors import UserError
from augment.support.files import json_line
from trainer.callbacks.checkpoint import Checkpoint
from trainer.callbacks.recorder import METRICS_FILE, NonFiniteLossError, Recorder
from trainer.loop.callback import CancelBatch, CancelEpoch, CancelTrain, CancelValidate
from trainer.loop.learner import Learner
from trainer.tasks.classify import ClassSamples


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
    with pytest.raises(UserError, match=r"metrics\.jsonl: line 2 is not a row of metrics \("):
        read_metrics(tmp_path)


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


def test_a_validation_loss_that_is_not_finite_ends_the_fit(tmp_path: Path) -> None:
    learner = known(Recorder(), folder=tmp_path, epochs=3, skip_nonfinite=1)
    broken(math.nan, lambda learner: not learner.training and learner.epoch == 1, learner)
    with pytest.raises(NonFiniteLossError, match=r"^the validation loss is nan at step 4 of 6 \(epoch 2\)\. "):
        learner.fit()
    assert len(read_metrics(tmp_path)) == 1


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
