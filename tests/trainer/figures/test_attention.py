"""Where a model looks: in the corner on which its class depends; rejections; overlays on whole images."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from augment.params import Size
from augment.support.errors import UserError
from trainer.models.registry import parse_model
from trainer.predictions.activation_maps import class_maps, draw_map, feature_layer, overlay


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


GRAY = np.full((400, 600, 3), 100, np.uint8)


def frame(scale: float, left: float, top: float) -> np.ndarray:
    """Return the matrix from an image to a crop that begins at (left, top), in pixels, and is then resized."""
    across, down = ((0.5 - start) * scale - 0.5 for start in (left, top))
    return np.array([[scale, 0, across], [0, scale, down], [0, 0, 1]])


@pytest.mark.parametrize(("size", "zoom"), [((400, 600), 1), ((40, 60), 6), ((3000, 4500), 4096 / 4500)])
def test_a_map_is_drawn_at_the_place_of_its_crop(size: tuple[int, int], zoom: float) -> None:
    (height, width), values = size, np.zeros((32, 32), np.float32)
    values[8, 24] = 1  # in a crop of the middle, as high as the image
    pixels, matrix = np.resize(GRAY, (*size, 3)), frame(32 / height, (width - height) / 2, 0)
    drawn = draw_map(pixels, values, matrix, "cat 93.1%").astype(int)
    shown = drawn[: round(height * zoom)]
    assert shown.shape == (round(height * zoom), round(width * zoom), 3)
    assert 35 < len(drawn) - len(shown) < 200
    hot = (shown[..., 0] - shown[..., 2]).argmax()
    row, column = np.divmod(hot, shown.shape[1]) / np.array(zoom)
    assert abs(row - 8.5 / 32 * height) < 0.02 * height
    assert abs(column - ((width - height) / 2 + 24.5 / 32 * height)) < 0.02 * height
    outside = [*range(round(95 * shown.shape[1] / 600)), *range(-round(95 * shown.shape[1] / 600), 0)]
    assert (shown[:, outside] == 178).all()  # pale
    assert (shown[-10:, shown.shape[1] // 2] == 100).all()  # the model looks elsewhere


def test_a_map_follows_mirrored_and_turned_images() -> None:
    values = np.zeros((40, 40), np.float32)
    values[5, 10] = 1
    for matrix, expected in (
        (np.array([[-0.1, 0, 39.45], [0, 0.1, -0.45], [0, 0, 1]]), (55, 294)),
        (np.array([[0, 0.1, -0.45], [0.1, 0, -0.45], [0, 0, 1]]), (105, 55)),
    ):
        drawn = draw_map(GRAY[:, :400], values, matrix, "cat").astype(int)[:400]
        assert np.abs(np.divmod((drawn[..., 0] - drawn[..., 2]).argmax(), 400) - np.array(expected)).max() < 6
        assert (drawn != 178).all()


def test_a_map_has_a_title_and_a_scale() -> None:
    values = np.zeros((32, 32), np.float32)
    whole = np.diag([32 / 600, 32 / 400, 1])
    whole[:2, 2] = (whole.diagonal()[:2] - 1) / 2
    cat, dog = (draw_map(GRAY, values, whole, title)[400:].astype(int) for title in ("cat 93.1%", "dog 4.0%"))
    title, scale = cat[: len(cat) // 2], cat[len(cat) // 2 :]
    assert (title != dog[: len(title)]).any()
    assert (title.std(axis=2) == 0).all()  # black letters on white
    assert (scale == dog[len(title) :]).all()
    colors = scale[len(scale) // 2, (scale.std(axis=2) > 0).any(axis=0)]
    assert len(colors) > 80
    assert colors[-1, 0] - colors[-1, 2] > 30 > abs(colors[0, 0] - colors[0, 2])  # from gray to yellow
    pale = draw_map(GRAY, values, frame(32 / 400, 100, 0), "cat 93.1%")[400:].astype(int)
    assert (pale[: len(title)] != title).any()  # it explains pale pixels
