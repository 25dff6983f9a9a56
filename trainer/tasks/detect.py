"""Detection: any number of objects in each image, a box and a class each.

Metrics are COCO's average precision, by torchmetrics and faster-coco-eval. Outputs are the objects
found in each image, (N, D, 6): left, top, right, bottom, label and score. Targets are the true ones, (N, K, 6): left,
top, right, bottom, label, and 1 for those that do not count, crowds and difficult ones. A row of NaN, or with a score
that is not above 0, is no object.
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

# The lowest score of objects that people look at, and the least IoU of a box that is right.
SHOWN, _RIGHT = 0.5, 0.5


@metric("detect", name="map", title="mAP", within=SHARE, whole=True)
def mean_average_precision(outputs: Tensor, targets: Tensor) -> float:
    """Return COCO's mAP: the mean over the classes, and over IoUs of .5, .55, ..., .95 from which a box is right."""
    return float(average_precisions(outputs, targets)[0].mean())


@metric("detect", name="map50", title="mAP50", within=SHARE, whole=True)
def map_at_50(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean over the classes where a box is right from an IoU of .5 on."""
    return float(average_precisions(outputs, targets)[0][0].mean())


@metric("detect", name="map75", title="mAP75", within=SHARE, whole=True)
def map_at_75(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean over the classes where a box is right from an IoU of .75 on."""
    return float(average_precisions(outputs, targets)[0][5].mean())


@lru_cache(maxsize=1)  # three metrics ask for those of the same pass
def average_precisions(outputs: Tensor, targets: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Return the average precisions of a pass, as COCO's own code computes them, for the classes that have objects.

    At most the 100 objects of the highest scores count in each image, and 101 recalls.

    Returns:
        (10, C) float, for each IoU and class; and the C classes by their labels.
    """
    from torchmetrics.detection import MeanAveragePrecision

    logging.getLogger("faster_coco_eval").setLevel(logging.WARNING)  # it would log a table each time
    # The pass of all ranks is here already: torchmetrics must not gather it once more.
    metric = MeanAveragePrecision(
        # COCO's thresholds: those of torchmetrics are rounded to float32, and miss a recall or an IoU of 0.6.
        iou_thresholds=np.linspace(0.5, 0.95, 10).tolist(),
        rec_thresholds=np.linspace(0, 1, 101).tolist(),
        extended_summary=True,
        backend="faster_coco_eval",
        sync_on_compute=False,
    )
    metric.warn_on_many_detections = False  # more than 100 are cut, as said
    found, true = [image[image[:, 5] > 0] for image in outputs], [image[~image[:, 4].isnan()] for image in targets]
    metric.update(
        [{"boxes": rows[:, :4], "labels": rows[:, 4].long(), "scores": rows[:, 5]} for rows in found],
        [{"boxes": rows[:, :4], "labels": rows[:, 4].long(), "iscrowd": rows[:, 5].long()} for rows in true],
    )
    summary = metric.compute()
    labels = summary["classes"].reshape(-1)
    # (IoUs, recalls, classes, areas, limits): of all areas, at most 100 objects; -1 for a class without objects.
    values = summary["precision"][:, :, :, 0, -1].mean(dim=1)
    known = (values >= 0).all(dim=0)
    return values[:, known], tuple(labels[known].tolist())


@register
class Detect(PlacedTask):
    """Any number of objects in each image, also none."""

    name, kind, own_models, own_loss = "detect", BOXES, True, True
    views = ("none",)
    unit, units = "class", "classes"
    monitor, score, score_title, unit_score = "val_map", "map", "Mean average precision", "average_precision"
    threshold = SHOWN
    figure_file = "classes.png"
    mistakes_title = "Most mistakes"
    mistakes_text = "in which the best epoch missed most objects, or found wrong ones"

    def count(self, number: int) -> str:
        """Return "3 classes", without the background."""
        return super().count(number - 1)

    def require(self) -> None:
        """Check that average precisions can be computed."""
        import_extra("val_map", "faster-coco-eval", "detect")

    def make_losses(
        self, fit: LossSettings, network: nn.Module, device: torch.device, weights: Tensor | None = None
    ) -> tuple[LossFunction, LossFunction]:
        """Return the sum of what the detector returns in training, and nothing in validation."""
        return lambda outputs, targets: outputs.sum(), lambda outputs, targets: outputs.new_zeros(())

    def unmixed(self, targets: Any) -> Tensor:
        """Return a list of dicts as one tensor, (N, K, 6), NaN beyond the objects of an image."""
        rows = [
            torch.cat([of["boxes"], of["labels"][:, None], (of["iscrowd"] | of["difficult"])[:, None]], dim=1)
            for of in targets
        ]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=math.nan)

    def objects(self, output: Tensor, frame: Tensor, size: tuple[int, int], names: Sequence[str]) -> list[FoundObject]:
        """Return the objects of an image, (D, 6), in its pixels, the highest score first.

        Args:
            output: (D, 6).
            frame: (3, 3), from pixels of the image to what outputs are in.
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
        """Return the average precision of each class, at an IoU of .5, too, and its objects and images."""
        values, known = average_precisions(samples.output, samples.target)
        precisions = {
            label: (float(of.mean()), float(of[0])) for label, of in zip(known, values.unbind(1), strict=True)
        }
        labels, counted, scores = samples.target[..., 4], samples.target[..., 5] == 0, {}
        for label, name in list(enumerate(names))[1:]:
            has = (labels == label) & counted
            precision, at_50 = precisions.get(label, (math.nan, math.nan))
            objects, images = int(has.sum()), int(has.any(dim=1).sum())
            scores[name] = {"average_precision": precision, "ap50": at_50, "objects": objects, "images": images}
        return scores

    def figure(self, samples: PlacedSamples, names: Sequence[str]) -> BarChart:
        """Return the average precision of each class."""
        return self.bar_chart(self.per_class(samples, names), "objects", len(names) - 1)

    def section(self, samples: PlacedSamples, names: Sequence[str]) -> tuple[Block, ...]:
        """Return the average precision of each class."""
        return self.bars(
            self.per_class(samples, names),
            "Average precision of each class in the best epoch, the worst first",
            ("average precision", "AP50", "objects", "images"),
            lambda found: (percent(found["ap50"]), str(found["objects"]), str(found["images"])),
            "The mean over IoUs of .5 to .95 from which a box is right, as COCO's; AP50: at .5 alone.",
        )

    def findings(self, samples: PlacedSamples, names: Sequence[str]) -> Iterator[Finding]:
        """Yield the worst class, and how many classes no object has."""
        absent = "has no object in validation and does", "have no object in validation and do"
        return self.worst(self.per_class(samples, names), "average precision", "object", absent)

    def draw_places(self, sides: tuple[Drawing, Drawing], target: Tensor, output: Tensor, matrix: Tensor) -> None:
        """Draw objects in the colors of their classes."""
        for side, rows in zip(sides, (target[~target[:, 4].isnan()], output[output[:, 5] >= SHOWN]), strict=True):
            side.boxes(boxes_at(rows[:, :4], matrix).numpy(), rows[:, 4].long().tolist())

    def mistakes(self, samples: PlacedSamples, names: Sequence[str]) -> Iterator[WrongSample]:
        """Yield the images by their missed and wrong objects, of those with a score of .5 and above."""
        found = []
        for i, (target, output) in enumerate(zip(samples.target, samples.output, strict=True)):
            missed, wrong = _compare(target, output)
            if missed or wrong:
                found.append((len(missed) + len(wrong), i, missed, wrong))
        for _, i, missed, wrong in sorted(found, key=lambda row: -row[0]):
            parts = [("missed", missed), ("wrong", wrong)]
            text = "; ".join(f"{what} {counted(labels, names)}" for what, labels in parts if labels)
            rows = samples.target[i]
            yield WrongSample(i, counted(rows[~rows[:, 4].isnan(), 4].long().tolist(), names), text)


def boxes_at(boxes: Tensor, matrix: Tensor) -> Tensor:
    """Return the hulls of boxes, (K, 4) float64, moved by a matrix between pixels, (3, 3)."""
    corners = boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2).double() - 0.5
    moved = placed(corners.reshape(1, -1, 2), matrix[None]).reshape(-1, 4, 2) + 0.5
    return torch.cat([moved.amin(dim=1), moved.amax(dim=1)], dim=1)


def _compare(target: Tensor, output: Tensor) -> tuple[list[int], list[int]]:
    """Return the labels of the objects of an image that were missed, and of those found that are none.

    The found ones take the object of their class with the largest IoU, the highest scores first. One that does not
    count may be found or not.
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
