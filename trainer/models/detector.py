"""Detectors of torchvision: settings that build them, and import torchvision only then, which takes seconds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from augment.params import Choice, Flag, Size, setting
from augment.support.errors import UserError
from augment.support.lazy import Tensor, nn
from trainer.models.backbones import Backbone
from trainer.models.base import model

# The small one, for two CPU cores, see `trainer.models.detecting.small_fcos`.
_SMALL = "fcos_cnn"
# Name of a function in torchvision.models.detection -> how many parts of its backbone can be trained.
_NAMES = {
    "fasterrcnn_mobilenet_v3_large_320_fpn": 6,
    "fasterrcnn_mobilenet_v3_large_fpn": 6,
    "fasterrcnn_resnet50_fpn": 5,
    "fcos_resnet50_fpn": 5,
    "maskrcnn_resnet50_fpn": 5,
    "retinanet_resnet50_fpn": 5,
    "ssdlite320_mobilenet_v3_large": 6,
}
# There are no weights for the one's backbone; the other's has another shape where it starts from weights.
_NO_BACKBONE = (_SMALL, "ssdlite320_mobilenet_v3_large")


@model("detector")
@dataclass(frozen=True, kw_only=True)
class Detector(Backbone):
    """A detector of torchvision, by its name there; images keep the size and the colors that the recipe gives them."""

    task: ClassVar[str] = "detect"
    any_size: ClassVar[bool] = True

    name: str = setting(
        Choice(
            default=_SMALL,
            options=(_SMALL, *_NAMES),
            doc="a detector of torchvision.models.detection, or its FCOS on seven convolutions, for quick starts; "
            "maskrcnn also learns masks, which are not scored",
        )
    )
    pretrained: bool = setting(
        Flag(
            default=False,
            doc="start from torchvision's weights of the backbone, which are downloaded once; model.weights takes "
            "precedence, and may be a file of a whole detector",
        )
    )
    freeze_norms: bool = setting(
        Flag(default=False, doc="keep batch norms of the backbone as they are, for pretrained ones and small batches")
    )

    def build(self, classes: int, size: Size) -> "nn.Module":
        """Build it for so many classes, one of which is the background."""
        from torchvision.models import detection

        from trainer.models.detecting import DetectorNetwork, small_fcos

        if self.loads and self.name in _NO_BACKBONE:
            raise UserError(
                f"model.pretrained: true, but torchvision has no backbone for {self.name}. Allowed: false, or "
                "model.weights=FILE of the whole detector."
            )
        if self.name == _SMALL:
            return DetectorNetwork(small_fcos(classes), freeze_norms=self.freeze_norms)
        weights = {"weights_backbone": "DEFAULT", "trainable_backbone_layers": _NAMES[self.name]}
        built = getattr(detection, self.name)(
            weights=None, num_classes=classes, **(weights if self.loads else {"weights_backbone": None})
        )
        return DetectorNetwork(built, freeze_norms=self.freeze_norms)

    def convert(self, tensors: Mapping[str, "Tensor"], network: "nn.Module") -> Mapping[str, "Tensor"]:
        """Return the tensors of torchvision's file by the names of the network."""
        return {f"detector.{name}": tensor for name, tensor in tensors.items()}
