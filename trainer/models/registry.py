"""All models by name, including the small default network.

A model is a class of settings whose method `build` returns a network. PyTorch is imported only when a network is built,
because the import takes seconds.
"""

from dataclasses import dataclass
from typing import ClassVar

from augment.params import Size, parse_named
from augment.support.errors import UserError, first_line
from augment.support.lazy_torch import nn, torch
from trainer.models import segmentation, torchvision_models  # noqa: F401  # register their models
from trainer.models.base import MODELS, Channels, Model, build_network, model
from trainer.models.timm_models import Timm
from trainer.models.xresnet_settings import XresnetSettings

__all__ = [
    "MODELS",
    "Channels",
    "Model",
    "Timm",
    "build_network",
    "check_model",
    "count_parameters",
    "model",
    "parse_model",
]


def parse_model(given: object) -> Model:
    """Parse the `model` section, `{kind: name, ...settings}`."""
    return parse_named(MODELS, given, "model", "kind")


@model("cnn")
@dataclass(frozen=True, kw_only=True)
class Cnn(Model):
    """Seven 3x3 convolutions, 0.47 million parameters. Trains in minutes on two CPU cores."""

    any_size: ClassVar[bool] = True

    def build(self, classes: int, size: Size, channels: int = 3) -> "nn.Module":
        widths, strides = (channels, 16, 32, 64, 64, 64, 128, 256), (1, 2, 2, 2, 2, 2, 2)
        layers: list[nn.Module] = []
        for inputs, outputs, stride in zip(widths, widths[1:], strides, strict=False):
            layers += [
                nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
                nn.ReLU(inplace=True),
                nn.BatchNorm2d(outputs),
            ]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


@model("xresnet")
@dataclass(frozen=True, kw_only=True)
class Xresnet(XresnetSettings):
    """A residual network with optional changes, as in fastai's leaderboard."""

    any_size: ClassVar[bool] = True

    def build(self, classes: int, size: Size, channels: int = 3) -> "nn.Module":
        from trainer.models.xresnet import LAYOUTS, XResNet

        bottleneck = LAYOUTS[self.depth][0]
        if not bottleneck and (self.groups, self.base_width) != (1, 64):
            deep = " or ".join(depth for depth, (has, _) in LAYOUTS.items() if has)
            raise UserError(
                f"model.groups={self.groups}, model.base_width={self.base_width}: depth {self.depth} has no "
                f"bottlenecks to change. Set model.groups=1 and model.base_width=64, or model.depth to {deep}."
            )
        return XResNet(classes, self, channels)


def count_parameters(network: "nn.Module") -> int:
    """Return the number of trainable parameters."""
    return sum(p.numel() for p in network.parameters() if p.requires_grad)


def check_model(
    settings: Model,
    classes: int,
    size: Size,
    *,
    channels: int = 3,
    trial_size: Size | None = None,
    key: str = "aug.size",
) -> "nn.Module":
    """Build the network on the device "meta", without weights, to find mistakes early.

    Args:
        settings: settings of the model.
        classes: number of outputs.
        size: size of the images that the network is built for.
        channels: number of channels of the images.
        trial_size: size of the images to try the network with. Default: `size`.
        key: the setting that determines `trial_size`, for the error message.

    Raises:
        UserError: the network cannot be built (see `Model.build`), does not accept images of this size, or returns
            outputs of another shape.
    """
    tried = trial_size or size
    with torch.device("meta"):
        network = build_network(settings.untrained(), classes, size, channels).eval()
        if settings.any_size:  # running a network on "meta" imports PyTorch's compiler, which takes seconds
            return network
        try:
            outputs = network(torch.empty(1, channels, *tried))
        except (RuntimeError, AssertionError, ValueError) as error:
            raise UserError(
                f"{key}={tried.plain}: the model cannot take images of this size ({first_line(error)}). Set "
                "another size or another model."
            ) from error
    shape = tuple(getattr(outputs, "shape", ()))
    wanted = (1, classes, *tried) if settings.task == "segment" else (1, classes)
    if shape != wanted:
        what = f"of shape {shape}" if shape else f"a {type(outputs).__name__}"
        raise UserError(f"model: its output for one image is {what}. Return a tensor of shape {wanted}.")
    return network
