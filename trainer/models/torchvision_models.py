"""torchvision models. Only their methods import torchvision, because the import takes seconds."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from augment.params import Choice, Flag, Size, Text, setting
from augment.recipe.steps import IMAGENET_MEAN, IMAGENET_STD
from augment.support.errors import UserError, suggest
from augment.support.lazy_torch import Tensor, nn, torch
from trainer.models.base import Channels, Pretrained, model

_BACKBONES = ("resnet50", "resnet101", "mobilenet_v3_large")  # backbones with pretrained weights


class Backbone(Pretrained):
    """Base class of torchvision models whose backbone may have pretrained weights."""

    cache = "TORCH_HOME"
    name: str

    def download_url(self) -> str | None:
        """Return the URL of the backbone's weights, unless they are cached."""
        backbone = next((known for known in _BACKBONES if known in self.name), "")
        if not self.loads or not backbone:
            return ""
        from torchvision.models import get_model_weights

        url = str(get_model_weights(backbone)["DEFAULT"].url)
        return "" if (Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]).exists() else url

    def set_channels(self, network: "nn.Module", channels: int) -> None:
        """Replace the weights of the first convolution if the images do not have three channels.

        Pretrained weights are adapted as in timm. New weights are initialized as in torchvision.
        """
        first = next(module for module in network.modules() if isinstance(module, nn.Conv2d))
        if channels == first.in_channels:
            return
        from timm.models import adapt_input_conv

        old = first.weight.data
        weight = old.new_empty(len(old), channels, *first.kernel_size)
        if self.loads:
            weight = adapt_input_conv(channels, old)
        elif not weight.is_meta:
            nn.init.kaiming_normal_(weight, mode="fan_out")
        first.in_channels, first.weight = channels, nn.Parameter(weight)


_SMALL = "fcos_cnn"  # for two CPU cores, see `trainer.models.torchvision_detector.small_fcos`
# Name of a function in torchvision.models.detection -> number of trainable parts of its backbone.
_TRAINABLE_PARTS = {
    "fasterrcnn_mobilenet_v3_large_320_fpn": 6,
    "fasterrcnn_mobilenet_v3_large_fpn": 6,
    "fasterrcnn_resnet50_fpn": 5,
    "fcos_resnet50_fpn": 5,
    "maskrcnn_resnet50_fpn": 5,
    "retinanet_resnet50_fpn": 5,
    "ssdlite320_mobilenet_v3_large": 6,
}
# Detectors without pretrained backbones. torchvision has no weights for fcos_cnn, and builds a differently shaped
# backbone of ssdlite320 if it loads weights.
_NO_BACKBONE = (_SMALL, "ssdlite320_mobilenet_v3_large")


@model("detector")
@dataclass(frozen=True, kw_only=True)
class Detector(Backbone):
    """A torchvision detector. The recipe, not torchvision, resizes and normalizes images."""

    task: ClassVar[str] = "detect"
    any_size: ClassVar[bool] = True

    name: str = setting(
        Choice(
            default=_SMALL,
            options=(_SMALL, *_TRAINABLE_PARTS),
            doc="detector of torchvision.models.detection. fcos_cnn is torchvision's FCOS on seven "
            "convolutions, for quick starts. maskrcnn_resnet50_fpn also predicts masks, and needs data.instances=true",
        )
    )
    pretrained: bool = setting(
        Flag(
            default=False,
            doc="start from torchvision's backbone weights, which are downloaded once. model.weights takes "
            "precedence and may be a file of a whole detector",
        )
    )
    freeze_norms: bool = setting(
        Flag(default=False, doc="keep the backbone's batch norms unchanged, for pretrained weights and small batches")
    )

    @property
    def masks(self) -> bool:
        """Whether the detector predicts a mask for each object."""
        return self.name.startswith("maskrcnn")

    def build(self, classes: int, size: Size, channels: int = 3) -> "nn.Module":
        """Build the detector. The classes include the background."""
        from torchvision.models import detection

        from trainer.models.torchvision_detector import DetectorNetwork, small_fcos

        if self.loads and self.name in _NO_BACKBONE:
            raise UserError(
                f"model.pretrained=true: torchvision has no backbone weights for {self.name}. Set "
                "model.pretrained=false, or model.weights=FILE with weights of the whole detector."
            )
        if self.name == _SMALL:
            return DetectorNetwork(small_fcos(classes, channels), freeze_norms=self.freeze_norms)
        options: dict[str, Any] = {"weights_backbone": None}
        if self.loads:
            options = {"weights_backbone": "DEFAULT", "trainable_backbone_layers": _TRAINABLE_PARTS[self.name]}
        detector = getattr(detection, self.name)(weights=None, num_classes=classes, **options)
        self.set_channels(detector, channels)
        return DetectorNetwork(detector, freeze_norms=self.freeze_norms)

    def convert(self, tensors: Mapping[str, "Tensor"], network: "nn.Module") -> Mapping[str, "Tensor"]:
        """Rename the tensors of torchvision's own file."""
        return {f"detector.{name}": tensor for name, tensor in tensors.items()}


@model("torchvision")
@dataclass(frozen=True, kw_only=True)
class Torchvision(Backbone):
    """A torchvision segmentation model, selected by its name."""

    task: ClassVar[str] = "segment"

    name: str = setting(
        Text(required=True, doc="name of a torchvision segmentation model, such as lraspp_mobilenet_v3_large")
    )
    pretrained: bool = setting(
        Flag(default=False, doc="start from ImageNet backbone weights. model.weights takes precedence")
    )

    def build(self, classes: int, size: Size, channels: int = 3) -> "nn.Module":
        from torchvision.models import get_model, list_models, segmentation

        if self.name not in (known := list_models(module=segmentation)):
            raise UserError(f"model.name: unknown model '{self.name}'.{suggest(self.name, known)}")
        backbone = "DEFAULT" if self.loads else None
        network: nn.Module = get_model(self.name, weights=None, weights_backbone=backbone, num_classes=classes)
        self.set_channels(network, channels)
        # A hook instead of a wrapping module, so that tensors keep torchvision's names.
        network.register_forward_hook(lambda _network, _images, outputs: outputs["out"])
        return network

    def normalization(self) -> tuple[Channels, Channels] | None:
        return (IMAGENET_MEAN, IMAGENET_STD) if self.loads else None

    def convert(self, tensors: Mapping[str, "Tensor"], network: "nn.Module") -> Mapping[str, "Tensor"]:
        """Drop the auxiliary classifier, which is not trained here."""
        return {name: tensor for name, tensor in tensors.items() if not name.startswith("aux_classifier.")}
