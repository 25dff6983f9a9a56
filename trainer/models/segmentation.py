"""Segmentation models. Their outputs are (N, classes, height, width)."""

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from augment.params import Flag, Size, Text, setting
from augment.support.errors import UserError, first_line, import_extra, nearest, suggest
from augment.support.lazy_torch import nn
from trainer.models.base import Channels, Pretrained, model
from trainer.models.timm_models import Timm


@model("unet")
@dataclass(frozen=True, kw_only=True)
class Unet(Pretrained):
    """A U-Net, either a small one with 0.5 million parameters or one with a timm model as its encoder."""

    task: ClassVar[str] = "segment"

    name: str | None = setting(
        Text(optional=True, doc="timm model as the encoder, such as resnet18. Default: eight convolutions")
    )
    pretrained: bool = setting(
        Flag(default=False, doc="start from timm's encoder weights. model.weights takes precedence")
    )

    def build(self, classes: int, size: Size, channels: int = 3) -> "nn.Module":
        from trainer.models import unet

        if self._encoder is None:
            if self.pretrained:
                raise UserError(
                    "model.pretrained=true needs model.name. Set model.name=NAME, or model.pretrained=false."
                )
            return unet.UnetNetwork(unet.SmallEncoder(channels), unet.SmallEncoder.channels, classes)
        try:
            encoder: Any = self._encoder.create(size, channels, features_only=True)
        except (AttributeError, AssertionError, TypeError, KeyError) as error:
            raise UserError(
                f"model.name={self.name}: this model does not return features at several resolutions "
                f"({first_line(error)}). Use a convolutional timm model, such as resnet18."
            ) from error
        return unet.UnetNetwork(encoder, encoder.feature_info.channels(), classes)

    def normalization(self) -> tuple[Channels, Channels] | None:
        return self._encoder.normalization() if self._encoder else None

    def download_url(self) -> str | None:
        return self._encoder.download_url() if self._encoder else ""

    @property
    def _encoder(self) -> Timm | None:
        return None if self.name is None else Timm(name=self.name, pretrained=self.pretrained, weights=self.weights)


@model("smp")
@dataclass(frozen=True, kw_only=True)
class Smp(Pretrained):
    """A model of segmentation-models-pytorch, a package that is not installed by default."""

    task: ClassVar[str] = "segment"

    architecture: str = setting(
        Text(default="unet", doc="model of segmentation-models-pytorch, such as fpn, deeplabv3plus or segformer")
    )
    name: str = setting(Text(default="resnet34", doc="name of the encoder"))
    pretrained: bool = setting(
        Flag(default=False, doc="start from ImageNet encoder weights. model.weights takes precedence")
    )

    def build(self, classes: int, size: Size, channels: int = 3) -> "nn.Module":
        smp = _import_smp()
        base = smp.base.SegmentationModel
        known = [name.lower() for name, cls in vars(smp).items() if isinstance(cls, type) and issubclass(cls, base)]
        if self.architecture.lower() not in known:
            raise UserError(
                f"model.architecture: unknown architecture '{self.architecture}'.{suggest(self.architecture, known)}"
            )
        if not re.fullmatch(r"[\w.-]+", self.name):  # timm would download other names from the hub
            raise UserError(f"model.name: '{self.name}' is not the name of an encoder. Set a name such as resnet34.")
        weights = "imagenet" if self.loads else None
        try:
            network: nn.Module = smp.create_model(self.architecture, self.name, weights, channels, classes)
        except KeyError as error:
            raise UserError(
                f"model.name: unknown encoder '{self.name}'.{nearest(self.name, smp.encoders.encoders)} Set one of the "
                f"{len(smp.encoders.encoders)} encoders of segmentation-models-pytorch, or tu- and the name of a timm "
                "model, such as tu-convnext_tiny."
            ) from error
        except (RuntimeError, OSError, ValueError) as error:
            raise UserError(f"model.name={self.name}: {first_line(error)}") from error
        return network

    def normalization(self) -> tuple[Channels, Channels] | None:
        if not self.loads or self.name not in (encoders := _import_smp().encoders).encoders:
            return None
        params = encoders.get_preprocessing_params(self.name)
        return tuple(params["mean"]), tuple(params["std"])


def _import_smp() -> Any:
    return import_extra("model=smp", "segmentation-models-pytorch", "smp")
