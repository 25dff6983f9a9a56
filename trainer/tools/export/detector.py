"""A detector as one graph: preprocessing, decoding and non-maximum suppression."""

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.functional import pad
from torchvision.models.detection import _utils
from torchvision.ops import boxes as box_ops

from augment.recipe.plan import Plan
from trainer.run.best_model import LoadedModel
from trainer.tools.export.graph import Served


class ServedDetector(Served):
    """Runs a trained detector on one image.

    Attributes:
        outputs: boxes (K, 4) float32: left, top, right and bottom edges in pixels, clipped to the image. Scores (K,)
            float32, the highest first. Labels (K,) int64. Mask R-CNN also has masks (K, 1, 28, 28) float32, which are
            probabilities on a grid in each box.
    """

    single = True

    def __init__(self, trained: LoadedModel, plan: Plan) -> None:
        super().__init__(trained, plan)
        self._detector: Any = self.network.detector
        masks = ("masks",) if getattr(getattr(self._detector, "roi_heads", None), "mask_predictor", None) else ()
        self.outputs = ("boxes", "scores", "labels", *masks)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs.

        Args:
            images: (1, height, width, C) of the stored data type, such as uint8 RGB.
        """
        found = self._detector([self.crop(images)[0]])[0]
        found["boxes"] = self.crop.boxes_in(images, found["boxes"])
        kept = (found["boxes"][:, 2:] > found["boxes"][:, :2]).all(dim=1) & (found["labels"] > 0)
        return tuple(found[name][kept] for name in self.outputs)

    def export(self) -> torch.export.ExportedProgram:
        """Return the graph for one image of any height and width."""
        with (
            # The control flow of the originals depends on the number of objects.
            patch.object(_utils, "_topk_min", lambda values, most, axis: torch.sym_min(most, values.size(axis))),
            patch.object(box_ops, "batched_nms", _nms_of_each_class),
            patch.object(_utils.BoxCoder, "decode", _decode),
            # The original copies the image in place into a new tensor of zeros, which the graph would keep as a
            # constant.
            patch.object(self._detector.transform, "batch_images", _padded),
            # The original rescales boxes by 1, and pastes masks into the image. Exported masks stay relative to boxes.
            patch.object(self._detector.transform, "postprocess", lambda found, *_: found),
        ):
            return super().export()


def _decode(coder: Any, codes: Tensor, boxes: Sequence[Tensor]) -> Any:
    """Compute `BoxCoder.decode`, (K, classes, 4), without branches."""
    return coder.decode_single(codes, torch.cat([*boxes])).unflatten(1, (-1, 4))


def _padded(images: Sequence[Tensor], size_divisible: int) -> Tensor:
    """Pad an image at the right and bottom edges to a multiple of `size_divisible`. Return a batch."""
    height, width = images[0].shape[1:]
    return pad(images[0], (0, -width % size_divisible, 0, -height % size_divisible))[None]


def _nms_of_each_class(boxes: Tensor, scores: Tensor, labels: Tensor, threshold: float) -> Any:
    """Compute torchvision's `batched_nms` without branches. Boxes of different classes are moved apart."""
    # torch.export assumes that nms keeps at least two boxes. These two overlap no other, come last, and are cut off.
    extra = boxes.new_tensor([[-2, -2, -1, -1], [-4, -4, -3, -3]])
    side = torch.cat([boxes, extra]).amax(dim=(0, 1)) + 1
    boxes = torch.cat([boxes + (labels.to(boxes) * side)[:, None], extra])
    return box_ops.nms(boxes, torch.cat([scores, scores.new_tensor([-1, -2])]), threshold)[:-2]
