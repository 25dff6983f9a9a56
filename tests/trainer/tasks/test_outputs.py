"""Metrics of labels and numbers: by hand, and against scikit-learn."""

import math

import numpy as np
import pytest
import torch
from fakes import CPU, needs_gpu, refuse_waiting
from torch import Tensor
from torch.nn import functional as F
from torchmetrics.functional import r2_score

from trainer.tasks.metrics import Meter, OutputSamples, mean_of_known
from trainer.tasks.multilabel import average_precisions, best_threshold, label_scores
from trainer.tasks.registry import task_named
from trainer.tasks.regress import number_scores


def meter_of(task: str, count: int, device: torch.device = CPU, *, keep: bool = False) -> Meter[OutputSamples]:
    return task_named(task).meter(count, device, keep=keep)


def draw(samples: int = 1000, labels: int = 4, *, ties: bool = False) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    targets = (torch.rand(samples, labels, generator=generator) < 0.3).float()
    outputs = 3 * torch.randn(samples, labels, generator=generator) + 2 * targets
    return (outputs.round() if ties else outputs), targets


def fill(task: str, outputs: Tensor, targets: Tensor, *, keep: bool = True) -> Meter[OutputSamples]:
    meter = meter_of(task, outputs.shape[1], keep=keep)
    loss = F.binary_cross_entropy_with_logits if task == "multilabel" else F.mse_loss
    for part in (slice(0, 3), slice(3, 10), slice(10, None)):
        if not len(outputs[part]):
            continue
        given = outputs[part].clone(), targets[part].clone()
        meter.update(loss(*given), *given, torch.arange(len(outputs))[part])
        for tensor in given:
            tensor.zero_()  # as recorded work writes over its results
    return meter


def by_hand(scores: Tensor, targets: Tensor) -> float:
    """The sum of precision times the gain in recall over all scores, the highest first."""
    total, before, area = float(targets.sum()), 0.0, 0.0
    for score in sorted(set(scores.tolist()), reverse=True):
        said = scores >= score
        right = float(targets[said].sum())
        area += right / float(said.sum()) * (right - before) / total
        before = right
    return area


@pytest.mark.parametrize("ties", [False, True])
def test_average_precision_by_hand(ties: bool) -> None:
    outputs, targets = draw(200, ties=ties)
    expected = [by_hand(o, t) for o, t in zip(outputs.unbind(1), targets.unbind(1), strict=True)]
    assert average_precisions(outputs, targets) == pytest.approx(expected, abs=1e-6)


def test_confident_outputs_stay_distinct() -> None:
    """Of float32 probabilities, all of these are 1."""
    outputs, targets = torch.tensor([[20.0], [25.0], [30.0], [18.0]]), torch.tensor([[0.0], [1.0], [1.0], [0.0]])
    assert average_precisions(outputs, targets) == [1.0]


def test_a_label_on_no_image_does_not_count() -> None:
    outputs, targets = torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    first, second = average_precisions(outputs, targets)
    assert (first, math.isnan(second)) == (1.0, True)
    assert mean_of_known([first, second]) == 1.0
    assert math.isnan(mean_of_known([math.nan]))


def test_labels_of_a_pass() -> None:
    outputs, targets = draw()
    meter = fill("multilabel", outputs, targets)
    loss = F.binary_cross_entropy_with_logits(outputs, targets).item()
    assert meter.compute() == pytest.approx({"loss": loss})
    mean = float(np.mean([by_hand(o, t) for o, t in zip(outputs.unbind(1), targets.unbind(1), strict=True)]))
    assert meter.scores() == pytest.approx({"loss": loss, "map": mean})
    kept = meter.kept()
    assert torch.equal(kept.output, outputs)
    assert torch.equal(kept.target, targets)
    assert kept.index.tolist() == list(range(1000))


def test_numbers_of_a_pass() -> None:
    outputs, targets = draw(20, 2)
    meter = fill("regress", outputs, targets)
    errors = outputs - targets
    mae, rmse = errors.abs().mean().item(), errors.square().mean().sqrt().item()
    expected = r2_score(outputs.double(), targets.double(), multioutput="raw_values").tolist()
    roots = errors.square().mean(0).sqrt().tolist()
    values = {"loss": rmse**2, "mae": mae, "rmse": rmse, "mean_rmse": np.mean(roots), "r2": np.mean(expected)}
    assert meter.scores() == pytest.approx(values, abs=1e-6)
    assert "mean_rmse" not in fill("regress", outputs[:, :1], targets[:, :1]).scores()
    found = task_named("regress").per_class(meter.kept(), ("a", "b"))
    assert list(found) == ["a", "b"]
    assert np.mean([scores["mae"] for scores in found.values()]) == pytest.approx(mae)
    assert [scores["rmse"] for scores in found.values()] == pytest.approx(roots)
    assert [scores["r2"] for scores in found.values()] == pytest.approx(expected, abs=1e-6)


def test_r2_by_hand() -> None:
    """One number is predicted perfectly, one by its mean, one is the same in all images."""
    targets = torch.tensor([[1.0, 1.0, 5.0], [2.0, 3.0, 5.0], [6.0, 5.0, 5.0]])
    outputs = targets.clone()
    outputs[:, 1], outputs[0, 2] = 3.0, 6.0
    kept = OutputSamples(torch.arange(3), targets, outputs)
    assert [r2 for _, _, r2 in number_scores(kept)] == pytest.approx([1, 0, math.nan], nan_ok=True)
    mean = fill("regress", outputs, targets).scores()["r2"]
    assert mean == pytest.approx(0.5)
    assert math.isnan(fill("regress", outputs[:, 2:], targets[:, 2:]).scores()["r2"])


@pytest.mark.parametrize("task", ["multilabel", "regress"])
def test_a_pass_without_samples_has_no_scores(task: str) -> None:
    meter = meter_of(task, 3, keep=True)
    assert all(math.isnan(value) for value in meter.scores().values())
    assert meter.kept().output.shape == (0, 3)


def test_the_best_threshold_by_hand() -> None:
    scores, having = torch.tensor([0.9, 0.2, 0.7, 0.7, 0.1]), torch.tensor([True, True, False, True, False])
    # From 0.9 on F1 is 2/4, from 0.7 on (two of one score) 4/6, from 0.2 on 6/7, from all on 6/8.
    threshold, f1 = best_threshold(scores, having)
    assert (threshold, f1) == (pytest.approx(0.2), pytest.approx(6 / 7))
    # Images of equal score get the label together: 4/7 from 0.7 on, 2/3 at 0.9.
    tied = best_threshold(torch.tensor([0.9, 0.7, 0.7, 0.7, 0.7]), torch.tensor([True, True, False, False, False]))
    assert tied == (pytest.approx(0.9), pytest.approx(2 / 3))
    nobody = best_threshold(scores, torch.zeros(5, dtype=torch.bool))
    assert (math.isnan(nobody[0]), nobody[1]) == (True, 0.0)


def test_the_score_of_each_label() -> None:
    outputs, targets = draw(100, 2)
    first, second = label_scores(fill("multilabel", outputs, targets).kept())
    assert second.images == int(targets[:, 1].sum())
    assert first.average_precision == pytest.approx(by_hand(outputs[:, 0], targets[:, 0]), abs=1e-6)
    said = outputs[:, 0].double().sigmoid() >= first.threshold
    assert first.f1 == pytest.approx(2 * float(targets[said, 0].sum()) / float(said.sum() + targets[:, 0].sum()))


@needs_gpu
@pytest.mark.parametrize("task", ["multilabel", "regress"])
def test_updating_never_waits_for_the_gpu(task: str) -> None:
    device = torch.device("cuda")
    meter = meter_of(task, 4, device, keep=True)
    outputs, targets = (tensor.to(device) for tensor in draw(8))
    loss = F.mse_loss(outputs, targets)
    with refuse_waiting():
        meter.update(loss, outputs, targets, torch.arange(8, device=device))
        meter.update(loss, outputs, targets)
    assert meter.kept().index.tolist() == [*range(8), *[-1] * 8]
