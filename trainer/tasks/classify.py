"""Classification: each image has one class."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from augment.support.formatting import amount, percent
from augment.support.lazy_torch import F, Tensor, torch
from trainer.tasks.class_rates import RATES, Counts, declare_agreement, declare_rates, rates_of_classes
from trainer.tasks.display import Bar, Bars, Block, Evaluation, FigureImage, Finding, Matrix, Table, WrongSample
from trainer.tasks.loss import ClassLoss
from trainer.tasks.metric import METRICS, SHARE, MetricsRow, Samples, TaskMetric, mean_of_known, metric
from trainer.tasks.multilabel import aurocs, average_precisions
from trainer.tasks.registry import register
from trainer.tasks.task import S, Task, is_asked

# Up to _BESIDE classes, the report shows the confusion matrix next to the bars. With more classes, it shows the _PAIRS
# most confused pairs next to the bars, and the matrix below. With more than _TABLE classes, the matrix is an image.
_BESIDE, _PAIRS, _TABLE = 12, 20, 150
_MATRIX = 5000  # with more classes, there is no confusion matrix, which would take gigabytes

_TOP = 5


@metric(title="acc", within=SHARE)
def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.argmax(dim=1) == targets


@metric(title="top-5", within=SHARE, train=False, above=_TOP)
def top5(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return whether each target is among the five most probable classes."""
    return (outputs.topk(_TOP).indices == targets[:, None]).any(dim=1)


def _top_metric(count: int) -> TaskMetric:
    """Return the top-k accuracy for k = `count`, such as `top3`. It is measured only on request."""

    def function(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.topk(count).indices == targets[:, None]).any(dim=1)

    column = (known := METRICS["classify", "top5"]).columns[0]._replace(key=f"val_top{count}", title=f"val top-{count}")
    return replace(known, name=f"top{count}", function=function, columns=(column,), on_request=True)


@metric(within=(0, 2), smaller=True, on_request=True)
def brier(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared distance between the probabilities of all classes and the target (Brier 1950)."""
    return (outputs.softmax(dim=1) - _one_hot(targets, outputs).float()).square().sum(dim=1)


@metric(within=SHARE, whole=True, on_request=True)
def balanced_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean recall over the classes that have images."""
    return mean_of_known(RATES["recall"](*_counts(outputs, targets)).tolist())


def class_counts(targets: Tensor, predictions: Tensor, classes: int) -> Counts:
    """Count the images of each class. Targets and predictions are classes, (N,)."""
    right, predicted, actual = (
        of.bincount(minlength=classes).double() for of in (targets[targets == predictions], predictions, targets)
    )
    return right, predicted, actual, actual.sum()


def _counts(outputs: Tensor, targets: Tensor) -> Counts:
    return class_counts(targets, outputs.argmax(dim=1), outputs.shape[1])


declare_rates("classify", _counts)
declare_agreement("classify", _counts)


@metric(within=SHARE, whole=True, on_request=True)
def auroc(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean area under the ROC curve of each class against all others."""
    return mean_of_known(aurocs(outputs.double().softmax(dim=1), _one_hot(targets, outputs)))


@metric(within=SHARE, whole=True, on_request=True)
def average_precision(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean average precision of each class against all others."""
    return mean_of_known(average_precisions(outputs.double().softmax(dim=1), _one_hot(targets, outputs)))


@metric(within=SHARE, smaller=True, whole=True, on_request=True)
def calibration_error(outputs: Tensor, targets: Tensor) -> float:
    """Return the expected calibration error: the mean distance between confidence and accuracy (Guo et al. 2017).

    Images are grouped by confidence into 15 equal bins, weighted by their numbers of images (arXiv:1706.04599).
    """
    from torchmetrics.functional.classification import binary_calibration_error  # imports torchvision, which is slow

    # The binary target is whether the predicted class is correct. The score is the confidence.
    predictions = outputs.argmax(dim=1)
    # torchmetrics counts a confidence of exactly 1 in a bin of its own.
    confidence = outputs.softmax(dim=1).gather(1, predictions[:, None])[:, 0].clamp(max=1 - 1e-7)
    return float(binary_calibration_error(confidence, (predictions == targets).int(), n_bins=15))


def confusion(targets: Tensor, predictions: Tensor, classes: int) -> NDArray[np.int64]:
    """Return the confusion matrix, (classes, classes). Rows are targets, columns are predictions."""
    # torchmetrics has the same function, but its import takes seconds.
    cells = (targets * classes + predictions).numpy()
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def wilson_interval(right: int, total: int) -> tuple[float, float]:
    """Return the 95% confidence interval of right / total (Wilson 1927). If `total` is 0, return (0, 1)."""
    if not total:
        return 0.0, 1.0
    p, z = right / total, 1.96
    middle = p + z * z / (2 * total)
    half = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return max((middle - half) / scale, 0.0), min((middle + half) / scale, 1.0)


def _one_hot(classes: Tensor, outputs: Tensor) -> Tensor:
    """Return classes, (N,), as (N, K) bool."""
    return outputs.new_zeros(outputs.shape).scatter(1, classes[:, None], 1).bool()


@dataclass(frozen=True, eq=False)
class ClassSamples(Samples):
    """Predictions of a pass. Targets are (N,) int64 classes."""

    prediction: Tensor  # (N,) int64 class
    confidence: Tensor  # (N,) float32, probability of the predicted class
    target_confidence: Tensor  # (N,) float32, probability of the true class


class ClassTask(Task[S]):
    """Base class of tasks whose outputs are logits, with the classes in their second dimension."""

    unit, units = "class", "classes"
    figure_file = "confusion.png"

    def average(self, views: Sequence[Tensor]) -> Tensor:
        """Return the logarithms of the mean probabilities over the views."""
        logs = [F.log_softmax(output, dim=1) - math.log(len(views)) for output in views]
        return torch.stack(logs).logsumexp(dim=0)

    def activate(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(dim=1)

    def confused(self, matrix: Matrix) -> tuple[Block, ...]:
        """Return the confusion matrix or its image. With many classes, put a table of the most confused pairs first."""
        names = matrix.names
        shown: Matrix | FigureImage = matrix
        if len(names) > _TABLE:
            alt = f"Confusion matrix of {self.count(len(names))}, rows true, columns predicted"
            shown = FigureImage("Confusion matrix", alt)
        pairs = most_confused(matrix.counts, names, _PAIRS)
        if len(names) <= _BESIDE or not pairs:
            return (shown,)
        title = f"The {amount(len(pairs), 'most confused pair')}"
        if matrix.shares:
            rows = [(true, predicted, percent(share, 1)) for true, predicted, _, share in pairs]
            return Table(f"{title}, by pixels", ("true", "mistaken for", "of the class"), rows, left=2), shown
        counted = [(true, predicted, str(times), percent(share)) for true, predicted, times, share in pairs]
        return Table(title, ("true", "mistaken for", "times", "of the class"), counted, left=2), shown


@register
class Classify(ClassTask[ClassSamples]):
    """One class for each image."""

    name = "classify"
    monitor, score, score_title, unit_score = "val_accuracy", "accuracy", "Accuracy", "recall"
    samples = ClassSamples
    loss_type = ClassLoss
    loss_settings = ("loss", "loss_options", "label_smoothing")
    top = 3

    def unit_metrics(self, names: Sequence[str], asked: Collection[str] | None = None) -> list[TaskMetric]:
        """Return the per-class metrics, and the top-k accuracy for each k below the number of classes."""
        counts = (count for count in range(1, len(names)) if count != _TOP and is_asked(f"top{count}", asked))
        return [*super().unit_metrics(names, asked), *map(_top_metric, counts)]

    def example(self, names: int, *, shares: bool = False) -> tuple[Tensor, Tensor]:
        outputs, targets = super().example(names)
        return outputs, torch.full_like(targets, 1 / names) if shares else targets[:, 0].long()

    def unmixed(self, targets: Tensor) -> Tensor:
        """Return the class with the largest share in each image, (N,)."""
        return targets.argmax(dim=1) if targets.ndim == 2 else targets

    def keep(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Return the fields that `ClassSamples` adds to `Samples`."""
        shares, predictions = outputs.softmax(dim=1), outputs.argmax(dim=1)
        confidence, target_confidence = (shares.gather(1, of[:, None])[:, 0] for of in (predictions, targets))
        return {"prediction": predictions, "confidence": confidence, "target_confidence": target_confidence}

    def per_class(self, samples: ClassSamples, names: Sequence[str]) -> dict[str, dict[str, float]]:
        """Return each class's number of correct images, number of images, recall, precision, specificity and F1."""
        counts = class_counts(samples.target, samples.prediction, len(names))
        rates, right, of = rates_of_classes(counts, names), counts[0].int().tolist(), counts[2].int().tolist()
        return {name: {"right": right[i], "of": of[i], **rates[name]} for i, name in enumerate(names)}

    def evaluate(self, values: MetricsRow, samples: ClassSamples, names: Sequence[str]) -> Evaluation:
        scores = super().evaluate(values, samples, names)
        low, high = wilson_interval(*self.right_of(samples))
        interval = f"(95% interval {low:.4f} to {high:.4f}, {amount(scores.images, 'image')})"
        return replace(
            scores,
            values=values | {"interval": [low, high]},
            per_class={name: (found["right"], found["of"]) for name, found in scores.per_class.items()},
            class_rates={name: {rate: found[rate] for rate in RATES} for name, found in scores.per_class.items()},
            sentence=f"val_accuracy {values['val_accuracy']:.4f} {interval}",
        )

    def right_of(self, samples: ClassSamples) -> tuple[int, int]:
        return int((samples.prediction == samples.target).sum()), len(samples.target)

    def figure(self, samples: ClassSamples, names: Sequence[str]) -> Matrix | None:
        if len(names) > _MATRIX:
            return None
        return Matrix(confusion(samples.target, samples.prediction, len(names)), names)

    def section(self, samples: ClassSamples, names: Sequence[str]) -> tuple[Block, ...]:
        matrix, bars = self.figure(samples, names), []
        for name, found in self.worst_first(self.per_class(samples, names)):
            right, total = int(found["right"]), int(found["of"])
            bars.append((name, Bar(right / total, wilson_interval(right, total)), (f"{right} of {total}",)))
        scores = Bars(
            "Accuracy of each class in the best epoch, worst first",
            ("class", "accuracy and 95% interval", "correct images"),
            bars,
        )
        return scores, *(self.confused(matrix) if matrix else ()), self.rates_table(self.per_class(samples, names))

    def findings(self, samples: ClassSamples, names: Sequence[str]) -> Iterator[Finding]:
        # The accuracy of a model that always predicts the largest class.
        chance = int(samples.target.bincount().max()) / len(samples.target)
        if len(names) > 1 and wilson_interval(*self.right_of(samples))[0] <= chance:
            yield Finding(
                f"The best accuracy is not significantly better than always predicting the largest class "
                f"({percent(chance)}).",
                warning=True,
            )
        classes = self.worst_first(self.per_class(samples, names))
        if len(classes) < 2:
            return
        name, worst = classes[0]
        if worst["right"] == worst["of"]:
            yield Finding("All validation images are classified correctly.")
            return
        predicted = samples.prediction[samples.target == list(names).index(name)].bincount(minlength=len(names))
        other, count = most_often(predicted.numpy(), names, name)
        times = "once" if count == 1 else f"{count} times"
        yield Finding(
            f"Worst class: {name} at {percent(worst['recall'])} ({worst['right']} of {worst['of']}), "
            f"most often mistaken for {other} ({times})."
        )

    def mistakes(self, samples: ClassSamples, names: Sequence[str]) -> Iterator[WrongSample]:
        """Yield the misclassified images, the most confident first."""
        order = samples.confidence.argsort(descending=True, stable=True)
        order = order[samples.target[order] != samples.prediction[order]]
        columns = (order, *(values[order] for values in (samples.target, samples.prediction, samples.confidence)))
        for i, true, predicted, confidence in zip(*(column.tolist() for column in columns), strict=True):
            yield WrongSample(i, names[true], names[predicted], confidence)


def most_confused(confusion: NDArray[np.int64], names: Sequence[str], count: int) -> list[tuple[str, str, int, float]]:
    """Return the `count` pairs of classes that are confused most often, the most frequent first.

    Each entry has the true class, the predicted class, the number of images, and their share of the true class.
    """
    wrong = confusion - np.diag(confusion.diagonal())
    order = np.argsort(-wrong, axis=None, kind="stable")[:count]
    totals = confusion.sum(axis=1)
    return [
        (names[true], names[predicted], int(wrong[true, predicted]), wrong[true, predicted] / totals[true])
        for true, predicted in zip(*np.unravel_index(order, wrong.shape), strict=True)
        if wrong[true, predicted]
    ]


def most_often(predicted: NDArray[np.int64], names: Sequence[str], name: str) -> tuple[str, int]:
    """Return the class that the class `name` is most often mistaken for, and how often.

    `predicted` counts the predictions for this class, (C,).
    """
    others = predicted.copy()
    others[list(names).index(name)] = 0
    return names[int(others.argmax())], int(others.max())
