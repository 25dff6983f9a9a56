"""Multilabel classification: each image has any number of labels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from augment.data.targets.labels import LABELS
from augment.support.text import amount, plural
from trainer.tasks.display import (
    SHARE,
    TRAIN_LOSS,
    VAL_LOSS,
    Bar,
    BarChart,
    Bars,
    Column,
    Finding,
    Section,
    WrongSample,
    percent,
)  # fmt: skip
from trainer.tasks.losses import BinaryCrossEntropy, LossFunction
from trainer.tasks.metrics import OutputMeter, OutputSamples, mean_of_known
from trainer.tasks.registry import register
from trainer.tasks.settings import LossSettings
from trainer.tasks.task import Task

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


class LabelScore(NamedTuple):
    """How well one label is recognized.

    Attributes:
        average_precision: area below precision over recall, a step for each score; NaN where no image has the label.
        threshold: the probability from which to predict the label, so that F1 is highest; NaN likewise.
        f1: F1 at the threshold, the harmonic mean of precision and recall.
        images: number of images that have the label.
    """

    average_precision: float
    threshold: float
    f1: float
    images: int


class LabelMeter(OutputMeter):
    """Mean loss of a pass over labels, and mean average precision at its end."""

    def scores(self) -> dict[str, float]:
        """Return the mean loss and the mean of the labels' average precisions."""
        kept = self.kept()
        return self.compute() | {"map": mean_of_known(average_precisions(kept.output, kept.target))}


@register
class Multilabel(Task[OutputSamples]):
    """Any number of labels for each image, also none."""

    name, kind = "multilabel", LABELS
    unit, units = "label", "labels"
    monitor, score, score_title = "val_map", "map", "Mean average precision"
    metrics = (TRAIN_LOSS, VAL_LOSS, Column("val_map", "val mAP", page="{:.2%}", within=SHARE))
    meter, samples = LabelMeter, OutputSamples
    loss_settings = ("label_smoothing",)
    threshold = 0.5
    figure_file = "labels.png"

    def make_losses(
        self, fit: LossSettings, network: nn.Module, device: torch.device, weights: Tensor | None = None
    ) -> tuple[LossFunction, LossFunction]:
        """Return binary cross entropies, in training with smoothing and weights."""
        return BinaryCrossEntropy(fit.label_smoothing, weights), BinaryCrossEntropy()

    def average(self, views: Sequence[tuple[float, Tensor]]) -> Tensor:
        """Return the logits of the mean probabilities, from logarithms alone, so that none is rounded to 0 or 1."""
        import torch
        from torch.nn import functional as F

        yes, no = (
            torch.stack([math.log(weight) + F.logsigmoid(sign * logit) for weight, logit in views]).logsumexp(dim=0)
            for sign in (1, -1)
        )
        return yes - no

    def activate(self, outputs: Tensor) -> Tensor:
        """Return the probability of each label."""
        return outputs.sigmoid()

    def per_class(self, samples: OutputSamples, names: Sequence[str]) -> dict[str, dict[str, float]]:
        """Return average precision, best threshold with its F1, and images of each label."""
        return {name: score._asdict() for name, score in zip(names, label_scores(samples), strict=True)}

    def figure(self, samples: OutputSamples, names: Sequence[str]) -> BarChart:
        """Return the average precision of each label."""
        bars = [(name, score.images, score.average_precision) for name, score in worst_labels(samples, names)]
        return BarChart("average precision", self.units, bars, len(names))

    def section(self, samples: OutputSamples, names: Sequence[str]) -> Section:
        """Return the average precision of each label, with its best threshold."""
        rows = [
            (name, Bar(precision), (str(images), f"{threshold:.3f}", percent(f1)))
            for name, (precision, threshold, f1, images) in worst_labels(samples, names)
        ]
        bars = Bars(
            "Average precision of each label in the best epoch, the worst first",
            ("label", "average precision", "images", "threshold", "best F1"),
            rows,
            "The threshold is the probability at which predicting the label gives the highest F1 score; it was chosen "
            "on these validation images.",
        )
        return Section((bars,)) if rows else Section()

    def findings(self, samples: OutputSamples, names: Sequence[str]) -> Iterator[Finding]:
        """Yield the worst label, and how many labels no image has."""
        labels = worst_labels(samples, names)
        if len(labels) > 1:
            name, worst = labels[0]
            images = amount(worst.images, "image")
            yield Finding(f"Worst label: {name}, average precision {percent(worst.average_precision)} ({images}).")
        absent = len(names) - len(labels)
        if labels and absent:
            verbs = plural(absent, "is on no validation image and does", "are on no validation image and do")
            yield Finding(f"{absent} of {amount(len(names), 'label')} {verbs} not count.", warning=True)

    def mistakes(self, samples: OutputSamples, names: Sequence[str]) -> Iterator[WrongSample]:
        """Yield the images with a label that the model is wrong about, the most confident first."""
        shares, having = self.activate(samples.output).numpy(), samples.target.numpy() > 0.5
        wrong = np.abs(shares - having)
        labels = wrong.argmax(axis=1)
        confidence = wrong[np.arange(len(wrong)), labels]
        for i in np.argsort(-confidence, kind="stable"):
            if confidence[i] <= 0.5:
                return
            name = names[labels[i]]
            true = ", ".join(name for name, has in zip(names, having[i], strict=True) if has) or "none"
            yield WrongSample(int(i), true, f"no {name}" if having[i, labels[i]] else name, float(confidence[i]))


def label_scores(samples: OutputSamples) -> list[LabelScore]:
    """Return how well each label is recognized."""
    precisions = average_precisions(samples.output, samples.target)
    scores, having = samples.output.double().sigmoid(), samples.target > 0.5
    return [
        LabelScore(precision, *best_threshold(score, has), int(has.sum()))
        for precision, score, has in zip(precisions, scores.unbind(1), having.unbind(1), strict=True)
    ]


def worst_labels(samples: OutputSamples, names: Sequence[str]) -> list[tuple[str, LabelScore]]:
    """Return the labels that some image has with their scores, the worst first."""
    known = [(name, score) for name, score in zip(names, label_scores(samples), strict=True) if score.images]
    return sorted(known, key=lambda label: (label[1].average_precision, label[0]))


def average_precisions(outputs: Tensor, targets: Tensor) -> list[float]:
    """Return the average precision of each label, NaN where no image has it.

    Args:
        outputs: (N, K) logits.
        targets: (N, K), 0 or 1.
    """
    # Takes seconds to import, as it imports torchvision.
    from torchmetrics.functional.classification import binary_average_precision

    # In double precision, where no two logits or probabilities near 1 become equal.
    scores = outputs.double().sigmoid()
    having = targets > 0.5
    return [
        float(binary_average_precision(score, has.int())) if has.any() else math.nan
        for score, has in zip(scores.unbind(1), having.unbind(1), strict=True)
    ]


def best_threshold(scores: Tensor, having: Tensor) -> tuple[float, float]:
    """Return the score from which to predict a label so that F1 is highest, and that F1.

    Where no image has the label, return NaN and 0.

    Args:
        scores: (N,).
        having: (N,) bool.
    """
    import torch

    total = int(having.sum())
    if not total:
        return math.nan, 0.0
    order = scores.argsort(descending=True)
    ranked, right = scores[order], having[order].cumsum(0)
    # Images of equal score all get the label or none does: the last of them counts.
    last = torch.cat([ranked[1:] != ranked[:-1], torch.ones(1, dtype=torch.bool)])
    f1 = torch.where(last, 2 * right / (torch.arange(1, len(ranked) + 1) + total), 0.0)
    best = int(f1.argmax())
    return float(ranked[best]), float(f1[best])
