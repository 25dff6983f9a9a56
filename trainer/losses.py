"""What is minimized, for each task."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, huber_loss, l1_loss, mse_loss

from augment.dataset import Task

LossFunction = Callable[[Tensor, Tensor], Tensor]

# Name in the configuration -> loss of numbers, a mean over the batch and the numbers of a picture.
REGRESSION_LOSSES: Mapping[str, LossFunction] = MappingProxyType({"mse": mse_loss, "mae": l1_loss, "huber": huber_loss})


@dataclass(frozen=True)
class CrossEntropy:
    """Cross entropy, a mean over the batch.

    Attributes:
        smoothing: share of every target that is spread evenly over all classes (Szegedy et al. 2016,
            arXiv:1512.00567), in [0, 1).
    """

    smoothing: float = 0.0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return it.

        Args:
            outputs: (N, classes).
            targets: (N,) class indices, or (N, classes) shares.
        """
        return cross_entropy(outputs, targets, label_smoothing=self.smoothing)


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """Cross entropy of each label by itself, present or not, a mean over the batch and the labels.

    Attributes:
        smoothing: share of every target that is spread evenly over the two, in [0, 1).
    """

    smoothing: float = 0.0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return it.

        Args:
            outputs: (N, labels) logits.
            targets: (N, labels) in [0, 1].
        """
        if self.smoothing:
            targets = targets * (1 - self.smoothing) + self.smoothing / 2
        return binary_cross_entropy_with_logits(outputs, targets)


def make_loss(task: Task, *, smoothing: float = 0.0, regression: str = "mse") -> LossFunction:
    """Return the loss of a task.

    Args:
        task: what the targets are.
        smoothing: share of every target that is spread, of classes and labels.
        regression: a name of `REGRESSION_LOSSES`.
    """
    if task == "regress":
        return REGRESSION_LOSSES[regression]
    return BinaryCrossEntropy(smoothing) if task == "multilabel" else CrossEntropy(smoothing)
