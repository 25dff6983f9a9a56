"""The random parameters of every sample, as a pure function of where it stands: no hidden state, nothing to save."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from augment.config import Step
from augment.layout import child_path, choose, slots_of
from augment.params import Range
from augment.plan import Plan
from augment.registry import Array, Mask
from augment.stage import Draws

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
    step's draws. The values of a step with `draw: once` come from a stream keyed by (seed, step path) alone: one row,
    the same for every sample, epoch, rank, view and split; whether it applies is drawn for each sample. Source:
    counter-based generators, Salmon et al. 2011 (Philox).

    Attributes:
        plan: whose steps.
        seed: of the run.
        rank: of this process among those that share an epoch.
        view: of the several pictures that are made of one.
    """

    plan: Plan
    seed: int
    rank: int = 0
    view: int = 0

    def draw(self, epoch: int, start: int, count: int) -> dict[str, Draws]:
        """Draw for the samples at places start..start + count of an epoch.

        Returns:
            For each step's key its drawn values by name, (count,) each, uniform in the step's range, and `applied`,
            (count,) bool, true with the step's probability. A step within a policy has its path as key.
        """
        draws: dict[str, Draws] = {}
        everybody = np.ones(count, dtype=bool)
        for step in self.plan.tree:
            self._draw(draws, step, (step.key, step.key), everybody, (epoch, start, count))
        return draws

    def _draw(
        self, draws: dict[str, Draws], step: Step, paths: tuple[str, str], reached: Mask, where: tuple[int, int, int]
    ) -> None:
        """Draw for a step and all within it, of the samples that it is reached for.

        Of the two paths the first one tells the slots of a policy apart in which a step may run, the second does not.
        """
        path, whole = paths
        op = step.op
        own = len(op.draws) + len(op.uniforms)
        # One column decides whether the step applies, also at p = 1: changing p moves no other draw.
        uniform = self._uniform(path, where, 1 + own)
        drawn: dict[str, Any] = {"applied": reached & (uniform[:, 0] < step.p)}
        if step.drawn_once:
            uniform[:, 1:] = _generator(derive_seed(self.seed, "once", whole)).random(own)
        for column, (value, name) in enumerate(op.draws.items(), 1):
            param = op.params[name]
            assert isinstance(param, Range)
            drawn[value] = param.draw(step.params[name], uniform[:, column])
        for column, value in enumerate(op.uniforms, 1 + len(op.draws)):
            drawn[value] = uniform[:, column]
        if op.kind != "policy":
            draws[path] = drawn
            return
        # A stream for each nested step, under a key that no path is: another one leaves its numbers as they are.
        columns = [self._uniform(f"{path}.{child.key}.", where, 1) for child in step.steps] if op.nests else []
        numbers = np.concatenate(columns, axis=1) if columns else np.zeros((len(uniform), len(step.steps)))
        chosen = choose(step, numbers, {value: drawn[value] for value in op.draws})
        slots = slots_of(step)
        for number, slot in enumerate(slots):
            for i in slot:
                child = step.steps[i]
                reached_child = drawn["applied"] & (chosen[:, number] == i)
                paths = child_path(path, number, slots, child, i), f"{whole}.{child.key}"
                self._draw(draws, child, paths, reached_child, where)

    def _uniform(self, key: str, where: tuple[int, int, int], columns: int) -> Array:
        """Cut (count, columns) out of the step's endless table of numbers in [0, 1)."""
        epoch, start, count = where
        counter, skip = divmod(start * columns, _DOUBLES)
        view = (self.view,) if self.view else ()
        stream = derive_seed(self.seed, self.plan.split, self.rank, key, epoch, *view)
        return _generator(stream, counter).random(skip + count * columns)[skip:].reshape(count, columns)


def _generator(key: int, counter: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
