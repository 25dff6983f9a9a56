"""torchvision detectors that take batches of images, and return tensors of a fixed shape."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils._pytree import tree_map_only
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.fcos import FCOS, FCOSHead
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import FeaturePyramidNetwork, FrozenBatchNorm2d

from trainer.models.unet import convolution

DETECTIONS = 100  # maximum number of detected objects in an image, as in COCO
_LOWEST_SCORE = 0.05  # torchvision's FCOS omits objects below 0.2, which lowers the mAP of weak models

# The modules whose outputs torchvision decodes.
_HEADS = ("head", "rpn.head", "roi_heads.box_predictor", "roi_heads.mask_predictor")


class DetectorNetwork(nn.Module):
    """Runs a detector on batches of images that are already normalized and resized.

    In training, it also takes targets, and returns losses, (L,). Otherwise, it returns detected objects, (N, 100, 6):
    left, top, right and bottom edge in pixels, label and score. Unused rows have score 0.

    If `masks` is true, each row also contains the object's mask: 28 x 28 probabilities on a grid that covers the box.
    """

    def __init__(self, detector: nn.Module, *, freeze_norms: bool = False) -> None:
        super().__init__()
        self.detector: Any = detector
        self.detector.transform = _PadOnly(detector.transform)
        heads: Any = getattr(detector, "roi_heads", detector)
        heads.detections_per_img = DETECTIONS
        heads.score_thresh = min(heads.score_thresh, _LOWEST_SCORE)
        self.masks = getattr(heads, "mask_predictor", None) is not None
        _thaw(detector)
        for name, module in detector.named_modules():
            if name in _HEADS:  # otherwise, autocast rounds positions and labels to bfloat16, such as 603 to 604
                module.register_forward_hook(lambda *given: tree_map_only(Tensor, Tensor.float, given[-1]))
        backbone: Any = detector.backbone
        norms = [module for module in backbone.modules() if isinstance(module, nn.BatchNorm2d)]
        self._frozen_norms = norms if freeze_norms else []
        for norm in self._frozen_norms:
            norm.requires_grad_(requires_grad=False)

    def train(self, mode: bool = True) -> "DetectorNetwork":
        """Set the mode of all modules except frozen norms."""
        super().train(mode)
        for norm in self._frozen_norms:
            norm.eval()
        return self

    def forward(self, images: Tensor, targets: Sequence[Mapping[str, Tensor]] = ()) -> Tensor:
        """Return losses, (L,), in training, or else objects, (N, 100, 6) or wider."""
        pixels = images.float()
        if not self.training:
            rows = []
            for objects in self.detector(list(pixels)):
                columns = [objects["boxes"], objects["labels"][:, None], objects["scores"][:, None]]
                if self.masks:
                    columns.append(objects["masks"].flatten(1))
                rows.append(torch.cat(columns, dim=1)[objects["labels"] > 0])  # FCOS and RetinaNet also score class 0
            return torch.stack([pad(row, (0, 0, 0, DETECTIONS - len(row))) for row in rows])
        if self.masks:  # a batch without objects has no masks
            no_masks = pixels.new_zeros(0, *pixels.shape[2:], dtype=torch.uint8)
            targets = [{"masks": no_masks, **target} for target in targets]
        losses = self.detector(list(pixels), list(targets))
        return torch.stack([cast(Tensor, loss) for loss in losses.values()])


def small_fcos(classes: int, channels: int = 3) -> nn.Module:
    """Return FCOS (Tian et al. 2019, arXiv:1904.01355) on a small network. The classes include the background.

    The detector has 0.9 million parameters. Its heads are half as deep as in the original.
    """
    backbone, anchors = _SmallBackbone(channels), AnchorGenerator(((8,), (16,), (32,)), ((1.0,),) * 3)
    head = FCOSHead(backbone.out_channels, 1, classes, num_convs=2)
    detector: nn.Module = FCOS(backbone, classes, anchor_generator=anchors, head=head)
    return detector


class _SmallBackbone(nn.Module):
    """Seven 3x3 convolutions, and a feature pyramid at strides 8, 16 and 32."""

    def __init__(self, inputs: int = 3) -> None:
        super().__init__()
        self.out_channels = 64
        widths = (inputs, 16, 32, 64, 64, 128, 128, 256)
        strides = (2, 2, 1, 2, 2, 1, 2)
        self.layers = nn.ModuleList(
            nn.Sequential(*convolution(*sizes)) for sizes in zip(widths, widths[1:], strides, strict=False)
        )
        self.fpn = FeaturePyramidNetwork([64, 128, 256], self.out_channels)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        features = [images]
        for layer in self.layers:
            features.append(layer(features[-1]))
        pyramid: dict[str, Tensor] = self.fpn({"0": features[4], "1": features[6], "2": features[7]})
        return pyramid


class _PadOnly(GeneralizedRCNNTransform):  # type: ignore[misc]
    """Pads images to a multiple of the detector's stride, but does not resize or normalize them.

    Predicted masks stay small grids, because full masks would fill the memory.
    """

    def __init__(self, replaced: Any) -> None:
        super().__init__(replaced.min_size, replaced.max_size, [], [], size_divisible=replaced.size_divisible)

    def normalize(self, image: Tensor) -> Tensor:
        return image

    def resize(self, image: Tensor, target: dict[str, Tensor] | None = None) -> tuple[Tensor, dict[str, Tensor] | None]:
        return image, target

    def postprocess(self, result: Any, image_shapes: Any, original_image_sizes: Any) -> Any:
        return result


def _thaw(module: nn.Module) -> None:
    """Replace frozen batch norms with trainable ones, so that pretrained networks have the same modules as others."""
    for name, child in module.named_children():
        if isinstance(child, FrozenBatchNorm2d):
            norm = nn.BatchNorm2d(len(child.weight), eps=child.eps)
            norm.load_state_dict(child.state_dict(), strict=False)
            setattr(module, name, norm)
        else:
            _thaw(child)
