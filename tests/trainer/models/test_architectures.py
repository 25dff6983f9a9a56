"""The xresnet family, and models with outputs for each pixel: sizes, counts, what each choice changes, and mistakes."""

import re
import sys
from typing import Any

import pytest
import torch
from fakes import needs_gpu
from graphed import recorded
from lazily import LazyModule
from torch import nn

from augment.params import Size
from augment.support.errors import UserError
from trainer.models.base import Model
from trainer.models.registry import Xresnet, check_model, count_parameters, parse_model
from trainer.models.segmentation import Smp, Unet
from trainer.models.torchvision_models import Torchvision
from trainer.models.xresnet import ACTIVATIONS, POOLS, BlurPool, SelfAttention

timm = LazyModule("timm")

# --- xresnet ---


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


@pytest.mark.parametrize(
    "settings",
    [
        *({**SMALL, "pool": pool} for pool in POOLS),
        *({**BASIC, "activation": activation} for activation in ACTIVATIONS),
        {**SMALL, "attention": "se", "self_attention": True},
        {**BASIC, "attention": "se", "stem_pool": False, "zero_init": False, "dropout": 0.5},
    ],
)
def test_it_takes_any_size_and_every_parameter_is_reached(settings: dict[str, Any]) -> None:
    network = Xresnet(**{"zero_init": False} | settings).build(3, Size(33, 33))
    for size in (8, 33):
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
    with pytest.raises(UserError, match=r"^model\.groups=.*depth 34 has no bottlenecks.* model\.depth to 26 or 50\.$"):
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


# --- pixels ---


@pytest.mark.parametrize("model", [Unet(), Unet(name="test_resnet"), Unet(name="convnext_atto")])
def test_outputs_have_the_size_of_the_images(model: Model) -> None:
    network = model.build(5, Size(32, 32)).train()
    for height, width in ((32, 32), (33, 50), (97, 45)):
        outputs = network(torch.randn(2, 3, height, width))
        assert outputs.shape == (2, 5, height, width)
    outputs.sum().backward()
    assert all(p.grad is not None for p in network.parameters())


@pytest.mark.parametrize("name", ["resnet18", "tu-mobilenetv3_small_050"])
def test_models_of_smp_are_built(name: str) -> None:
    assert Smp(architecture="fpn", name=name).build(5, Size(64, 96))(torch.randn(2, 3, 64, 96)).shape == (2, 5, 64, 96)


def test_a_model_of_torchvision_has_its_names_and_one_output() -> None:
    network = check_model(Torchvision(name="lraspp_mobilenet_v3_large"), 5, Size(64, 64))
    assert "backbone.0.0.weight" in network.state_dict()
    assert "classifier.low_classifier.weight" in network.state_dict()
    extra = {"aux_classifier.0.weight": torch.zeros(1), "classifier.low_classifier.weight": torch.zeros(1)}
    assert list(Torchvision(name="").convert(extra, network)) == ["classifier.low_classifier.weight"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Unet(name="resnet81"), "model.name: unknown model 'resnet81'. Did you mean 'resnet18'?"),
        (Smp(architecture="fpm"), "model.architecture: unknown architecture 'fpm'. Did you mean 'fpn'?"),
        (Smp(name="resnet43"), "model.name: unknown encoder 'resnet43'. Did you mean 'resnet34'?"),
        (Unet(pretrained=True), "model.pretrained=true needs model.name. Set model.name="),
        (Torchvision(name="fcn_resnet51"), "model.name: unknown model 'fcn_resnet51'. Did you mean 'fcn_resnet50'?"),
    ],
)
def test_mistakes_are_named(model: Model, message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        model.build(3, Size(32, 32))


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "segmentation_models_pytorch", None)
    with pytest.raises(UserError, match=r"^model=smp needs the package segmentation-models-pytorch\. .*: pip"):
        Smp().build(3, Size(32, 32))
