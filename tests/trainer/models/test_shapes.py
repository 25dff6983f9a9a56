"""Networks without values."""

import pytest
import torch
from torch import nn

from trainer.models.shapes import only_shapes


def test_values_are_not_drawn_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch would do so in Python, for which it imports its compiler."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(torch._refs, "normal", refuse)
    with only_shapes():
        layer = nn.Conv2d(3, 8, 3)
        nn.init.kaiming_normal_(layer.weight)
        assert torch.zeros(2, device="cpu").normal_().any()
    assert layer.weight.shape == (8, 3, 3, 3)
    assert layer.weight.is_meta
    with torch.device("meta"), pytest.raises(AssertionError):
        nn.init.kaiming_normal_(layer.weight)
