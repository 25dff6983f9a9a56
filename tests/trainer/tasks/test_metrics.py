"""Metrics of classes: against values worked out by hand, and against torchmetrics on all samples at once."""

import math
from io import BytesIO
from typing import Any

import pytest
import torch
from fakes import CPU, Logits, assert_same, frozen, logits_loader, make_learner
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_confusion_matrix

from trainer.callbacks.progress import ProgressBar
from trainer.callbacks.recorder import Recorder
from trainer.tasks.classify import ClassMeter
from trainer.tasks.registry import task_named


def batches(sizes: list[int], classes: int = 4) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(n, classes, generator=generator), torch.randint(classes, (n,), generator=generator)) for n in sizes
    ]


def fill(meter: ClassMeter, given: list[tuple[Tensor, Tensor]]) -> ClassMeter:
    for outputs, targets in given:
        meter.update(nn.functional.cross_entropy(outputs, targets), outputs, targets)
    return meter


def one_hot(*predictions: int) -> Tensor:
    return nn.functional.one_hot(torch.tensor(predictions), 3).float()


@pytest.mark.parametrize("inference", [False, True])
def test_the_loss_is_the_mean_over_samples_not_over_batches(inference: bool) -> None:
    with torch.inference_mode(inference):
        meter = ClassMeter(3, CPU)
        meter.update(torch.tensor(1.0), one_hot(0, 1, 2), torch.tensor([0, 1, 2]))
        meter.update(torch.tensor(5.0), one_hot(0), torch.tensor([1]))
    assert meter.samples == 4
    assert meter.compute() == {"loss": (3 * 1.0 + 1 * 5.0) / 4, "accuracy": 3 / 4}


@pytest.mark.parametrize("sizes", [[1], [8], [3, 3, 1], [1, 7, 2]])
@pytest.mark.parametrize("classes", [4, 5, 6, 9])
def test_against_all_samples_at_once(sizes: list[int], classes: int) -> None:
    given = batches(sizes, classes)
    outputs, targets = (torch.cat(parts) for parts in zip(*given, strict=True))
    meter = fill(ClassMeter(classes, CPU, keep=True), given)
    expected = {
        "loss": nn.functional.cross_entropy(outputs, targets).item(),
        "accuracy": multiclass_accuracy(outputs, targets, classes, average="micro").item(),
    }
    if classes > 5:
        expected["top5"] = multiclass_accuracy(outputs, targets, classes, average="micro", top_k=5).item()
    assert meter.compute() == pytest.approx(expected)
    assert meter.kept().confusion(classes).tolist() == multiclass_confusion_matrix(outputs, targets, classes).tolist()


def test_top5_is_a_score_of_validation_where_there_are_more_than_five_classes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    classes = tuple("abcdef")
    ranked = [[0.0, 1, 2, 3, 4, 5]] * 4  # the first class is the last guess
    loader = logits_loader(ranked, [0, 1, 5, 5])
    bar = ProgressBar()
    learner = make_learner(
        *(Recorder(), bar), model=Logits(), train=loader, val=loader, classes=classes, epochs=1, optimizer=frozen
    )
    learner.fit()
    row = learner.find(Recorder).rows[0]
    assert (row["val_accuracy"], row["val_top5"]) == (0.5, 0.75)
    assert "train_top5" not in row
    assert "val top-5" in capsys.readouterr().out
    recorder, task = learner.find(Recorder), task_named("classify")
    assert recorder.samples is not None
    scores = task.evaluate(recorder.val, recorder.samples, classes)
    assert scores.values["val_top5"] == 0.75
    assert ", val_top5 0.7500, " in scores.sentence
    assert [c.key for c in task.measured(5)] == ["train_loss", "train_accuracy", "val_loss", "val_accuracy"]


def test_a_meter_without_samples_has_no_values() -> None:
    meter = ClassMeter(3, CPU, keep=True)
    assert meter.samples == 0
    assert {name: math.isnan(value) for name, value in meter.compute().items()} == {"loss": True, "accuracy": True}
    assert meter.kept().confusion(3).tolist() == [[0] * 3] * 3


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_counts(bad: float) -> None:
    meter = ClassMeter(3, CPU)
    meter.update(torch.tensor(1.0), one_hot(0), torch.tensor([0]))
    meter.update(torch.tensor(bad), one_hot(0), torch.tensor([0]))
    meter.update(torch.tensor(1.0), one_hot(0), torch.tensor([0]))
    assert not math.isfinite(meter.compute()["loss"])


def test_reading_changes_nothing() -> None:
    given = batches([3, 3, 1])
    looked = ClassMeter(4, CPU)
    for batch in given:
        fill(looked, [batch]).compute()
    assert looked.compute() == fill(ClassMeter(4, CPU), given).compute()


def test_a_meter_resumes_from_its_state() -> None:
    given = batches([3, 3, 1])
    whole = fill(ClassMeter(4, CPU), given)
    for cut in range(len(given) + 1):
        file = BytesIO()
        torch.save(fill(ClassMeter(4, CPU), given[:cut]).state_dict(), file)
        file.seek(0)
        resumed = ClassMeter(4, CPU)
        resumed.load_state_dict(torch.load(file, weights_only=True))
        assert resumed.samples == sum(len(targets) for _, targets in given[:cut])
        assert fill(resumed, given[cut:]).compute() == whole.compute()
        assert_same(resumed.state_dict(), whole.state_dict())


def test_a_state_is_a_copy() -> None:
    given = batches([3, 3])
    meter = fill(ClassMeter(4, CPU), given[:1])
    state = meter.state_dict()
    fill(meter, given[1:])
    resumed = ClassMeter(4, CPU)
    resumed.load_state_dict(state)
    assert resumed.compute() == fill(ClassMeter(4, CPU), given[:1]).compute()


def test_gradients_do_not_accumulate() -> None:
    outputs = torch.randn(2, 3, requires_grad=True)
    meter = ClassMeter(3, CPU, keep=True)
    meter.update(nn.functional.cross_entropy(outputs, torch.tensor([0, 1])), outputs, torch.tensor([0, 1]))
    tensors = [meter.state_dict()["sums"], *vars(meter.kept()).values()]
    assert len(tensors) == 6
    assert not any(value.requires_grad for value in tensors)


@pytest.mark.parametrize("soft", [False, True])
def test_the_predictions_for_each_sample_by_hand(soft: bool) -> None:
    """Logarithms of probabilities come back as these; what was handed in may change afterwards."""
    shares = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [0.6, 0.3, 0.1]])
    outputs, indices = shares.log(), torch.tensor([7, 3, 5])
    targets = torch.tensor([0, 1, 1])
    meter = ClassMeter(3, CPU, keep=True)
    for part in (slice(0, 2), slice(2, 3)):
        given = one_hot(*targets[part].tolist()) if soft else targets[part].clone()
        parts = outputs[part].clone(), given, indices[part].clone()
        meter.update(torch.tensor(0.0), *parts)
        for tensor in parts:
            tensor.zero_()
    samples = meter.kept()
    assert samples.index.tolist() == [7, 3, 5]
    assert samples.target.tolist() == [0, 1, 1]
    assert samples.prediction.tolist() == [0, 2, 0]
    assert samples.confidence.tolist() == pytest.approx([0.5, 0.7, 0.6])
    assert samples.target_confidence.tolist() == pytest.approx([0.5, 0.2, 0.3])


def test_an_update_is_a_handful_of_kernels() -> None:
    class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
        calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func not in (torch.ops.aten.detach.default,):
                Count.calls += 1
            return func(*args, **(kwargs or {}))

    meter = ClassMeter(4, CPU)
    (given,) = batches([8])
    loss = torch.tensor(1.0)
    with Count():  # type: ignore[no-untyped-call]
        meter.update(loss, *given)
    assert 3 <= Count.calls <= 6
