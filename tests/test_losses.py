"""Cross entropy with smoothed targets, by hand."""

import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot

from trainer.losses import CrossEntropy

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


def test_without_smoothing_it_is_pytorchs() -> None:
    assert torch.equal(CrossEntropy()(OUTPUTS, INDICES), cross_entropy(OUTPUTS, INDICES))
