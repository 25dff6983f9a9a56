"""Detection: any number of objects in each image, each with a box and a class.

Metrics are COCO's average precision, computed by torchmetrics and faster-coco-eval. Outputs are the objects found in
each image, (N, D, 6): left, top, right, bottom, label and score. Targets are the true objects, (N, K, 6): left, top,
right, bottom, label, and 1 for crowds and difficult objects, which do not count. Rows of NaN, and rows with a score of
0 or less, are padding.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from augment.data.targets.boxes import BOXES, counted
from augment.support.errors import import_extra
from augment.support.formatting import percent
from augment.support.lazy_torch import Tensor, nn, torch
from trainer.tasks.display import BarChart, Block, Finding, FoundObject, WrongSample
from trainer.tasks.keypoints import PlacedSamples, PlacedTask, placed
from trainer.tasks.loss import LossFunction, LossSettings
from trainer.tasks.metric import SHARE, metric
from trainer.tasks.registry import register

if TYPE_CHECKING:
    from augment.drawing.target_overlays import Drawing

SHOWN = 0.5  # lowest score of objects that are shown
_RIGHT = 0.5  # lowest IoU of a correct box


@metric("detect", name="map", title="mAP", within=SHARE, whole=True)
def mean_average_precision(outputs: Tensor, targets: Tensor) -> float:
    """Return COCO's mAP: the mean over classes and over IoU thresholds of 0.5, 0.55, ..., 0.95."""
    return float(average_precisions(outputs, targets)[0].mean())


@metric("detect", name="map50", title="mAP50", within=SHARE, whole=True)
def map_at_50(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean average precision at an IoU threshold of 0.5."""
    return float(average_precisions(outputs, targets)[0][0].mean())


@metric("detect", name="map75", title="mAP75", within=SHARE, whole=True)
def map_at_75(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean average precision at an IoU threshold of 0.75."""
    return float(average_precisions(outputs, targets)[0][5].mean())


@lru_cache(maxsize=1)  # all three metrics use the values of the same pass
def average_precisions(outputs: Tensor, targets: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Compute the average precisions of a pass as COCO's own code does, for the classes that have objects.

    Only the 100 objects with the highest scores count in each image. Precision is averaged over 101 recall values.

    Returns:
        (10, C) average precisions for each IoU threshold and class, and the labels of the C classes.
    """
    from torchmetrics.detection import MeanAveragePrecision

    logging.getLogger("faster_coco_eval").setLevel(logging.WARNING)  # otherwise it prints a table for each pass
    metric = MeanAveragePrecision(
        # COCO's thresholds. torchmetrics rounds its defaults to float32, so a recall or an IoU of exactly 0.6 misses.
        iou_thresholds=np.linspace(0.5, 0.95, 10).tolist(),
        rec_thresholds=np.linspace(0, 1, 101).tolist(),
        extended_summary=True,
        backend="faster_coco_eval",
        sync_on_compute=False,  # the outputs already come from all ranks
    )
    metric.warn_on_many_detections = False
    found = [image[image[:, 5] > 0] for image in outputs]
    true = [image[~image[:, 4].isnan()] for image in targets]
    metric.update(
        [{"boxes": rows[:, :4], "labels": rows[:, 4].long(), "scores": rows[:, 5]} for rows in found],
        [{"boxes": rows[:, :4], "labels": rows[:, 4].long(), "iscrowd": rows[:, 5].long()} for rows in true],
    )
    summary = metric.compute()
    labels = summary["classes"].reshape(-1)
    # The dimensions are (IoUs, recalls, classes, areas, limits). Select all areas, and the limit of 100 objects.
    # Classes without objects have the value -1.
    values = summary["precision"][:, :, :, 0, -1].mean(dim=1)
    known = (values >= 0).all(dim=0)
    return values[:, known], tuple(labels[known].tolist())


@register
class Detect(PlacedTask):
    """Any number of objects in each image, including none."""

    name, kind, own_models, own_loss = "detect", BOXES, True, True
    views = ("none",)
    unit, units = "class", "classes"
    monitor, score, score_title, unit_score = "val_map", "map", "Mean average precision", "average_precision"
    threshold = SHOWN
    figure_file = "classes.png"
    mistakes_title = "Most mistakes"
    mistakes_text = "with the most missed or wrong objects in the best epoch"

    def count(self, number: int) -> str:
        """Return a text such as "3 classes", without counting the background."""
        return super().count(number - 1)

    def require(self) -> None:
        import_extra("val_map", "faster-coco-eval", "detect")

    def make_losses(
        self, fit: LossSettings, network: nn.Module, device: torch.device, weights: Tensor | None = None
    ) -> tuple[LossFunction, LossFunction]:
        """Return the sum of the detector's own losses for training, and 0 for validation."""
        return lambda outputs, targets: outputs.sum(), lambda outputs, targets: outputs.new_zeros(())

    def unmixed(self, targets: Any) -> Tensor:
        """Return the targets of the images as one tensor, (N, K, 6), padded with NaN."""
        rows = []
        for target in targets:
            ignored = target["iscrowd"] | target["difficult"]
            rows.append(torch.cat([target["boxes"], target["labels"][:, None], ignored[:, None]], dim=1))
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=math.nan)

    def objects(self, output: Tensor, frame: Tensor, size: tuple[int, int], names: Sequence[str]) -> list[FoundObject]:
        """Return the objects of an image, with boxes in its pixels, the highest score first.

        Args:
            output: (D, 6).
            frame: (3, 3) matrix from pixels of the image to output coordinates.
            size: width and height of the image, to which boxes are clipped.
            names: names of the classes.
        """
        known = output[output[:, 5] > 0]
        boxes = boxes_at(known[:, :4], frame.inverse())
        limits = boxes.new_tensor([*size, *size])
        boxes = boxes.clamp(min=0).minimum(limits)
        rows = zip(boxes.tolist(), known[:, 4].long().tolist(), known[:, 5].tolist(), strict=True)
        found = [FoundObject(names[label], label, score, tuple(box)) for box, label, score in rows]
        return sorted((of for of in found if of.width > 0 and of.height > 0), key=lambda of: -of.score)

    def per_class(self, samples: PlacedSamples, names: Sequence[str]) -> dict[str, dict[str, float]]:
        """Return COCO's average precision, AP50, and the numbers of objects and images of each class."""
        values, known = average_precisions(samples.output, samples.target)
        precisions = dict(zip(known, values.unbind(1), strict=True))
        unknown = torch.full((1,), math.nan)
        labels, counted, scores = samples.target[..., 4], samples.target[..., 5] == 0, {}
        for label, name in enumerate(names[1:], 1):
            has = (labels == label) & counted
            by_iou = precisions.get(label, unknown)
            scores[name] = {
                "average_precision": float(by_iou.mean()),
                "ap50": float(by_iou[0]),
                "objects": int(has.sum()),
                "images": int(has.any(dim=1).sum()),
            }
        return scores

    def figure(self, samples: PlacedSamples, names: Sequence[str]) -> BarChart:
        return self.bar_chart(self.per_class(samples, names), "objects", len(names) - 1)

    def section(self, samples: PlacedSamples, names: Sequence[str]) -> tuple[Block, ...]:
        return self.bars(
            self.per_class(samples, names),
            "Average precision of each class in the best epoch, the worst first",
            ("average precision", "AP50", "objects", "images"),
            lambda found: (percent(found["ap50"]), str(found["objects"]), str(found["images"])),
            "Average precision is the mean over IoU thresholds of 0.5 to 0.95, as in COCO. AP50 uses 0.5 only.",
        )

    def findings(self, samples: PlacedSamples, names: Sequence[str]) -> Iterator[Finding]:
        absent = "has no object in validation and does", "have no object in validation and do"
        return self.worst(self.per_class(samples, names), "average precision", "object", absent)

    def draw_places(self, sides: tuple[Drawing, Drawing], target: Tensor, output: Tensor, matrix: Tensor) -> None:
        for side, rows in zip(sides, (target[~target[:, 4].isnan()], output[output[:, 5] >= SHOWN]), strict=True):
            side.boxes(boxes_at(rows[:, :4], matrix).numpy(), rows[:, 4].long().tolist())

    def mistakes(self, samples: PlacedSamples, names: Sequence[str]) -> Iterator[WrongSample]:
        """Yield the images with missed or wrong objects, most first. Objects with a score below 0.5 do not count."""
        found = []
        for i, (target, output) in enumerate(zip(samples.target, samples.output, strict=True)):
            missed, wrong = _compare(target, output)
            if missed or wrong:
                found.append((i, missed, wrong))
        for i, missed, wrong in sorted(found, key=lambda row: -len(row[1]) - len(row[2])):
            parts = [("missed", missed), ("wrong", wrong)]
            text = "; ".join(f"{what} {counted(labels, names)}" for what, labels in parts if labels)
            rows = samples.target[i]
            yield WrongSample(i, counted(rows[~rows[:, 4].isnan(), 4].long().tolist(), names), text)


def boxes_at(boxes: Tensor, matrix: Tensor) -> Tensor:
    """Transform boxes, (K, 4), with a pixel-to-pixel matrix, (3, 3). Return their bounding boxes, float64."""
    corners = boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2).double() - 0.5
    moved = placed(corners.reshape(1, -1, 2), matrix[None]).reshape(-1, 4, 2) + 0.5
    return torch.cat([moved.amin(dim=1), moved.amax(dim=1)], dim=1)


def _compare(target: Tensor, output: Tensor) -> tuple[list[int], list[int]]:
    """Return the labels of an image's missed objects and of its wrong objects.

    Found objects are matched in descending order of score. Each takes the remaining true object of its class with the
    largest IoU. A found or missed crowd or difficult object is not a mistake.
    """
    from torchvision.ops import box_iou

    true = target[~target[:, 4].isnan()]
    found = output[output[:, 5] >= SHOWN]
    found = found[found[:, 5].argsort(descending=True, stable=True)]
    overlaps = box_iou(found[:, :4], true[:, :4]) * (found[:, 4:5] == true[:, 4])
    left, wrong = set(range(len(true))), []
    for row, label in zip(overlaps, found[:, 4].long().tolist(), strict=True):
        fitting = [n for n in row.argsort(descending=True, stable=True).tolist() if row[n] >= _RIGHT]
        best = next((n for n in fitting if n in left), None)
        if best is not None:
            left.discard(best)
        elif not any(true[n, 5] for n in fitting):
            wrong.append(label)
    return [int(true[n, 4]) for n in sorted(left) if not true[n, 5]], wrong
