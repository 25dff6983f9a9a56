"""Models with an output for each pixel and class, (N, classes, height, width), for segmentation."""

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from augment.params import Flag, Size, Text, setting
from augment.support.errors import UserError, first_line, import_extra, suggest
from augment.support.lazy_torch import nn
from trainer.models.base import Channels, Pretrained, model
from trainer.models.timm_models import Timm


@model("unet")
@dataclass(frozen=True, kw_only=True)
class Unet(Pretrained):
    """A U-Net: a small one of 0.5 million parameters, or one on the features of a model of timm."""

    task: ClassVar[str] = "segment"

    name: str | None = setting(
        Text(optional=True, doc="a model of timm as the encoder, such as resnet18; null: eight convolutions")
    )
    pretrained: bool = setting(
        Flag(default=False, doc="start from timm's weights of the encoder; model.weights takes precedence")
    )

    def build(self, classes: int, size: Size) -> "nn.Module":
        """Build it, with a new decoder and head."""
        from trainer.models import unet

        if self._encoder is None:
            if self.pretrained:
                raise UserError("model.pretrained: true, but without a model.name. Allowed: false, or model.name=NAME.")
            return unet.UnetNetwork(unet.Plain(), unet.Plain.channels, classes)
        try:
            encoder: Any = self._encoder.create(size, features_only=True)
        except (AttributeError, AssertionError, TypeError, KeyError) as error:
            raise UserError(
                f"model.name={self.name}: gives no features of several resolutions ({first_line(error)}). Allowed: "
                "convolutional models of timm, such as resnet18."
            ) from error
        return unet.UnetNetwork(encoder, encoder.feature_info.channels(), classes)

    def normalization(self) -> tuple[Channels, Channels] | None:
        """Return those of the pretrained encoder."""
        return self._encoder.normalization() if self._encoder else None

    def missing(self) -> str | None:
        """Return the address of the encoder's weights."""
        return self._encoder.missing() if self._encoder else ""

    @property
    def _encoder(self) -> Timm | None:
        return None if self.name is None else Timm(name=self.name, pretrained=self.pretrained, weights=self.weights)


@model("smp")
@dataclass(frozen=True, kw_only=True)
class Smp(Pretrained):
    """A model of segmentation-models-pytorch, which is not installed by default."""

    task: ClassVar[str] = "segment"

    architecture: str = setting(
        Text(default="unet", doc="a model of segmentation-models-pytorch, such as fpn, deeplabv3plus or segformer")
    )
    name: str = setting(Text(default="resnet34", doc="its encoder"))
    pretrained: bool = setting(
        Flag(default=False, doc="start from ImageNet weights of the encoder; model.weights takes precedence")
    )

    def build(self, classes: int, size: Size) -> "nn.Module":
        """Build it."""
        smp = import_extra("model=smp", "segmentation-models-pytorch", "smp")
        base = smp.base.SegmentationModel
        known = [name.lower() for name, of in vars(smp).items() if isinstance(of, type) and issubclass(of, base)]
        if self.architecture.lower() not in known:
            raise UserError(f"model.architecture: unknown '{self.architecture}'.{suggest(self.architecture, known)}")
        if not re.fullmatch(r"[\w.-]+", self.name):  # timm would download a model of the hub
            raise UserError(f"model.name: '{self.name}' is not allowed. Allowed: the name of an encoder.")
        weights = "imagenet" if self.loads else None
        try:
            network: nn.Module = smp.create_model(self.architecture, self.name, weights, 3, classes)
        except KeyError as error:
            near = suggest(self.name, smp.encoders.encoders).split(" Allowed:")[0]
            raise UserError(
                f"model.name: unknown encoder '{self.name}'.{near} Allowed: one of the {len(smp.encoders.encoders)} of "
                "segmentation-models-pytorch, or tu- and a model of timm, such as tu-convnext_tiny."
            ) from error
        except (RuntimeError, OSError, ValueError) as error:
            raise UserError(f"model.name={self.name}: {first_line(error)}") from error
        return network

    def normalization(self) -> tuple[Channels, Channels] | None:
        """Return those of the pretrained encoder."""
        if not self.loads:
            return None
        smp = import_extra("model=smp", "segmentation-models-pytorch", "smp")
        if self.name not in smp.encoders.encoders:
            return None
        params = smp.encoders.get_preprocessing_params(self.name)
        return tuple(params["mean"]), tuple(params["std"])
