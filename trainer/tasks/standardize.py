"""Standardized regression: the model learns numbers of any size in standard deviations from the mean.

A hook scales and shifts the network's raw outputs by two buffers, which are part of its state. So the model's outputs
are in the data's own units in training, validation and prediction, and a checkpoint needs nothing else. Only the loss
is measured in standard deviations, where all numbers count alike, whatever their units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from augment.data.targets.kind import Target
from augment.support.lazy import Tensor, nn, torch
from trainer.tasks.losses import LossFunction

# Names of the two buffers.
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
    def of(cls, targets: Sequence[Target]) -> Standard:
        """Return mean and std of a split's targets, rows of K numbers; for a constant number, std is 1."""
        values = np.array(targets, np.float64)
        mean, std = values.mean(axis=0), values.std(axis=0)
        # A constant's deviation need not be exactly 0, as its mean is rounded.
        std[std <= 1e-12 * np.abs(mean)] = 1.0
        return cls(torch.tensor(mean, dtype=torch.float32), torch.tensor(std, dtype=torch.float32))

    @classmethod
    def in_state(cls, state: Mapping[str, Any]) -> Standard | None:
        """Return mean and std from the state of a model; None if it has none."""
        return cls(state[MEAN], state[STD]) if MEAN in state else None

    def describe(self, names: Sequence[str]) -> str:
        """Return "age 41.2 +- 20.3", for each name."""
        pairs = zip(names, self.mean.tolist(), self.std.tolist(), strict=True)
        return ", ".join(f"{name} {mean:.4g} +- {std:.4g}" for name, mean, std in pairs)

    def put_into(self, network: nn.Module) -> None:
        """Make a network whose outputs are standard deviations from the mean return numbers in their own units."""
        network.register_buffer(MEAN, self.mean.clone())
        network.register_buffer(STD, self.std.clone())
        network.register_forward_hook(_in_own_units)

    def loss(self, loss: LossFunction, device: torch.device) -> LossFunction:
        """Return a loss of numbers in their own units that is measured in standard deviations.

        Args:
            loss: depends only on the difference between outputs and targets.
            device: the device of outputs and targets.
        """
        std = self.std.to(device)

        def standardized(outputs: Tensor, targets: Tensor) -> Tensor:
            # The difference first: dividing large numbers first would lose digits.
            errors = (outputs - targets) / std
            return loss(errors, torch.zeros_like(errors))

        return standardized


def _in_own_units(network: nn.Module, _: Any, output: Tensor) -> Tensor:
    # In float32 even where the network runs in bfloat16, which cannot tell the year 1990 from 1992.
    mean, std = network.get_buffer(MEAN), network.get_buffer(STD)
    return output.float() * std + mean
