"""The random parameters of every sample, as a pure function of where it stands: no hidden state, nothing to save."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from augment.config import Step
from augment.plan import Draws, Plan
from augment.registry import Array

# Philox 4x64 makes four doubles for each step of its counter.
_DOUBLES = 4


def derive_seed(*parts: int | str) -> int:
    """Hash a tuple of names and numbers into 128 bits, the same on every machine and in every process."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=16).digest(), "little")


@dataclass(frozen=True)
class Sampler:
    """Draws the parameters of a plan's steps.

    Each step has a stream of its own, keyed by (seed, split, rank, step key, epoch), and each sample of the epoch a
    fixed place in it. Hence the same draws on every device and for any batch size, and adding a step changes no other
    step's draws. Source: counter-based generators, Salmon et al. 2011 (Philox).

    Attributes:
        plan: whose steps.
        seed: of the run.
        rank: of this process among those that share an epoch.
    """

    plan: Plan
    seed: int
    rank: int = 0

    def draw(self, epoch: int, start: int, count: int) -> dict[str, Draws]:
        """Draw for the samples at places start..start + count of an epoch.

        Returns:
            For each step's key its drawn values by name, (count,) each, uniform in the step's range, and `applied`,
            (count,) bool, true with the step's probability.
        """
        return {step.key: self._draw_step(step, epoch, start, count) for step in self.plan.steps}

    def _draw_step(self, step: Step, epoch: int, start: int, count: int) -> Draws:
        # One column decides whether the step applies, also at p = 1: changing p moves no other draw.
        uniform = self._uniform(step.key, epoch, start, count, 1 + len(step.op.draws))
        drawn: dict[str, Any] = {"applied": uniform[:, 0] < step.p}
        for column, (value, parameter) in enumerate(step.op.draws.items(), 1):
            low, high = step.params[parameter]
            drawn[value] = low + (high - low) * uniform[:, column]
        return drawn

    def _uniform(self, key: str, epoch: int, start: int, count: int, columns: int) -> Array:
        """Cut (count, columns) out of the step's endless table of numbers in [0, 1)."""
        counter, skip = divmod(start * columns, _DOUBLES)
        stream = derive_seed(self.seed, self.plan.split, self.rank, key, epoch)
        generator = np.random.Generator(np.random.Philox(key=stream, counter=counter))
        return generator.random(skip + count * columns)[skip:].reshape(count, columns)
