"""What is minimized, for each task."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, huber_loss, l1_loss, mse_loss

from augment.dataset import Task
from augment.params import settings

LossFunction = Callable[[Tensor, Tensor], Tensor]

# Name in the configuration -> loss of numbers, a mean over the batch and the numbers of a picture.
REGRESSION_LOSSES: Mapping[str, LossFunction] = MappingProxyType({"mse": mse_loss, "mae": l1_loss, "huber": huber_loss})

# Settings of the loss that count for some tasks alone.
_TASKS: Mapping[str, tuple[Task, ...]] = MappingProxyType(
    {"label_smoothing": ("classify", "multilabel"), "regression_loss": ("regress",), "standardize": ("regress",)}
)


@dataclass(frozen=True)
class CrossEntropy:
    """Cross entropy, a mean over the batch.

    Attributes:
        smoothing: share of every target that is spread evenly over all classes (Szegedy et al. 2016,
            arXiv:1512.00567), in [0, 1).
        weights: (classes,) of what a target has of each class, on the device; None: 1. The mean is that of PyTorch for
            indices: the pictures weigh what their classes do, and the sum is divided by the sum of these weights. For
            shares, where PyTorch divides by the pictures, it is the same here: an index is the share 1.
    """

    smoothing: float = 0.0
    weights: Tensor | None = field(default=None, compare=False)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return it.

        Args:
            outputs: (N, classes).
            targets: (N,) class indices, or (N, classes) shares.
        """
        if self.weights is None or targets.ndim == 1:
            return cross_entropy(outputs, targets, self.weights, label_smoothing=self.smoothing)
        total = cross_entropy(outputs, targets, self.weights, label_smoothing=self.smoothing, reduction="sum")
        return total / (targets @ self.weights).sum()


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """Cross entropy of each label by itself, present or not, a mean over the batch and the labels.

    Attributes:
        smoothing: share of every target that is spread evenly over the two, in [0, 1).
        weights: (labels,) of the presence of each label, on the device; its absence weighs 1. None: 1.
    """

    smoothing: float = 0.0
    weights: Tensor | None = field(default=None, compare=False)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return it.

        Args:
            outputs: (N, labels) logits.
            targets: (N, labels) in [0, 1].
        """
        if self.smoothing:
            targets = targets * (1 - self.smoothing) + self.smoothing / 2
        return binary_cross_entropy_with_logits(outputs, targets, pos_weight=self.weights)


def make_loss(
    task: Task, *, smoothing: float = 0.0, regression: str = "mse", weights: Tensor | None = None
) -> LossFunction:
    """Return the loss of a task.

    Args:
        task: what the targets are.
        smoothing: share of every target that is spread, of classes and labels.
        regression: a name of `REGRESSION_LOSSES`.
        weights: (K,) of classes or labels; None: 1.
    """
    if task == "regress":
        return REGRESSION_LOSSES[regression]
    return (BinaryCrossEntropy if task == "multilabel" else CrossEntropy)(smoothing, weights)


def without_effect(fit: object, task: Task) -> Iterator[str]:
    """Say which settings of the loss were set and change nothing with this task.

    Args:
        fit: the settings of the fit.
        task: what the targets are.
    """
    for name, tasks in _TASKS.items():
        param, value = settings(type(fit))[name], getattr(fit, name)
        if task not in tasks and value != param.default:
            what = "numbers" if task == "regress" else "labels" if task == "multilabel" else "classes"
            yield f"fit.{name}={param.show(value)} has no effect where {what} are predicted"
