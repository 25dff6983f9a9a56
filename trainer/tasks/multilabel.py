"""Multi-label classification: each image has any number of labels."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from augment.data.targets.multilabel import LABELS
from augment.support.lazy_torch import F, Tensor, torch
from trainer.tasks.class_rates import Counts, declare_rates, rates_of_classes
from trainer.tasks.display import BarChart, Block, Evaluation, Finding, WrongSample
from trainer.tasks.loss import LabelLoss
from trainer.tasks.metric import SHARE, OutputSamples, mean_of_known, metric
from trainer.tasks.registry import register
from trainer.tasks.task import Task

_ROUNDING = 1e-6  # largest relative difference between two computations of a probability


@metric("multilabel", name="map", title="mAP", within=SHARE, whole=True)
def mean_average_precision(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean of the labels' average precisions."""
    # Only double precision distinguishes probabilities near 1.
    return mean_of_known(average_precisions(outputs.double().sigmoid(), targets > 0.5))


def label_counts(predictions: Tensor, targets: Tensor) -> Counts:
    """Count the images of each label. The arguments are (N, K) bool."""
    right, predicted, actual = (of.sum(dim=0).double() for of in (predictions & targets, predictions, targets))
    return right, predicted, actual, right.new_tensor(len(targets))


# These rates use a probability threshold of 0.5.
declare_rates("multilabel", lambda outputs, targets: label_counts(outputs >= 0, targets > 0.5))


@metric("multilabel", within=SHARE, whole=True, on_request=True)
def auroc(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean of the labels' areas under the ROC curve."""
    return mean_of_known(aurocs(outputs.double().sigmoid(), targets > 0.5))


def average_precisions(scores: Tensor, having: Tensor) -> list[float]:
    """Return the average precision of each label, or NaN if no image has it.

    Args:
        scores: (N, K) probabilities.
        having: (N, K) bool.
    """
    from torchmetrics.functional.classification import binary_average_precision  # imports torchvision, which is slow

    return _score_labels(binary_average_precision, scores, having, having.any(dim=0))


def aurocs(scores: Tensor, having: Tensor) -> list[float]:
    """Return the area under the ROC curve of each label, or NaN if no image or every image has it."""
    from torchmetrics.functional.classification import binary_auroc

    return _score_labels(binary_auroc, scores, having, having.any(dim=0) & ~having.all(dim=0))


def _score_labels(
    measure: Callable[[Tensor, Tensor], Tensor], scores: Tensor, having: Tensor, known: Tensor
) -> list[float]:
    columns = zip(scores.unbind(1), having.int().unbind(1), known.tolist(), strict=True)
    return [float(measure(score, has)) if counts else math.nan for score, has, counts in columns]


def best_threshold(scores: Tensor, having: Tensor) -> tuple[float, float]:
    """Return the threshold with the highest F1 score of a label, and that score.

    If no image has the label, return NaN and 0.

    Args:
        scores: (N,) probabilities.
        having: (N,) bool.
    """
    from torchmetrics.functional.classification import binary_precision_recall_curve

    if not having.any():
        return math.nan, 0.0
    precision, recall, thresholds = binary_precision_recall_curve(scores, having.int())
    f1 = (2 * precision * recall / (precision + recall))[:-1].nan_to_num()
    best = len(f1) - 1 - int(f1.flip(0).argmax())  # the highest of several best thresholds
    return float(thresholds[best]), float(f1[best])


@register
class Multilabel(Task[OutputSamples]):
    """Any number of labels for each image, including none."""

    name, kind = "multilabel", LABELS
    unit, units = "label", "labels"
    monitor, score, score_title, unit_score = "val_map", "map", "Mean average precision", "average_precision"
    loss_type = LabelLoss
    loss_settings = ("loss", "loss_options", "label_smoothing")
    threshold: ClassVar[float] = 0.5
    figure_file = "labels.png"

    def average(self, views: Sequence[Tensor]) -> Tensor:
        """Return the logits of the mean probabilities.

        The computation uses logarithms, so that no probability is rounded to 0 or 1.
        """
        logits = torch.stack([*views])
        yes, no = ((F.logsigmoid(signed) - math.log(len(views))).logsumexp(dim=0) for signed in (logits, -logits))
        return yes - no

    def activate(self, outputs: Tensor) -> Tensor:
        return outputs.sigmoid()

    def per_class(self, samples: OutputSamples, names: Sequence[str]) -> dict[str, dict[str, float]]:
        """Return average precision, best threshold, number of images, and rates at this threshold for each label."""
        scores, having = samples.output.double().sigmoid(), samples.target > 0.5
        labels, precisions = {}, average_precisions(scores, having)
        best = [best_threshold(score, has) for score, has in zip(scores.unbind(1), having.unbind(1), strict=True)]
        used = scores.new_tensor([threshold for threshold, _ in best])
        rates = rates_of_classes(label_counts(scores >= used, having), names)
        of_labels = zip(names, precisions, best, having.sum(0).tolist(), strict=True)
        for name, precision, (threshold, f1), images in of_labels:
            found = {"average_precision": precision, "threshold": threshold, "f1": f1, "images": images}
            labels[name] = found | rates[name] | {"f1": f1}
        return labels

    def choose_thresholds(self, samples: OutputSamples, names: Sequence[str]) -> tuple[float, ...]:
        """Return the threshold with the best F1 score of each label. A label without images keeps the default."""
        best = (label["threshold"] for label in self.per_class(samples, names).values())
        # The threshold is slightly below an image's probability, because later predictions may round differently.
        return tuple(self.threshold if math.isnan(value) else value * (1 - _ROUNDING) for value in best)

    def at_thresholds(
        self, scores: Evaluation, samples: OutputSamples, names: Sequence[str], thresholds: Sequence[float]
    ) -> Evaluation:
        """Add the rates at the thresholds that a run has chosen, and their means over the labels."""
        shifted = samples.output.double() - torch.tensor(thresholds, dtype=torch.float64).logit()
        means = {f"run_{m.name}": m.of_all(shifted, samples.target) for m in self.metrics if m.of_class is not None}
        rates = rates_of_classes(label_counts(shifted >= 0, samples.target > 0.5), names)
        pairs = zip(names, thresholds, strict=True)
        return scores.with_run_rates(means, {name: {"threshold": value} | rates[name] for name, value in pairs})

    def figure(self, samples: OutputSamples, names: Sequence[str]) -> BarChart:
        return self.bar_chart(self.per_class(samples, names), "images", len(names))

    def section(self, samples: OutputSamples, names: Sequence[str]) -> tuple[Block, ...]:
        per_class = self.per_class(samples, names)
        bars = self.bars(
            per_class,
            "Average precision of each label in the best epoch, worst first",
            ("average precision", "images", "threshold for best F1"),
            lambda found: (str(found["images"]), f"{found['threshold']:.3f}"),
            "The threshold is the probability with the highest F1 score. It was chosen on these validation images, and "
            "predict uses it unless --threshold is set.",
        )
        return (*bars, self.rates_table(per_class)) if bars else ()

    def findings(self, samples: OutputSamples, names: Sequence[str]) -> Iterator[Finding]:
        absent = "is on no validation image and does", "are on no validation image and do"
        return self.worst(self.per_class(samples, names), "average precision", absent=absent)

    def mistakes(self, samples: OutputSamples, names: Sequence[str]) -> Iterator[WrongSample]:
        """Yield the images with a wrong label, the most confident prediction first."""
        having = samples.target > 0.5
        confidence, labels = (self.activate(samples.output) - having.float()).abs().max(dim=1)
        for i in confidence.argsort(descending=True, stable=True).tolist():
            if confidence[i] <= 0.5:
                return
            label, had = int(labels[i]), having[i].tolist()
            true = ", ".join(name for name, has in zip(names, had, strict=True) if has) or "none"
            yield WrongSample(i, true, f"no {names[label]}" if had[label] else names[label], float(confidence[i]))
