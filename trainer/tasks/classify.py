"""Classification: each image has one class."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from augment.support.text import amount
from trainer.tasks.display import (
    SHARE,
    TRAIN_LOSS,
    VAL_LOSS,
    Bar,
    Bars,
    Block,
    Column,
    Evaluation,
    FigureImage,
    Finding,
    Matrix,
    MetricsRow,
    Section,
    Table,
    WrongSample,
    percent,
)  # fmt: skip
from trainer.tasks.losses import CrossEntropy, LossFunction
from trainer.tasks.metrics import Meter, Samples, wilson_interval
from trainer.tasks.registry import register
from trainer.tasks.settings import LossSettings
from trainer.tasks.task import Task

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

# Classes up to which the report shows the confusion matrix next to the bars; with more it shows the most confused pairs
# there, and the matrix below, as a table or, with more than `_TABLE` classes, as an image.
_BESIDE, _TABLE, _PAIRS = 12, 20, 20

_SHOWN = 60  # classes in a table on the terminal

_TOP = 5  # predictions among which the top-5 accuracy looks for the target


@dataclass(frozen=True, eq=False)
class ClassSamples(Samples):
    """Classes that a pass predicted for each sample.

    Attributes:
        target: (N,) int64 class.
        prediction: (N,) int64 class.
        confidence: (N,) float32, the probability that the model gives to its prediction.
        target_confidence: (N,) float32, the probability that it gives to the target.
    """

    prediction: Tensor
    confidence: Tensor
    target_confidence: Tensor

    def confusion(self, classes: int) -> NDArray[np.int64]:
        """Return the counts, (classes, classes): rows are targets, columns predictions."""
        # torchmetrics counts the same, but importing it takes seconds.
        cells = (self.target * classes + self.prediction).numpy()
        return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


class ClassMeter(Meter[ClassSamples]):
    """Mean loss and accuracy of a pass over classes.

    If its predictions are kept and there are more than five classes, the top-5 accuracy is measured as well. Of targets
    that are shares of classes, the class with the largest share counts.
    """

    def __init__(self, count: int, device: torch.device, *, keep: bool = False) -> None:
        self.sums = 2 if keep and count > _TOP else 1
        super().__init__(count, device, keep=keep)

    def _measure(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        if targets.ndim == 2:
            targets = targets.argmax(dim=1)
        predictions = outputs.argmax(dim=1)
        self._more[0].add_((predictions == targets).sum())
        if self.sums > 1:
            self._more[1].add_((outputs.topk(_TOP).indices == targets[:, None]).sum())
        return targets, predictions

    def _keep(self, outputs: Tensor, *measured: Tensor) -> tuple[Tensor, ...]:
        import torch

        targets, predictions = measured
        shares = outputs.float().softmax(dim=1)
        confidence, target_confidence = shares.gather(1, torch.stack([predictions, targets], dim=1)).unbind(1)
        return targets.clone(), predictions, confidence, target_confidence

    def _named(self, means: list[float]) -> dict[str, float]:
        return dict(zip(("accuracy", "top5"), means, strict=False))

    def _nothing(self) -> ClassSamples:
        import torch

        whole, share = torch.zeros(0, dtype=torch.int64), torch.zeros(0)
        return ClassSamples(whole, whole, whole, share, share)


@dataclass(frozen=True)
class ClassScore:
    """How well one class is recognized.

    Attributes:
        name: name of the class.
        right: number of its images that are classified correctly.
        total: number of its images.
        interval: 95% interval of its accuracy.
        mistaken_for: the class that its other images are most often mistaken for; empty if all are right.
        times: how often.
    """

    name: str
    right: int
    total: int
    interval: tuple[float, float]
    mistaken_for: str
    times: int

    @property
    def accuracy(self) -> float:
        """Share of its images that are right."""
        return self.right / self.total


@register
class Classify(Task[ClassSamples]):
    """One class for each image."""

    name = "classify"
    unit, units = "class", "classes"
    monitor, score, score_title = "val_accuracy", "accuracy", "Accuracy"
    metrics = (
        TRAIN_LOSS,
        Column("train_accuracy", "train acc", page="{:.2%}", within=SHARE),
        VAL_LOSS,
        Column("val_accuracy", "val acc", page="{:.2%}", within=SHARE),
        Column("val_top5", "val top-5", page="{:.2%}", within=SHARE, above=_TOP),
    )
    meter, samples = ClassMeter, ClassSamples
    loss_settings = ("label_smoothing",)
    top = 3
    reads_folders = True
    figure_file = "confusion.png"

    def make_losses(
        self, fit: LossSettings, network: nn.Module, device: torch.device, weights: Tensor | None = None
    ) -> tuple[LossFunction, LossFunction]:
        """Return cross entropies, in training with smoothing and weights."""
        return CrossEntropy(fit.label_smoothing, weights), CrossEntropy()

    def average(self, views: Sequence[tuple[float, Tensor]]) -> Tensor:
        """Return the logarithms of the mean probabilities."""
        import torch
        from torch.nn import functional as F

        looks = [math.log(weight) + F.log_softmax(output, dim=1) for weight, output in views]
        return torch.stack(looks).logsumexp(dim=0)

    def activate(self, outputs: Tensor) -> Tensor:
        """Return probabilities."""
        return outputs.softmax(dim=1)

    def evaluate(self, values: MetricsRow, samples: ClassSamples, names: Sequence[str]) -> Evaluation:
        """Return the scores of a pass, of each class with recall and precision."""
        counts = samples.confusion(len(names))
        right, total, predicted = (n.tolist() for n in (counts.diagonal(), counts.sum(axis=1), counts.sum(axis=0)))
        rows = [
            (name, str(r), str(t), f"{r / t:.4f}" if t else "", f"{r / p:.4f}" if p else "")
            for name, r, t, p in zip(names, right, total, predicted, strict=True)
        ]
        title = ""
        if len(names) > _SHOWN:
            worst = sorted((i for i in range(len(names)) if total[i]), key=lambda i: right[i] / total[i])[:_SHOWN]
            rows = [rows[i] for i in worst]
            title = f"the {len(rows)} of {len(names):,} classes with the lowest recall"
        recalls = [r / t for r, t in zip(right, total, strict=True) if t]
        low, high = wilson_interval(sum(right), sum(total))
        top = {"val_top5": values["val_top5"]} if "val_top5" in values else {}
        scores = {
            "val_loss": values["val_loss"],
            "val_accuracy": values["val_accuracy"],
            **top,
            "balanced_accuracy": sum(recalls) / len(recalls),
            "calibration_error": calibration_error(samples),
            "interval": [low, high],
        }
        sentence = (
            f"val_accuracy {scores['val_accuracy']:.4f} (95% interval {low:.4f} to {high:.4f}, "
            f"{amount(sum(total), 'image')}), "
            f"{''.join(f'{key} {value:.4f}, ' for key, value in top.items())}"
            f"balanced accuracy {scores['balanced_accuracy']:.4f}, val_loss {scores['val_loss']:.4f}, "
            f"calibration error {scores['calibration_error']:.4f}"
        )
        per_class = {name: (r, t) for name, r, t in zip(names, right, total, strict=True)}
        table = Table(title, ("class", "right", "of", "recall", "precision"), rows)
        return Evaluation(sum(total), scores, per_class, table, sentence, Matrix(counts, names))

    def right_of(self, samples: ClassSamples) -> tuple[int, int] | None:
        """Return how many images are classified correctly, and how many there are."""
        return int((samples.prediction == samples.target).sum()), len(samples.target)

    def figure(self, samples: ClassSamples, names: Sequence[str]) -> Matrix:
        """Return the confusion matrix."""
        return Matrix(samples.confusion(len(names)), names)

    def section(self, samples: ClassSamples, names: Sequence[str]) -> Section:
        """Return the accuracy of each class, and the confusion matrix or the most confused pairs."""
        matrix = self.figure(samples, names)
        bars = [
            (s.name, Bar(s.accuracy, s.interval), (f"{s.right} of {s.total}",))
            for s in class_scores(matrix.counts, names)
        ]
        pairs = [] if len(names) <= _BESIDE else most_confused(matrix.counts, names, _PAIRS)
        scores = Bars(
            "Accuracy of each class in the best epoch, the worst first",
            ("class", "accuracy and 95% interval", "right of n"),
            bars,
        )
        alt = f"Confusion matrix of {self.count(len(names))}, rows true, columns predicted"
        whole: Block = matrix if len(names) <= _TABLE else FigureImage("Confusion matrix", alt)
        if not pairs:
            return Section((scores, matrix)) if whole is matrix else Section((scores,), (whole,))
        rows = [(true, predicted, str(times), percent(share)) for true, predicted, times, share in pairs]
        head = ("true", "mistaken for", "times", "of the class")
        return Section((scores, Table(f"The {amount(len(pairs), 'most confused pair')}", head, rows, left=2)), (whole,))

    def findings(self, samples: ClassSamples, names: Sequence[str]) -> Iterator[Finding]:
        """Yield whether the model only guesses, and the worst class."""
        counts = samples.confusion(len(names))
        right, total = int(np.trace(counts)), int(counts.sum())
        # Always predicting the largest class reaches this accuracy.
        chance = float(counts.sum(axis=1).max()) / total
        if len(names) > 1 and wilson_interval(right, total)[0] <= chance:
            yield Finding(
                f"The best accuracy is not significantly above predicting the largest class every time "
                f"({percent(chance)}).",
                warning=True,
            )
        scores = class_scores(counts, names)
        if len(scores) < 2:
            return
        worst = scores[0]
        if worst.right == worst.total:
            yield Finding("Every validation image is right.")
            return
        times = "once" if worst.times == 1 else f"{worst.times} times"
        yield Finding(
            f"Worst class: {worst.name} at {percent(worst.accuracy)} ({worst.right} of {worst.total}), "
            f"most often mistaken for {worst.mistaken_for} ({times})."
        )

    def mistakes(self, samples: ClassSamples, names: Sequence[str]) -> Iterator[WrongSample]:
        """Yield the wrong images, those with the highest confidence first."""
        wrong = np.flatnonzero((samples.prediction != samples.target).numpy())
        for i in wrong[np.argsort(-samples.confidence.numpy()[wrong], kind="stable")].tolist():
            true, predicted = int(samples.target[i]), int(samples.prediction[i])
            yield WrongSample(i, names[true], names[predicted], float(samples.confidence[i]))


def calibration_error(samples: ClassSamples) -> float:
    """Return how far confidence and accuracy are apart, in [0, 1].

    It is the mean over 15 equal bins of confidence, weighted by their images (Guo et al. 2017, arXiv:1706.04599).
    """
    # Takes seconds to import, as it imports torchvision.
    from torchmetrics.functional.classification import binary_calibration_error

    # Whether the predicted class is right is a yes-or-no question, with the confidence as its probability.
    right = (samples.prediction == samples.target).int()
    return float(binary_calibration_error(samples.confidence, right, n_bins=15))


def class_scores(confusion: NDArray[np.int64], names: Sequence[str]) -> list[ClassScore]:
    """Return the scores of all classes that have images, the worst first.

    Args:
        confusion: (C, C), rows are targets.
        names: C names.
    """
    scores = []
    for i, name in enumerate(names):
        right, total = int(confusion[i, i]), int(confusion[i].sum())
        if not total:
            continue
        others = confusion[i].copy()
        others[i] = 0
        most = int(others.argmax())
        mistaken_for, times = (names[most], int(others[most])) if others[most] else ("", 0)
        scores.append(ClassScore(name, right, total, wilson_interval(right, total), mistaken_for, times))
    return sorted(scores, key=lambda score: (score.accuracy, score.name))


def most_confused(confusion: NDArray[np.int64], names: Sequence[str], count: int) -> list[tuple[str, str, int, float]]:
    """Return the `count` pairs of classes that are confused most often, the most frequent first.

    A pair is a true and a predicted class, how often it occurs, and for what share of the true class's images.
    """
    wrong = confusion - np.diag(confusion.diagonal())
    order = np.argsort(-wrong, axis=None, kind="stable")[:count]
    totals = confusion.sum(axis=1)
    return [
        (names[true], names[predicted], int(wrong[true, predicted]), wrong[true, predicted] / totals[true])
        for true, predicted in zip(*np.unravel_index(order, wrong.shape), strict=True)
        if wrong[true, predicted]
    ]
