"""The xresnet family: sizes, known parameter counts, what each choice changes, and what a step of training reaches."""

from typing import Any

import pytest
import timm
import torch
from fakes import needs_gpu
from graphed import recorded
from torch import nn

from augment.params import Size
from augment.support.errors import UserError
from trainer.models.registry import Xresnet, count_parameters, parse_model
from trainer.models.xresnet import (
    ACTIVATIONS,
    POOLS,
    BlurPool,
    SelfAttention,
)

# As small as they get: every kind of block, two of them a stage.
SMALL: dict[str, Any] = {"depth": "26", "width": 0.125, "groups": 2, "base_width": 16}
BASIC: dict[str, Any] = {"depth": "18", "width": 0.125}


def parameters(**settings: Any) -> int:
    with torch.device("meta"):
        return count_parameters(Xresnet(**settings).build(1000, Size(128, 128)))


def test_the_parameters_of_known_networks() -> None:
    """Those of timm's `d` variants, which have this stem and these shortcuts."""
    with torch.device("meta"):
        known = {name: count_parameters(timm.create_model(name)) for name in ("resnet18d", "resnet26d", "resnet50d")}
    assert {name: parameters(depth=name[6:8]) for name in known} == known


@pytest.mark.parametrize("size", [8, 33])
@pytest.mark.parametrize(
    "settings",
    [
        SMALL,
        BASIC,
        *({**SMALL, "pool": pool} for pool in POOLS),
        *({**BASIC, "activation": activation} for activation in ACTIVATIONS),
        {**SMALL, "attention": "se", "self_attention": True},
        {**BASIC, "attention": "se", "stem_pool": False, "zero_init": False, "dropout": 0.5},
    ],
)
def test_it_takes_any_size_and_every_parameter_is_reached(settings: dict[str, Any], size: int) -> None:
    network = Xresnet(**settings, **({} if "zero_init" in settings else {"zero_init": False})).build(
        3, Size(size, size)
    )
    output = network(torch.randn(2, 3, size, size))
    assert output.shape == (2, 3)
    output.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


def test_self_attention_by_hand() -> None:
    layer = SelfAttention(4)
    x = torch.randn(2, 4, 3, 3)
    assert torch.equal(layer(x), x), "nothing is added at first"
    nn.init.constant_(layer.weight, 0.5)
    expected = torch.empty(2, 4, 9)
    for n, image in enumerate(x.flatten(2)):
        values = layer.conv.weight[..., 0] @ image
        expected[n] = image + 0.5 * (image @ image.T / 9) @ values
    torch.testing.assert_close(layer(x), expected.view(2, 4, 3, 3))


def test_blur_pool_by_hand() -> None:
    constant = torch.full((1, 2, 5, 5), 3.0)
    assert torch.equal(BlurPool()(constant), torch.full((1, 2, 3, 3), 3.0))
    point = torch.zeros(1, 1, 8, 8)
    point[..., 4, 4] = 1
    # The largest of 3x3 makes a square of it, three pixels from 3 to 5; at 2, 4 and 6 the filter takes 1/4, 4/4, 1/4.
    line = torch.tensor([0, 0.25, 1, 0.25])
    torch.testing.assert_close(BlurPool()(point)[0, 0], torch.outer(line, line))


@pytest.mark.parametrize("given", [{"groups": 32}, {"base_width": 4}])
def test_groups_need_bottlenecks(given: dict[str, int]) -> None:
    settings = parse_model({"kind": "xresnet", "depth": 34, **given})
    with pytest.raises(UserError, match=r"^model\.groups=.*depth 34 has no bottlenecks.* a depth of 26, 50\.$"):
        settings.build(10, Size(64, 64))


@needs_gpu
def test_a_step_can_be_captured_on_the_gpu() -> None:
    """Nothing in it waits for the GPU or depends on data: the same gradients from a CUDA graph."""
    settings = {**SMALL, "attention": "se", "self_attention": True, "pool": "blur", "activation": "mish"}
    network = Xresnet(**settings).build(3, Size(64, 64)).cuda().to(memory_format=torch.channels_last)
    x = torch.randn(4, 3, 64, 64, device="cuda").to(memory_format=torch.channels_last)

    def step() -> None:
        network.zero_grad(set_to_none=False)
        with torch.autocast("cuda", torch.bfloat16):
            loss = network(x).square().mean()
        loss.backward()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    expected = [p.grad.clone() for p in network.parameters() if p.grad is not None]
    recorded(step)()
    torch.cuda.synchronize()
    for p, grad in zip(network.parameters(), expected, strict=True):
        assert p.grad is not None
        assert (p.grad - grad).norm() <= 0.05 * grad.norm() + 1e-6
