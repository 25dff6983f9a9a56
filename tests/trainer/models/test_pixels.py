"""Models with outputs for each pixel: sizes, encoders, names of tensors, and mistakes."""

import re
import sys

import pytest
import torch

from augment.params import Size
from augment.support.errors import UserError
from trainer.models.base import Model
from trainer.models.pixels import Smp, Torchvision, Unet
from trainer.models.registry import check_model, count_parameters


@pytest.mark.parametrize("model", [Unet(), Unet(name="test_resnet"), Unet(name="convnext_atto")])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (33, 50), (97, 45)])
def test_outputs_have_the_size_of_the_images(model: Model, height: int, width: int) -> None:
    network = model.build(5, Size(32, 32)).train()
    outputs = network(torch.randn(2, 3, height, width))
    assert outputs.shape == (2, 5, height, width)
    outputs.sum().backward()
    assert all(p.grad is not None for p in network.parameters())


@pytest.mark.parametrize("name", ["resnet18", "tu-mobilenetv3_small_050"])
def test_models_of_smp_are_built(name: str) -> None:
    assert Smp(architecture="fpn", name=name).build(5, Size(64, 96))(torch.randn(2, 3, 64, 96)).shape == (2, 5, 64, 96)


def test_the_small_network_is_small() -> None:
    assert count_parameters(Unet().build(4, Size(32, 32))) == pytest.approx(0.5e6, rel=0.1)


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
        (Smp(architecture="fpm"), "model.architecture: unknown 'fpm'. Did you mean 'fpn'?"),
        (Smp(name="resnet43"), "model.name: unknown encoder 'resnet43'. Did you mean 'resnet34'?"),
        (Unet(pretrained=True), "model.pretrained: true, but without a model.name. Allowed: false, or model.name="),
        (Torchvision(name="fcn_resnet51"), "model.name: unknown model 'fcn_resnet51'. Did you mean 'fcn_resnet50'?"),
        (Torchvision(name="resnet18"), "model.name: unknown model 'resnet18'."),
    ],
)
def test_mistakes_are_named(model: Model, message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        model.build(3, Size(32, 32))


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "segmentation_models_pytorch", None)
    with pytest.raises(UserError, match=r"^model=smp: needs the package segmentation-models-pytorch\. Allowed: pip"):
        Smp().build(3, Size(32, 32))
