"""Losses against values worked out by hand."""

from collections.abc import Callable

import pytest
import torch
from fakes import CPU
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from trainer.run.fit import parse_fit
from trainer.tasks.losses import BinaryCrossEntropy, CrossEntropy, LossFunction
from trainer.tasks.registry import task_named, unused_settings


def test_settings_of_another_task_are_reported() -> None:
    fit = parse_fit({"label_smoothing": 0.1, "standardize": False})
    expected = ["fit.standardize=false has no effect where classes are predicted"]
    assert list(unused_settings(fit, task_named("classify"))) == expected
    expected = ["fit.label_smoothing=0.1 has no effect where numbers are predicted"]
    assert list(unused_settings(fit, task_named("regress"))) == expected


def training_loss(task: str, fit: dict[str, object], weights: torch.Tensor | None = None) -> LossFunction:
    return task_named(task).make_losses(parse_fit(fit), nn.Identity(), CPU, weights)[0]


def test_validation_neither_smooths_nor_weights() -> None:
    for task, expected in (("classify", CrossEntropy()), ("multilabel", BinaryCrossEntropy())):
        _, loss = task_named(task).make_losses(parse_fit({"label_smoothing": 0.1}), nn.Identity(), CPU, WEIGHTS)
        assert loss == expected
        assert getattr(loss, "weights", WEIGHTS) is None


OUTPUTS = torch.tensor([[2.0, 0.5, -1.0], [0.0, 1.0, 0.3]])
INDICES = torch.tensor([0, 2])
MIXED = torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.5, 0.5]])


@pytest.mark.parametrize("targets", [INDICES, MIXED], ids=["indices", "mixed"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_smoothing_spreads_a_share_over_all_classes(targets: torch.Tensor, smoothing: float) -> None:
    shares = one_hot(targets, 3).float() if targets.ndim == 1 else targets
    smooth = shares * (1 - smoothing) + smoothing / 3
    expected = -(smooth * OUTPUTS.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(CrossEntropy(smoothing)(OUTPUTS, targets), expected)


LABELS = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.3, 0.0]])


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("mse", torch.square),
        ("mae", torch.abs),
        ("huber", lambda e: torch.where(e.abs() < 1, e.square() / 2, e.abs() - 0.5)),
    ],
)
def test_errors_of_numbers_by_hand(name: str, of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    loss = training_loss("regress", {"label_smoothing": 0.5, "loss": name})
    torch.testing.assert_close(loss(OUTPUTS, LABELS), of(OUTPUTS - LABELS).mean())


WEIGHTS = torch.tensor([0.25, 1.0, 4.0])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_weights_equal_pytorch_and_an_index_is_the_share_1(smoothing: float) -> None:
    loss = training_loss("classify", {"label_smoothing": smoothing}, WEIGHTS)
    expected = cross_entropy(OUTPUTS, INDICES, WEIGHTS, label_smoothing=smoothing)
    torch.testing.assert_close(loss(OUTPUTS, INDICES), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(loss(OUTPUTS, one_hot(INDICES, 3).float()), expected, atol=1e-6, rtol=0)
    # Of shares PyTorch has the sum over the images, over their number.
    mixed = cross_entropy(OUTPUTS, MIXED, WEIGHTS, label_smoothing=smoothing) * 2 / (MIXED * WEIGHTS).sum()
    torch.testing.assert_close(loss(OUTPUTS, MIXED), mixed, atol=1e-6, rtol=0)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["alike", "weights"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_labels_one_by_one_with_weights_of_present_ones(smoothing: float, weights: torch.Tensor | None) -> None:
    wanted = LABELS * (1 - smoothing) + smoothing / 2
    found = training_loss("multilabel", {"label_smoothing": smoothing}, weights)(OUTPUTS, LABELS)
    expected = binary_cross_entropy_with_logits(OUTPUTS, wanted, pos_weight=weights)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
