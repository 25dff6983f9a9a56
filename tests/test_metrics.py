"""What is measured: against values worked out by hand and against torchmetrics fed with everything at once."""

import math
from io import BytesIO

import pytest
import torch
from fakes import CPU, assert_same
from torch import Tensor, nn
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_confusion_matrix

from trainer.metrics import Meter


def batches(sizes: list[int], classes: int = 4) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(n, classes, generator=generator), torch.randint(classes, (n,), generator=generator)) for n in sizes
    ]


def fill(meter: Meter, given: list[tuple[Tensor, Tensor]]) -> Meter:
    for outputs, targets in given:
        meter.update(nn.functional.cross_entropy(outputs, targets), outputs, targets)
    return meter


def one_hot(*predictions: int) -> Tensor:
    return nn.functional.one_hot(torch.tensor(predictions), 3).float()


@pytest.mark.parametrize("inference", [False, True])
def test_the_loss_is_the_mean_over_samples_not_over_batches(inference: bool) -> None:
    with torch.inference_mode(inference):
        meter = Meter(3, CPU)
        meter.update(torch.tensor(1.0), one_hot(0, 1, 2), torch.tensor([0, 1, 2]))
        meter.update(torch.tensor(5.0), one_hot(0), torch.tensor([1]))
    assert meter.samples == 4
    assert meter.compute() == {"loss": (3 * 1.0 + 1 * 5.0) / 4, "accuracy": 3 / 4}


@pytest.mark.parametrize("sizes", [[1], [8], [3, 3, 1], [1, 7, 2]])
def test_against_all_samples_at_once(sizes: list[int]) -> None:
    given = batches(sizes)
    outputs, targets = (torch.cat(parts) for parts in zip(*given, strict=True))
    meter = fill(Meter(4, CPU, keep=True), given)
    assert meter.compute() == pytest.approx(
        {
            "loss": nn.functional.cross_entropy(outputs, targets).item(),
            "accuracy": multiclass_accuracy(outputs, targets, 4, average="micro").item(),
        }
    )
    assert_same(meter.confusion(), multiclass_confusion_matrix(outputs, targets, 4))


def test_confusion_by_hand_has_targets_in_rows() -> None:
    meter = Meter(3, CPU, keep=True)
    meter.update(torch.tensor(0.0), one_hot(0, 1, 1, 1), torch.tensor([0, 0, 0, 1]))
    meter.update(torch.tensor(0.0), one_hot(0), torch.tensor([2]))
    assert meter.confusion().tolist() == [[1, 2, 0], [0, 1, 0], [1, 0, 0]]
    assert meter.confusion().dtype == torch.int64


def test_a_meter_that_has_seen_nothing_knows_nothing() -> None:
    meter = Meter(3, CPU, keep=True)
    assert meter.samples == 0
    assert {name: math.isnan(value) for name, value in meter.compute().items()} == {"loss": True, "accuracy": True}
    assert meter.confusion().tolist() == [[0] * 3] * 3


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_not_left_out(bad: float) -> None:
    meter = Meter(3, CPU)
    meter.update(torch.tensor(1.0), one_hot(0), torch.tensor([0]))
    meter.update(torch.tensor(bad), one_hot(0), torch.tensor([0]))
    meter.update(torch.tensor(1.0), one_hot(0), torch.tensor([0]))
    assert not math.isfinite(meter.compute()["loss"])


def test_looking_changes_nothing() -> None:
    given = batches([3, 3, 1])
    looked = Meter(4, CPU)
    for batch in given:
        fill(looked, [batch]).compute()
    assert looked.compute() == fill(Meter(4, CPU), given).compute()


def test_a_meter_goes_on_from_its_state() -> None:
    given = batches([3, 3, 1])
    whole = fill(Meter(4, CPU), given)
    for cut in range(len(given) + 1):
        file = BytesIO()
        torch.save(fill(Meter(4, CPU), given[:cut]).state_dict(), file)
        file.seek(0)
        resumed = Meter(4, CPU)
        resumed.load_state_dict(torch.load(file, weights_only=True))
        assert resumed.samples == sum(len(targets) for _, targets in given[:cut])
        assert fill(resumed, given[cut:]).compute() == whole.compute()
        assert_same(resumed.state_dict(), whole.state_dict())


def test_a_restored_meter_can_be_looked_at_before_its_next_batch() -> None:
    whole = fill(Meter(4, CPU), batches([3, 2]))
    resumed = Meter(4, CPU)
    resumed.load_state_dict(whole.state_dict())
    assert resumed.compute() == whole.compute()


def test_a_state_is_a_copy() -> None:
    given = batches([3, 3])
    meter = fill(Meter(4, CPU), given[:1])
    state = meter.state_dict()
    fill(meter, given[1:])
    resumed = Meter(4, CPU)
    resumed.load_state_dict(state)
    assert resumed.compute() == fill(Meter(4, CPU), given[:1]).compute()


def test_gradients_do_not_pile_up() -> None:
    outputs = torch.randn(2, 3, requires_grad=True)
    meter = Meter(3, CPU, keep=True)
    meter.update(nn.functional.cross_entropy(outputs, torch.tensor([0, 1])), outputs, torch.tensor([0, 1]))
    states = [value for values in meter.state_dict()["metrics"] for value in values.values()]
    assert states
    assert not any(value.requires_grad for value in states)
