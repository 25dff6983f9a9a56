"""Where a model looks: in the corner on which its class depends; rejections; overlays."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from augment.params import Size
from augment.support.errors import UserError
from trainer.models.registry import parse_model
from trainer.predictions.activation_maps import class_maps, feature_layer, overlay


class Corner(nn.Module):
    """Says 1 where the image is red somewhere, 0 where it is blue."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 1, bias=False)
        self.pool = nn.MaxPool2d(4)
        with torch.no_grad():
            self.conv.weight.copy_(torch.tensor([[-1.0, 0, 1], [1, 0, -1]])[..., None, None])

    def forward(self, images: Tensor) -> Tensor:
        return self.pool(self.conv(images).relu()).mean(dim=(2, 3))


def test_the_maximum_lies_in_the_corner_that_decides() -> None:
    images = torch.zeros(20, 3, 32, 32)
    images[::2, 0, 20:, 4:10] = 1  # red, below left
    images[1::2, 2, 2:10, 22:30] = 1  # blue, above right
    network = Corner().requires_grad_(False)
    with torch.inference_mode():
        maps = class_maps(network, images, torch.tensor([1, 0] * 10))
    assert maps.shape == (20, 32, 32)
    assert (maps.amax(dim=(1, 2)), maps.amin(dim=(1, 2))) == (pytest.approx(1), pytest.approx(0))
    for number, found in enumerate(maps):
        row, column = divmod(int(found.argmax()), 32)
        assert (row >= 16, column >= 16) == ((True, False) if number % 2 == 0 else (False, True))
        assert found[:16, :16].max() < 0.1


@pytest.mark.parametrize(
    ("kind", "layer"),
    [
        ({"kind": "cnn"}, "20"),
        ({"kind": "timm", "name": "resnet18"}, "layer4"),
        ({"kind": "timm", "name": "vit_tiny_patch16_224"}, ""),
    ],
)
def test_the_last_feature_map_before_the_pooling(kind: dict[str, str], layer: str) -> None:
    network, images = parse_model(kind).build(4, Size(224, 224)).eval(), torch.zeros(1, 3, 224, 224)
    if layer:
        assert network.get_submodule(layer) is feature_layer(network, images)
        return
    with pytest.raises(UserError, match=rf"^model: {type(network).__name__} has no feature map\. Use a conv"):
        feature_layer(network, images)
    assert not any(module._forward_hooks for module in network.modules())


def test_an_overlay_is_the_image_where_the_map_is_zero_and_bright_where_it_is_one() -> None:
    pixels, values = np.full((4, 6, 3), 100, np.uint8), np.zeros((4, 6), np.float32)
    values[1, 2] = 1
    drawn = np.asarray(overlay(pixels, values)).astype(int)
    assert (drawn[values == 0] == 100).all()
    red, green, blue = drawn[1, 2]
    assert red > 170
    assert green > 170
    assert blue < 150
