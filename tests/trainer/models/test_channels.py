"""Models of images with any number of channels, and weights for RGB images that start them."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn

from augment.params import Size
from augment.support.errors import UserError
from trainer.models.registry import Cnn, Model, Timm, Xresnet, build_network, check_model
from trainer.models.segmentation import Smp, Unet
from trainer.models.torchvision_models import Detector, Torchvision
from trainer.run.initial_weights import start_from

SIZE = Size(64, 64)
CHANNELS = (1, 2, 4, 10)
MODELS: list[Model] = [  # the last ones are slow
    Cnn(),
    Xresnet(depth="18", width=0.25),
    Timm(name="test_resnet"),
    Timm(name="test_vit"),
    Unet(),
    Unet(name="test_resnet"),
    Smp(name="resnet18"),
    Torchvision(name="lraspp_mobilenet_v3_large"),
    Detector(),
    Detector(name="ssdlite320_mobilenet_v3_large"),
    Detector(name="fasterrcnn_mobilenet_v3_large_320_fpn"),
    Detector(name="maskrcnn_resnet50_fpn"),
]


def first_conv(network: nn.Module) -> nn.Conv2d:
    return next(module for module in network.modules() if isinstance(module, nn.Conv2d))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{type(model).__name__} {getattr(model, 'name', '')}")
def test_models_take_any_number_of_channels(model: Model) -> None:
    for channels in CHANNELS if model in MODELS[:-3] else CHANNELS[-1:]:
        network = build_network(model, 3, SIZE, channels).eval()
        with torch.inference_mode():
            outputs = network(torch.rand(1, channels, *SIZE))
        assert len(outputs) == 1
        assert outputs.isfinite().all()
        names = [name for name, _ in check_model(model, 3, SIZE, channels=channels).named_parameters()]
        assert names == [name for name, _ in network.named_parameters()]


@pytest.mark.parametrize("name", ["fasterrcnn_resnet50_fpn", "fcos_resnet50_fpn", "retinanet_resnet50_fpn"])
def test_new_input_weights_of_torchvision_have_its_distribution(name: str) -> None:
    weights = first_conv(Detector(name=name).build(3, SIZE, 4)).weight
    assert weights.shape == (64, 4, 7, 7)
    assert weights.requires_grad
    assert weights.std().item() == pytest.approx((2 / (64 * 7 * 7)) ** 0.5, rel=0.05)


@pytest.mark.parametrize("channels", CHANNELS)
def test_pretrained_weights_are_adapted_as_in_timm(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    state = timm.create_model("test_resnet").state_dict()
    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", lambda *_, **__: dict(state))
    monkeypatch.setattr(Timm, "download_url", lambda _: "")
    network = Timm(name="test_resnet", pretrained=True).build(3, SIZE, channels)
    expected = timm.models.adapt_input_conv(channels, state["conv1.0.weight"])
    assert torch.equal(network.get_parameter("conv1.0.weight"), expected)

    state = torchvision.models.mobilenet_v3_large().state_dict()
    monkeypatch.setattr("torchvision.models._api.WeightsEnum.get_state_dict", lambda *_, **__: dict(state))
    expected = timm.models.adapt_input_conv(channels, state["features.0.0.weight"])
    for model in (
        Torchvision(name="lraspp_mobilenet_v3_large", pretrained=True),
        Detector(name="fasterrcnn_mobilenet_v3_large_320_fpn", pretrained=True),
    ):
        first = first_conv(build_network(model, 3, SIZE, channels))
        assert first.in_channels == channels
        assert torch.equal(first.weight, expected)


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
@pytest.mark.parametrize("channels", CHANNELS)
def test_weights_of_a_file_are_adapted_as_in_timm(name: str, channels: int, tmp_path: Path) -> None:
    file = tmp_path / "rgb.safetensors"
    save_file(timm.create_model(name, num_classes=3, img_size=64 if "vit" in name else None).state_dict(), file)
    model = Timm(name=name, weights=str(file))
    network = model.untrained().build(3, SIZE, channels)
    start_from(model, network, ("a", "b", "c"), SIZE)
    local = {"file": str(file), "hf_hub_id": None, "num_classes": 3}
    size = {"img_size": 64} if "vit" in name else {}
    expected = timm.create_model(
        name, pretrained=True, pretrained_cfg_overlay=local, in_chans=channels, num_classes=3, **size
    )
    found = network.state_dict()
    for tensor_name, tensor in expected.state_dict().items():
        assert torch.equal(found[tensor_name], tensor)


def test_weights_for_other_channels_are_rejected(tmp_path: Path) -> None:
    state: dict[str, Tensor] = Cnn().build(3, SIZE, 4).state_dict()
    save_file(state, tmp_path / "bands.safetensors")
    model = Cnn(weights=str(tmp_path / "bands.safetensors"))
    for channels in (3, 5):
        with pytest.raises(
            UserError, match=rf"model\.weights=.*16 x 4 x 3 x 3 in the file and 16 x {channels} x 3 x 3"
        ):
            start_from(model, Cnn().build(3, SIZE, channels), ("a", "b", "c"), SIZE)


def test_models_of_plugins_take_three_channels_or_say_how_many() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Plain(Model):
        any_size = True

        def build(self, classes: int, size: Size) -> nn.Module:
            return nn.Sequential(nn.Conv2d(3, classes, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    assert build_network(Plain(), 5, SIZE)(torch.rand(1, 3, 8, 8)).shape == (1, 5)
    for build in (build_network, lambda *given: check_model(*given[:3], channels=given[3])):
        with pytest.raises(UserError, match=r"^model\.kind: Plain takes images with 3 channels.* 4\. Add"):
            build(Plain(), 5, SIZE, 4)
