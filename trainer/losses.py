"""What is minimized."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cross_entropy


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
