"""Numbers of any size to predict: the model learns them in standard deviations from the mean, and says what they are.

What the network itself puts out is multiplied and shifted behind it, by two buffers that lie in its state: so whoever
asks the model, in training, validation or prediction, is told numbers in the data's own units, and a checkpoint needs
nothing besides. Only the loss is measured in standard deviations, where all numbers count alike, whatever their units.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from augment.dataset import Target
from augment.errors import UserError
from trainer.losses import LossFunction

# Names of the two buffers, beside which no model may have others.
MEAN, STD = "target_mean", "target_std"


@dataclass(frozen=True)
class Standard:
    """Mean and standard deviation of some numbers.

    Attributes:
        mean: (K,) float32.
        std: (K,) float32, above 0.
    """

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, targets: Sequence[Target]) -> "Standard":
        """Return those of a split's targets, rows of K numbers; of a number that is always the same, std is 1."""
        values = np.array(targets, np.float64)
        mean, std = values.mean(axis=0), values.std(axis=0)
        # A constant's deviation need not be exactly 0: its mean is rounded.
        std[std <= 1e-12 * np.abs(mean)] = 1.0
        return cls(torch.tensor(mean, dtype=torch.float32), torch.tensor(std, dtype=torch.float32))

    @classmethod
    def in_state(cls, state: Mapping[str, Any]) -> "Standard | None":
        """Return those in the state of a model; None if there are none."""
        return cls(state[MEAN], state[STD]) if MEAN in state else None

    def told(self, names: Sequence[str]) -> str:
        """Write them for people, "age 41.2 +- 20.3"."""
        pairs = zip(names, self.mean.tolist(), self.std.tolist(), strict=True)
        return ", ".join(f"{name} {mean:.4g} +- {std:.4g}" for name, mean, std in pairs)

    def put_into(self, network: nn.Module) -> None:
        """Make a network say numbers as they are, whose own outputs are standard deviations from the mean."""
        network.register_buffer(MEAN, self.mean.clone())
        network.register_buffer(STD, self.std.clone())
        network.register_forward_hook(_as_they_are)

    def loss(self, loss: LossFunction, device: torch.device) -> LossFunction:
        """Return a loss of numbers as they are that is measured in standard deviations, on a device.

        Args:
            loss: depends on the difference between outputs and targets only.
            device: where they are.
        """
        return _StandardLoss(loss, self.std.to(device))


@dataclass(frozen=True, eq=False)
class _StandardLoss:
    loss: LossFunction
    std: Tensor

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        # The difference first: where the mean is large, a share of it would be lost to rounding.
        errors = (outputs - targets) / self.std
        return self.loss(errors, torch.zeros_like(errors))


def check_same(network: nn.Module, state: Mapping[str, Any]) -> None:
    """Check that a model and a saved state of one both standardize, or neither.

    Raises:
        UserError: only one does.
    """
    before, now = MEAN in state, MEAN in dict(network.named_buffers())
    if before != now:
        raise UserError(
            f"fit.standardize={str(now).lower()}: not that of the saved run. Allowed: {str(before).lower()}."
        )


def _as_they_are(network: nn.Module, _: Any, output: Tensor) -> Tensor:
    # In float32 also where the network runs in bfloat16, of which a year of 1990 is as good as 1992.
    mean, std = network.get_buffer(MEAN), network.get_buffer(STD)
    return output.float() * std + mean
