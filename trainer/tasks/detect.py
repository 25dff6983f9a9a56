"""Detection: any number of objects in each image, each with a box and a class.

Metrics are COCO's average precision, computed by faster-coco-eval. Outputs are the objects found in each image,
(N, D, 6): left, top, right, bottom, label and score. Targets are the true objects, (N, K, 6): left, top, right, bottom,
label, and 1 for crowds and difficult objects, which do not count. Rows of NaN, and output rows with a score of 0 or
less, are padding. Detectors with masks add columns to outputs, see `trainer.tasks.instance_masks`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from augment.data.targets.boxes import BOXES, counted
from augment.support.errors import import_extra
from augment.support.formatting import percent
from augment.support.lazy_torch import Tensor, nn, torch
from trainer.tasks.display import BarChart, Block, Evaluation, Finding, FoundObject, WrongSample
from trainer.tasks.instance_masks import COLUMNS, mask_overlaps, object_masks
from trainer.tasks.keypoints import CoordinateSamples, CoordinateTask, transform_points
from trainer.tasks.loss import LossFunction, LossSettings
from trainer.tasks.metric import SHARE, mean_of_known, metric
from trainer.tasks.object_matches import best_thresholds, match_all, match_objects, rates_at
from trainer.tasks.registry import register

if TYPE_CHECKING:
    from augment.drawing.target_overlays import Drawing


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


@metric("detect", name="mask_map", title="mask mAP", within=SHARE, whole=True, needs="masks")
def mask_mean_average_precision(outputs: Tensor, targets: Tensor) -> float:
    """Return COCO's mAP with the IoU of instance masks instead of boxes."""
    if targets[~targets[..., 4].isnan()].isnan().any():  # true objects without masks
        return math.nan
    return float(average_precisions(outputs, targets, masks=True)[0].mean())


@lru_cache(maxsize=1)  # shared by the three box metrics
def average_precisions(outputs: Tensor, targets: Tensor, *, masks: bool = False) -> tuple[Tensor, tuple[int, ...]]:
    """Compute the average precisions of a pass as COCO's own code does, for the classes with true objects.

    Only the 100 objects with the highest scores count for each image and class. Precision is averaged over 101 recall
    values. With `masks`, it compares masks instead of boxes, see `Detect.keep_matches`.

    Returns:
        The average precisions for each IoU threshold and class, (10, C), and the labels of the C classes.
    """
    from faster_coco_eval import COCOeval_faster

    logging.getLogger("faster_coco_eval").setLevel(logging.WARNING)  # suppresses a table per pass
    is_true, is_found = ~targets[..., 4].isnan(), outputs[..., 5] > 0
    labels = sorted({*targets[is_true][:, 4].long().tolist(), *outputs[is_found][:, 4].long().tolist()})
    truth = _as_coco(targets, is_true, labels, is_truth=True)
    results = _as_coco(outputs, is_found, labels, is_truth=False)

    def overlaps_of_masks(image: int, label: int) -> Any:
        columns = (is_found[image] & (outputs[image, :, 4] == label)).nonzero()[:, 0]
        columns = columns[outputs[image, columns, 5].argsort(descending=True, stable=True)]
        return targets[image, targets[image, :, 4] == label][:, COLUMNS + columns].T.tolist()

    judge = COCOeval_faster(truth, results, iouType="bbox")
    if masks:
        judge.computeIoU = overlaps_of_masks
    judge.evaluate()
    judge.accumulate()
    # The dimensions are (IoUs, recalls, classes, areas, limits). Select all areas, and the limit of 100 objects.
    # Classes without true objects have the value -1.
    values = torch.tensor(judge.eval["precision"])[:, :, :, 0, -1].mean(dim=1)
    kept = (values >= 0).all(dim=0)
    return values[:, kept], tuple(torch.tensor(labels)[kept].tolist())


def _as_coco(rows: Tensor, known: Tensor, labels: Sequence[int], *, is_truth: bool) -> Any:
    """Return the objects of a pass, (N, K, 6), as a COCO dataset. `known` selects them, (N, K) bool."""
    from faster_coco_eval import COCO
    from torchvision.ops import box_convert

    coco, objects = COCO(), list[dict[str, Any]]()
    table = torch.cat([box_convert(rows[..., :4], "xyxy", "xywh"), rows[..., 4:6]], dim=2)[known].tolist()
    for (image, _), (*box, label, last) in zip(known.nonzero().tolist(), table, strict=True):
        one = {"id": len(objects) + 1, "image_id": image, "category_id": int(label), "bbox": box}
        objects.append(one | {"area": box[2] * box[3], "score": last, "iscrowd": int(is_truth and last)})
    coco.dataset = {
        "images": [{"id": image} for image in range(len(rows))],
        "categories": [{"id": label, "name": str(label)} for label in labels],
        "annotations": objects,
    }
    coco.createIndex()
    return coco


@register
class Detect(CoordinateTask):
    """Any number of objects in each image, including none."""

    name, kind, own_models, own_loss = "detect", BOXES, True, True
    views = ("none",)
    unit, units = "class", "classes"
    monitor, score, score_title, unit_score = "val_map", "map", "Mean average precision", "average_precision"
    threshold = 0.5
    figure_file = "classes.png"
    panels, thumbnail = 3, 480
    mistakes_title = "Most mistakes"
    mistakes_text = "with the most missed or wrong objects in the best epoch: true objects left, found objects right"

    def count(self, number: int) -> str:
        """Return a string such as "3 classes", for a number that includes the background."""
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

    def keep(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        return {"output": outputs[..., :COLUMNS]}

    def keep_matches(self, outputs: Tensor, targets: Any) -> Mapping[str, Tensor]:
        """Return the targets with the IoU of true and found masks, (N, K, 6 + D), or an empty dict without masks."""
        if outputs.shape[2] == COLUMNS:
            return {}
        size = next((target["masks"].shape[1:] for target in targets if "masks" in target), (0, 0))
        overlaps = [mask_overlaps(*pair, size) for pair in zip(outputs, targets, strict=True)]
        padded = nn.utils.rnn.pad_sequence(overlaps, batch_first=True, padding_value=math.nan)
        return {"target": torch.cat([self.unmixed(targets).double(), padded], dim=2)}

    def condensed(self, samples: CoordinateSamples) -> CoordinateSamples:
        return replace(samples, target=samples.target[..., :COLUMNS].float())

    def objects(self, output: Tensor, frame: Tensor, size: tuple[int, int], names: Sequence[str]) -> list[FoundObject]:
        """Return the objects found in an image, with boxes and masks in image pixels, the highest score first.

        Args:
            output: (D, 6) or wider.
            frame: (3, 3) matrix from pixels of the image to output coordinates.
            size: width and height of the image, to which boxes are clipped.
            names: names of the classes.
        """
        known = output[output[:, 5] > 0]
        boxes = boxes_at(known[:, :4], frame.inverse())
        limits = boxes.new_tensor([*size, *size])
        boxes = boxes.clamp(min=0).minimum(limits)
        found = []
        for row, box in zip(known, boxes.tolist(), strict=True):
            label, score = int(row[4]), float(row[5])
            one = FoundObject(names[label], label, score, tuple(box))
            if one.width > 0 and one.height > 0:
                found.append(one._replace(runs=_encoded_mask(row, frame, one.box, size)))
        return sorted(found, key=lambda of: -of.score)

    def per_class(self, samples: CoordinateSamples, names: Sequence[str]) -> dict[str, dict[str, float]]:
        """Return each class's average precision, AP50, numbers of objects and images, best threshold, and its rates."""
        values, known = average_precisions(samples.output, samples.target)
        precisions = dict(zip(known, values.unbind(1), strict=True))
        unknown = torch.full((1,), math.nan)
        labels, scored, scores = samples.target[..., 4], samples.target[..., 5] == 0, {}
        matches = match_all(samples.output, samples.target)
        rates = rates_at(matches, names, best_thresholds(matches, len(names), math.nan))
        for label, name in enumerate(names[1:], 1):
            has = (labels == label) & scored
            by_iou = precisions.get(label, unknown)
            scores[name] = {
                "average_precision": float(by_iou.mean()),
                "ap50": float(by_iou[0]),
                "objects": int(has.sum()),
                "images": int(has.any(dim=1).sum()),
                **rates[name],
            }
        return scores

    def choose_thresholds(self, samples: CoordinateSamples, names: Sequence[str]) -> tuple[float, ...]:
        """Return the threshold with the best F1 score of each class. A class that is never found keeps the default."""
        return best_thresholds(match_all(samples.output, samples.target), len(names), self.threshold)

    def at_thresholds(
        self, scores: Evaluation, samples: CoordinateSamples, names: Sequence[str], thresholds: Sequence[float]
    ) -> Evaluation:
        """Add the rates at the thresholds that a run has chosen, and their means over the classes with true objects."""
        rates = rates_at(match_all(samples.output, samples.target), names, thresholds)
        keys = {"precision": "run_precision_macro", "recall": "run_recall_macro", "f1": "run_f1"}
        means = {key: mean_of_known(found[name] for found in rates.values()) for name, key in keys.items()}
        return scores.with_run_rates(means, rates)

    def figure(self, samples: CoordinateSamples, names: Sequence[str]) -> BarChart:
        return self.bar_chart(self.per_class(samples, names), "objects", len(names) - 1)

    def section(self, samples: CoordinateSamples, names: Sequence[str]) -> tuple[Block, ...]:
        per_class = self.per_class(samples, names)
        bars = self.bars(
            per_class,
            "Average precision of each class in the best epoch, worst first",
            ("average precision", "AP50", "objects", "images"),
            lambda found: (percent(found["ap50"]), str(found["objects"]), str(found["images"])),
            "Average precision is the mean over IoU thresholds of 0.5 to 0.95, as in COCO. AP50 uses 0.5 only. The "
            "threshold below is the score with the highest F1 at an IoU of 0.5. It was chosen on these validation "
            "images, and predict uses it unless --threshold is set.",
        )
        rates = "threshold", "precision", "recall", "f1"
        return (*bars, self.rates_table(per_class, rates, "Best threshold, precision, recall and F1")) if bars else ()

    def findings(self, samples: CoordinateSamples, names: Sequence[str]) -> Iterator[Finding]:
        absent = "has no object in validation and does", "have no object in validation and do"
        return self.worst(self.per_class(samples, names), "average precision", "object", absent)

    def shown_output(self, samples: CoordinateSamples, position: int, names: Sequence[str]) -> Tensor:
        """Return the found objects of an image that reach the thresholds of the pass."""
        output, lowest = samples.output[position], torch.tensor(self.choose_thresholds(samples, names))
        return output[output[:, 5] >= lowest[output[:, 4].long()]]

    def draw_coordinates(
        self, sides: tuple[Drawing, Drawing], target: Tensor, output: Tensor, matrix: Tensor
    ) -> Sequence[int]:
        """Draw the boxes, and the scores of the found objects. Return the labels for the legend."""
        true = target[~target[:, 4].isnan()]
        for side, rows in zip(sides, (true, output), strict=True):
            boxes, labels = boxes_at(rows[:, :4], matrix).numpy(), rows[:, 4].long().tolist()
            side.boxes(boxes, labels)
            if rows is output:
                side.texts(boxes, labels, [f"{score:.0%}" for score in rows[:, 5].tolist()])
        return sorted({*true[:, 4].long().tolist(), *output[:, 4].long().tolist()})

    def mistakes(self, samples: CoordinateSamples, names: Sequence[str]) -> Iterator[WrongSample]:
        """Yield the images with missed or wrong objects at the thresholds of the pass, worst first."""
        found, lowest = [], torch.tensor(self.choose_thresholds(samples, names))
        for i, (target, output) in enumerate(zip(samples.target, samples.output, strict=True)):
            labels, scores, true = match_objects(target, output).unbind(1)
            shown = scores >= lowest[labels.long()]
            masks = (true == 1) & ~shown, (true == 0) & shown
            missed, wrong = (labels[mask].long().tolist() for mask in masks)
            if missed or wrong:
                found.append((i, missed, wrong))
        for i, missed, wrong in sorted(found, key=lambda row: -len(row[1]) - len(row[2])):
            parts = [("missed", missed), ("wrong", wrong)]
            text = "; ".join(f"{what} {counted(labels, names)}" for what, labels in parts if labels)
            rows = samples.target[i]
            yield WrongSample(i, counted(rows[~rows[:, 4].isnan(), 4].long().tolist(), names), text)


def _encoded_mask(row: Tensor, frame: Tensor, box: tuple[float, ...], size: tuple[int, int]) -> dict[str, Any] | None:
    """Return an object's mask in COCO's run-length encoding, or None if the detector has no masks."""
    if len(row) == COLUMNS:
        return None
    left, top, right, bottom = math.floor(box[0]), math.floor(box[1]), math.ceil(box[2]), math.ceil(box[3])
    mask = np.zeros(size[::-1], np.uint8, order="F")
    mask[top:bottom, left:right] = object_masks(row[None], frame, (left, top, right, bottom))[0]
    code = import_extra("instance masks", "faster-coco-eval", "detect").mask.encode(mask)
    return {"size": [*mask.shape], "counts": code["counts"].decode()}


def boxes_at(boxes: Tensor, matrix: Tensor) -> Tensor:
    """Transform boxes, (K, 4), with a pixel-to-pixel matrix, (3, 3). Return their bounding boxes, float64."""
    corners = boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2).double() - 0.5
    moved = transform_points(corners.reshape(1, -1, 2), matrix[None]).reshape(-1, 4, 2) + 0.5
    return torch.cat([moved.amin(dim=1), moved.amax(dim=1)], dim=1)
