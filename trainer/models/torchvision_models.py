"""Models of torchvision: settings that build them, and import torchvision only then, which takes seconds."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from augment.params import Choice, Flag, Size, Text, setting
from augment.recipe.steps import IMAGENET_MEAN, IMAGENET_STD
from augment.support.errors import UserError, suggest
from augment.support.lazy_torch import Tensor, nn, torch
from trainer.models.base import Channels, Pretrained, model

_BACKBONES = ("resnet50", "resnet101", "mobilenet_v3_large")  # which are in the names of the models


class Backbone(Pretrained):
    """Base of the models of torchvision that start from weights of their backbone."""

    cache = "TORCH_HOME"
    name: str

    def missing(self) -> str | None:
        """Return the address of the backbone's weights, unless they are in PyTorch's cache."""
        backbone = next((known for known in _BACKBONES if known in self.name), "")
        if not self.loads or not backbone:
            return ""
        from torchvision.models import get_model_weights

        url = str(get_model_weights(backbone)["DEFAULT"].url)
        return "" if (Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]).exists() else url


# The small one, for two CPU cores, see `trainer.models.torchvision_detector.small_fcos`.
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

        from trainer.models.torchvision_detector import DetectorNetwork, small_fcos

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


@model("torchvision")
@dataclass(frozen=True, kw_only=True)
class Torchvision(Backbone):
    """A segmentation model of torchvision, by its name there."""

    task: ClassVar[str] = "segment"

    name: str = setting(Text(required=True, doc="a segmentation model of torchvision, like lraspp_mobilenet_v3_large"))
    pretrained: bool = setting(
        Flag(default=False, doc="start from ImageNet weights of the backbone; model.weights takes precedence")
    )

    def build(self, classes: int, size: Size) -> "nn.Module":
        """Build it."""
        from torchvision.models import get_model, list_models, segmentation

        if self.name not in (known := list_models(module=segmentation)):
            raise UserError(f"model.name: unknown model '{self.name}'.{suggest(self.name, known)}")
        backbone = "DEFAULT" if self.loads else None
        network: nn.Module = get_model(self.name, weights=None, weights_backbone=backbone, num_classes=classes)
        # Not a module around it, so that names of tensors are torchvision's.
        network.register_forward_hook(lambda _network, _images, outputs: outputs["out"])
        return network

    def normalization(self) -> tuple[Channels, Channels] | None:
        """Return those of ImageNet with a pretrained backbone."""
        return (IMAGENET_MEAN, IMAGENET_STD) if self.loads else None

    def convert(self, tensors: Mapping[str, "Tensor"], network: "nn.Module") -> Mapping[str, "Tensor"]:
        """Return the tensors without those of an auxiliary classifier, which is not trained here."""
        return {name: tensor for name, tensor in tensors.items() if not name.startswith("aux_classifier.")}
