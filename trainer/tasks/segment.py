"""Semantic segmentation: each pixel has a class.

A model's outputs are (N, classes, height, width) and targets (N, height, width). The masks of a whole pass do not fit
into memory, so metrics with `whole=True` get pixel counts instead. Their `targets`, (N, classes), count the pixels of
each class. Their `outputs`, (N, 2, classes), count the pixels predicted as each class, and the correct ones among them.
Pixels whose target is not a class do not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from augment.data.targets.masks import MASKS
from augment.data.targets.spatial import IGNORE
from augment.support.formatting import amount, percent, plural
from augment.support.lazy_torch import Tensor, nn, torch
from trainer.tasks.class_rates import Counts, declare_agreement, declare_rates, rates_of_classes
from trainer.tasks.classify import ClassTask, most_often
from trainer.tasks.display import Block, Finding, Matrix, WrongSample
from trainer.tasks.loss import LossFunction, LossSettings
from trainer.tasks.metric import SHARE, Samples, mean_of_known, metric
from trainer.tasks.named_losses import merge_terms
from trainer.tasks.registry import register

_NAMED = 3  # maximum number of classes in the caption of a mask
_DRAWN, _SIDE = 96, 96  # number of thumbnails of the worst images, and their longer side in pixels


@metric("segment", title="mIoU", within=SHARE, whole=True)
def miou(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean IoU of the classes that occur in targets or predictions."""
    return mean_of_known(ious(outputs.sum(dim=0), targets.sum(dim=0)).tolist())


@metric("segment", title="pixel acc", within=SHARE, whole=True)
def pixel_accuracy(outputs: Tensor, targets: Tensor) -> float:
    total = int(targets.sum())
    return int(outputs[:, 1].sum()) / total if total else math.nan


def _counts(outputs: Tensor, targets: Tensor) -> Counts:
    predicted, right, actual = (*outputs.sum(dim=0).double(), targets.sum(dim=0).double())
    return right, predicted, actual, actual.sum()


declare_rates("segment", _counts)
declare_agreement("segment", _counts)


def ious(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the intersection over union of each class, float64, or NaN if neither targets nor predictions have it.

    Args:
        outputs: (..., 2, classes) pixels predicted as each class, and the correct ones among them.
        targets: (..., classes) pixels of each class.
    """
    predicted, right = outputs.unbind(dim=-2)
    return right.double() / (targets + predicted - right)


def confusions(predictions: Tensor, targets: Tensor, classes: int) -> Tensor:
    """Return the confusion matrix of each image's pixels, without waiting for the device.

    Args:
        predictions: (N, height, width) class indices.
        targets: (N, height, width). Only pixels whose value is a class count.
        classes: number of classes.

    Returns:
        (N, classes, classes) int64. Rows are targets, columns are predictions.
    """
    count, cells = len(targets), classes * classes
    image = torch.arange(count, device=targets.device)[:, None, None]
    cell = image * cells + targets * classes + predictions
    # torch.bincount would wait for the device. The last cell collects the pixels that do not count.
    cell = cell.where((targets >= 0) & (targets < classes), count * cells).flatten()
    counts = torch.zeros(count * cells + 1, dtype=torch.int64, device=targets.device)
    counts.index_add_(0, cell, torch.ones_like(cell))
    return counts[:-1].view(count, classes, classes)


@dataclass(frozen=True, eq=False)
class MaskSamples(Samples):
    """Pixel counts of a pass. `target` is (N, classes) int32, the pixels of each class."""

    output: Tensor  # (N, 2, classes) int32, pixels predicted as each class, and the correct ones among them
    confusion: Tensor  # (1, classes, classes) int64, pixels of all images: rows are targets, columns predictions
    masks: Tensor  # (M, 2, height, width) uint8, thumbnails of target and prediction of the M worst images, worst first
    frame: Tensor  # (M, 3, 3) float64, from stored pixels of these images to pixels of the model's input
    size: Tensor  # (M, 2) int64, height and width of the model's input

    @property
    def counts(self) -> NDArray[np.int64]:
        """The confusion matrix, (classes, classes)."""
        return np.asarray(self.confusion[0])


@register
class Segment(ClassTask[MaskSamples]):
    """A class for each pixel."""

    name, kind, own_models = "segment", MASKS, True
    monitor, score, score_title, unit_score = "val_miou", "miou", "Mean IoU", "iou"
    samples = MaskSamples
    sums = ("confusion",)
    default_loss = "cross_entropy"
    loss_settings = ("loss", "loss_options", "label_smoothing")
    top = _NAMED
    panels = 3
    mistakes_title = "Worst masks"
    mistakes_text = "with the lowest mean IoU in the best epoch: the image, its mask, and the prediction"

    def make_losses(
        self, fit: LossSettings, network: nn.Module, device: torch.device, weights: Tensor | None = None
    ) -> tuple[LossFunction, LossFunction]:
        """Return the configured loss for training and validation. Only training smooths labels."""
        return merge_terms(self.named_loss(fit)), merge_terms(self.named_loss(replace(fit, label_smoothing=0)))

    def example(self, names: int, *, shares: bool = False) -> tuple[Tensor, Tensor]:
        return torch.zeros(2, names, 32, 32, requires_grad=True), torch.zeros(2, 32, 32, dtype=torch.int64)

    def unmirrored(self, outputs: Tensor, network: nn.Module) -> Tensor:
        return outputs.flip(3)

    def keep(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Return the fields of `MaskSamples` except `index` and `frame`, with the masks of all images."""
        predictions = outputs.argmax(dim=1)
        counts = confusions(predictions, targets, outputs.shape[1])
        right = counts.diagonal(dim1=1, dim2=2)
        return {
            "target": counts.sum(dim=2).int(),
            "output": torch.stack([counts.sum(dim=1), right], dim=1).int(),
            "confusion": counts.sum(dim=0, keepdim=True),
            "masks": _thumbnails(torch.stack([targets, predictions], dim=1)),
            "size": torch.tensor([targets.shape[1:]]).expand(len(targets), 2),
        }

    def condensed(self, samples: MaskSamples) -> MaskSamples:
        """Drop the masks of all but the worst images."""
        worst = torch.tensor(_worst(samples)[:_DRAWN], dtype=torch.int64)
        return replace(samples, **{name: getattr(samples, name)[worst] for name in ("masks", "frame", "size")})

    def per_class(self, samples: MaskSamples, names: Sequence[str]) -> dict[str, dict[str, float]]:
        """Return IoU, recall, precision, specificity, F1, and the numbers of pixels and images of each class."""
        right, predicted, actual, _ = counts = _counts(samples.output, samples.target)
        rates, pixels = rates_of_classes(counts, names), actual.long().tolist()
        iou = (right / (actual + predicted - right)).tolist()
        images = (samples.target > 0).sum(dim=0).tolist()
        return {
            name: {"iou": iou[i], **rates[name], "pixels": pixels[i], "images": images[i]}
            for i, name in enumerate(names)
        }

    def figure(self, samples: MaskSamples, names: Sequence[str]) -> Matrix:
        return Matrix(samples.counts, names, shares=True)

    def section(self, samples: MaskSamples, names: Sequence[str]) -> tuple[Block, ...]:
        total = max(int(samples.counts.sum()), 1)
        per_class = self.per_class(samples, names)
        bars = self.bars(
            per_class,
            "IoU of each class in the best epoch, worst first",
            ("IoU", "of all pixels", "images"),
            lambda found: (percent(found["pixels"] / total, 1), str(found["images"])),
        )
        return (*bars, *self.confused(self.figure(samples, names)), self.rates_table(per_class))

    def findings(self, samples: MaskSamples, names: Sequence[str]) -> Iterator[Finding]:
        counts, known = samples.counts, self.worst_first(self.per_class(samples, names))
        if len(known) > 1:
            name, worst = known[0]
            other, times = most_often(counts[list(names).index(name)], names, name)
            more = f", most often mistaken for {other}" if times else ""
            images = amount(int(worst["images"]), "image")
            yield Finding(f"Worst class: {name} at an IoU of {percent(worst['iou'])} ({images}){more}.")
        if absent := int((counts.sum(axis=1) == 0).sum()):
            verb = plural(absent, "has", "have")
            yield Finding(f"{absent} of {self.count(len(names))} {verb} no pixel in validation.", warning=True)

    def mistakes(self, samples: MaskSamples, names: Sequence[str]) -> Iterator[WrongSample]:
        """Yield the images with the lowest mean IoU, the lowest first."""
        scores = ious(samples.output, samples.target).nanmean(dim=1).tolist()
        for i in _worst(samples)[:_DRAWN]:
            true, predicted = (shares_text(counts[i], names) for counts in (samples.target, samples.output[:, 0]))
            yield WrongSample(i, true, f"mIoU {percent(scores[i])}: {predicted}")

    def draw(
        self, image: Image.Image, matrix: NDArray[np.float64], samples: MaskSamples, position: int, names: Sequence[str]
    ) -> Image.Image:
        """Return three panels: the image, the image with its target, and the image with the prediction."""
        from augment.drawing.target_overlays import Drawing, with_legend

        number = _worst(samples).index(position)
        masks = np.asarray(samples.masks[number])
        height, width = samples.size[number].tolist()
        pixels = np.asarray(image)
        # From pixels of `image` to pixels of the model's input.
        y, x = np.indices(pixels.shape[:2])
        frame = np.asarray(samples.frame[number]) @ np.linalg.inv(matrix)
        x, y, w = np.einsum("ij,jhw->ihw", frame, np.stack([x, y, np.ones_like(x)]))
        row, column = (np.floor(at / w + 0.5).astype(int) for at in (y, x))
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        # From pixels of the model's input to pixels of the thumbnails.
        step = _step(height, width)
        row = (row // step).clip(0, masks.shape[1] - 1)
        column = (column // step).clip(0, masks.shape[2] - 1)
        background = names[:1] if names[:1] == ("background",) else ()
        panels = [pixels]
        for mask in masks:
            labels = np.where(inside, mask[row, column], IGNORE)
            panels.append(Drawing(pixels).mask(labels, background, ignore=IGNORE).pixels)
        legend = [(i, name) for i, name in enumerate(names) if (masks == i).any() and name not in background]
        return Image.fromarray(with_legend(np.concatenate(panels, axis=1), legend))


def _worst(samples: MaskSamples) -> list[int]:
    """Return the positions of the images with a known mean IoU, the lowest first."""
    scores = ious(samples.output, samples.target).nanmean(dim=1)
    order: list[int] = scores.argsort(stable=True).tolist()
    return [i for i in order if not math.isnan(scores[i])]


def _thumbnails(masks: Tensor) -> Tensor:
    """Shrink masks, (N, K, height, width), to sides of at most 96 px, uint8, without interpolation."""
    step = _step(*masks.shape[2:])
    return masks[:, :, step // 2 :: step, step // 2 :: step].byte()


def _step(height: int, width: int) -> int:
    """Return the distance between mask pixels that a thumbnail keeps."""
    return -(-max(height, width) // _SIDE)


def shares_text(counts: Tensor, names: Sequence[str]) -> str:
    """Return the largest classes and their shares as "cat 70%, dog 30%", from pixel counts, (classes,)."""
    total = max(int(counts.sum()), 1)
    largest = counts.argsort(descending=True, stable=True)[:_NAMED].tolist()
    return ", ".join(f"{names[i]} {percent(int(counts[i]) / total)}" for i in largest if counts[i]) or "nothing"
