"""Detection: any number of objects in each image, a box and a class each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from augment.data.targets.boxes import BOXES
from augment.support.lazy import Tensor, nn, torch
from augment.support.text import percent, plural
from trainer.tasks.display import BarChart, Block, Finding, FoundObject, WrongSample
from trainer.tasks.loss import LossFunction, LossSettings
from trainer.tasks.metrics.detection import average_precisions, require_backend
from trainer.tasks.placing import PlacedSamples, PlacedTask, placed
from trainer.tasks.registry import register

if TYPE_CHECKING:
    from augment.drawing.targets import Drawing

# The lowest score of objects that people look at, and the least IoU of a box that is right.
SHOWN, _RIGHT = 0.5, 0.5


@register
class Detect(PlacedTask):
    """Any number of objects in each image, also none.

    Samples have targets, (N, K, 6), and outputs, (N, D, 6), as `trainer.tasks.metrics.detection` takes them.
    """

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
        require_backend()

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
        classes = self.worst_first(per_class := self.per_class(samples, names))
        yield from self.worst(per_class, "average precision", "object")
        absent = len(names) - 1 - len(classes)
        if classes and absent:
            verbs = plural(absent, "has no object in validation and does", "have no object in validation and do")
            yield Finding(f"{absent} of {self.count(len(names))} {verbs} not count.", warning=True)

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
            text = "; ".join(f"{what} {_counts(labels, names)}" for what, labels in parts if labels)
            rows = samples.target[i]
            yield WrongSample(i, _counts(rows[~rows[:, 4].isnan(), 4].long().tolist(), names), text)


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


def _counts(labels: Iterable[int], names: Sequence[str]) -> str:
    """Return "2 cat, 1 dog"."""
    return ", ".join(f"{n} {names[label]}" for label, n in Counter(labels).most_common(3)) or "nothing"
