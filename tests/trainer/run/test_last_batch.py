"""Batches of a single image: what PyTorch's batch norm refuses in training is refused before."""

from typing import Any

import pytest
import torch

from augment.params import Size
from augment.support.errors import UserError
from trainer.callbacks.freeze import Freeze, keep_statistics
from trainer.models.registry import Cnn, Timm, check_model
from trainer.run.check import check_last_batch, trains_on_single
from trainer.run.fit import parse_fit

NETWORK = check_model(Cnn(), 3, Size(64, 64))


@pytest.mark.parametrize("side", [33, 64, 65, 128])
@pytest.mark.parametrize("settings", [Cnn(), Timm(name="resnet18")], ids=["cnn", "resnet18"])
def test_what_is_said_of_a_model_is_what_happens(settings: Any, side: int) -> None:
    takes = trains_on_single(check_model(settings, 3, Size(side, side)), Size(side, side))
    assert takes == (side > (64 if isinstance(settings, Cnn) else 32))
    network = settings.build(3, Size(side, side)).train()
    try:
        network(torch.zeros(1, 3, side, side))
        trained = True
    except ValueError:
        trained = False
    assert takes == trained


def test_a_model_without_batch_norm_takes_anything() -> None:
    network = check_model(Timm(name="vit_tiny_patch16_224"), 3, Size(32, 32))
    assert trains_on_single(network, Size(32, 32))
    assert not network.training


OTHERS = "Allowed: a batch size that leaves at least two; or fit.drop_last=true, which leaves out"
LARGE = {"stages": {"a": {"epochs": 29, "size": 128}, "b": {"batch_size": 16, "size": 64}}}


@pytest.mark.parametrize(
    ("fit", "samples", "message"),
    [
        ({"batch_size": 8}, 17, f"fit.batch_size=8: of 17 samples, the last batch is a single image, .* {OTHERS}"),
        ({"batch_size": 8}, 18, None),
        ({"batch_size": 8, "drop_last": True}, 17, None),
        ({"batch_size": 8, "limit_batches": 2}, 17, None),
        ({"batch_size": 8, "limit_batches": 3}, 17, "fit.batch_size=8: of 17 samples,"),
        ({"batch_size": 8, "accumulate": 3}, 17, "fit.batch_size=8: of 17 samples,"),
        ({"batch_size": 1, "drop_last": True}, 17, r"fit.batch_size=1: of 17 samples, every batch is a single"),
        ({"batch_size": 8, "drop_last": True}, 1, r"fit.batch_size=8: of 1 sample, the last batch is a single image"),
        ({"batch_size": 8} | LARGE, 17, "fit.stages.b.batch_size=16: of 17 samples, .* at 64 px"),
        ({"batch_size": 8} | LARGE, 25, None),
    ],
)
def test_a_single_image_is_refused_with_what_helps(fit: dict[str, Any], samples: int, message: str | None) -> None:
    parsed = parse_fit(fit)
    if message is None:
        check_last_batch(parsed, NETWORK, samples, Size(64, 64))
    else:
        with pytest.raises(UserError, match=f"^{message}"):
            check_last_batch(parsed, NETWORK, samples, Size(64, 64))


@pytest.mark.parametrize(
    ("settings", "epochs", "accepted"),
    [
        ({"epochs": 4}, 4, True),
        ({"epochs": 4}, 5, False),
        ({"epochs": 4, "layers": "1"}, 4, False),
        ({"unfreeze": "gradually"}, 1, True),
        ({"unfreeze": "gradually"}, 2, False),
    ],
)
def test_only_norms_that_are_frozen_to_the_end_take_single_images(
    settings: dict[str, Any], epochs: int, accepted: bool
) -> None:
    frozen = Freeze(**settings).frozen(NETWORK, epochs - 1)
    assert trains_on_single(NETWORK, Size(64, 64), frozen) == accepted
    network = Cnn().build(3, Size(64, 64)).train()
    keep_statistics(network, frozen)
    try:
        network(torch.zeros(1, 3, 64, 64))
        trained = True
    except ValueError:
        trained = False
    assert trained == accepted
