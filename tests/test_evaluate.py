"""What an evaluation says of its score."""

import pytest
import torch

from trainer.evaluate import Score


def test_interval_and_classes_by_hand():
    score = Score(0.5, 0.9, torch.tensor([[50, 0], [10, 40]]), ("cat", "dog"))
    assert score.pictures == 100
    # Wilson's interval of 90 in 100.
    assert score.interval == pytest.approx((0.8256, 0.9448), abs=1e-4)
    assert score.per_class() == {"cat": (50, 50), "dog": (40, 50)}


def test_all_right_still_leaves_a_doubt():
    low, high = Score(0.0, 1.0, torch.tensor([[20]]), ("cat",)).interval
    assert low == pytest.approx(0.8389, abs=1e-4)
    assert high == pytest.approx(1.0)
