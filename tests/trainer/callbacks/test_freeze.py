"""Freezing: what is frozen stays bit-identical, whatever the optimizer remembers; what is not, moves."""

from typing import Any

import pytest
import torch
from fakes import make_learner, on
from torch import Tensor, nn

from augment.support.errors import UserError
from trainer.callbacks.freeze import Freeze
from trainer.callbacks.recorder import Recorder
from trainer.loop.learner import Learner


def three_stages() -> nn.Sequential:
    """Two convolutions with a norm each, and a head."""
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 4, 2, bias=False), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


STEM, MIDDLE, HEAD = {"0", "1"}, {"2", "3"}, {"6"}


def decaying(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)


def moved(*callbacks: Any, epochs: int = 4, **options: Any) -> list[set[str]]:
    """Fit; return for each epoch the names of the modules of which anything has changed, statistics included."""
    found: list[set[str]] = []
    before: dict[str, Tensor] = {}

    def remember(learner: Learner) -> None:
        before.update({name: value.clone() for name, value in learner.model.state_dict().items()})

    def compare(learner: Learner) -> None:
        state = learner.model.state_dict()
        found.append({n.split(".")[0] for n, v in state.items() if not torch.equal(v, before[n])})

    watch = (on("before_train", remember), on("after_train", compare))
    defaults: dict[str, Any] = {"model": three_stages(), "optimizer": decaying, "epochs": epochs}
    make_learner(Recorder(), *callbacks, *watch, **(defaults | options)).fit()
    return found


EVERYTHING = STEM | MIDDLE | HEAD


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [HEAD, EVERYTHING, EVERYTHING, EVERYTHING]),
        ({"epochs": 9}, [HEAD] * 4),
        ({"epochs": 2, "unfreeze": "gradually"}, [HEAD, HEAD, MIDDLE | HEAD, EVERYTHING]),
        ({"layers": "1"}, [MIDDLE | HEAD, EVERYTHING, EVERYTHING, EVERYTHING]),
        ({"layers": "[23].*", "epochs": 2}, [STEM | HEAD, STEM | HEAD, EVERYTHING, EVERYTHING]),
    ],
)
def test_what_moves_in_each_epoch(settings: dict[str, Any], expected: list[set[str]]) -> None:
    assert moved(Freeze(**settings)) == expected


def test_no_optimizer_moves_what_is_frozen() -> None:
    def adamw(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), weight_decay=0.5)

    assert moved(Freeze(epochs=2), epochs=3, optimizer=adamw) == [HEAD, HEAD, EVERYTHING]


@pytest.mark.parametrize(
    ("layers", "what"),
    [("layer9.*", "no parameter"), ("0", "no parameter"), ("3", "all parameters"), ("*", "all parameters")],
)
def test_freezing_nothing_or_everything_is_rejected(layers: str, what: str) -> None:
    with pytest.raises(
        UserError, match=rf"^callbacks\.freeze\.layers: .* freezes {what}\. Set .* from 1 to 2, .*6\.\*"
    ):
        Freeze(layers=layers).check(three_stages())
