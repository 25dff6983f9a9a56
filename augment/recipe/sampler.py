"""Draw the random parameters of every sample, as a pure function of its position: no hidden state, nothing to save."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from augment.params import Range
from augment.recipe.kinds import Array, Mask, PolicyOp
from augment.recipe.layout import child_path, choose, slots_of
from augment.recipe.plan import Plan
from augment.recipe.stage import Draws
from augment.recipe.steps import Step
from augment.support.seeds import derive_seed

# Whose draws are wanted: the epoch, the position of the first sample in it, the number of samples, and, for calls of a
# `Transform` that follow each other, the number of these, of so many samples each.
Where = tuple[int, int, int] | tuple[int, int, int, int]

CALL = 2**32  # from the position of a call's first sample to that of the next call's
_WORD = 2**64 - 1
_DOUBLES = 4  # that Philox 4x64 yields for each value of its counter


@dataclass(frozen=True)
class Sampler:
    """Draws the random parameters of a plan's steps.

    Each step has its own stream, keyed by (seed, split, rank, step key, epoch), and each sample of an epoch a fixed
    position in it. Draws are therefore the same on every device and for any batch size, and adding a step changes no
    other step's draws. The values of a step with `draw: once` come from a stream keyed by (seed, step path) alone: one
    row, the same for every sample, epoch, rank, view and split; whether the step applies is still drawn for each
    sample. Method: counter-based generators (Philox, Salmon et al. 2011).

    Attributes:
        plan: the plan whose steps need parameters.
        seed: the run's seed.
        rank: the rank of this process among those that share an epoch.
        view: index of the view, where several are made of each image; steps that it shares draw as in view 0.
    """

    plan: Plan
    seed: int
    rank: int = 0
    view: int = 0

    def draw(self, epoch: int, start: int, count: int, calls: int = 1) -> dict[str, Draws]:
        """Draw for the samples at positions start..start + count - 1 of an epoch.

        Args:
            epoch: the epoch, from 0.
            start: position of the first sample in this rank's epoch.
            count: number of samples.
            calls: draw for so many calls of `count` samples, one after the other, the first of which is at `start`.

        Returns:
            For each step's key its drawn values by name, (calls * count,) each, and `applied`, of so many bools, true
            with the step's probability. The key of a step within a policy is its path.
        """
        draws: dict[str, Draws] = {}
        all_samples = np.ones(calls * count, dtype=bool)
        for step in self.plan.tree:
            self._draw(draws, step, (step.key, step.key), all_samples, (epoch, start, count, calls))
        return draws

    def _draw(self, draws: dict[str, Draws], step: Step, paths: tuple[str, str], reached: Mask, where: Where) -> None:
        """Draw for a step and the steps within it; `reached` are the samples for which an outer policy chose it.

        The first of the two paths distinguishes the slots of a policy that a step may run in, the second does not.
        """
        path, whole = paths
        op = step.op
        own = len(op.draws) + len(op.uniforms)
        # One column decides whether the step applies, even at p = 1, so that changing p shifts no other draw.
        nothing = own == 0 and step.p == 1
        uniform = np.zeros((len(reached), 1)) if nothing else self.uniform(path, where, 1 + own)
        drawn: dict[str, Any] = {"applied": reached & (uniform[:, 0] < step.p)}
        if step.drawn_once:
            uniform[:, 1:] = _generator(derive_seed(self.seed, "once", whole)).random(own)
        for column, (value, name) in enumerate(op.draws.items(), 1):
            param = op.params[name]
            assert isinstance(param, Range)
            drawn[value] = param.draw(step.params[name], uniform[:, column])
        for column, value in enumerate(op.uniforms, 1 + len(op.draws)):
            drawn[value] = uniform[:, column]
        if not isinstance(op, PolicyOp):
            draws[path] = drawn
            return
        slots = slots_of(step)
        certain = all(slot == {number: 1.0} for number, slot in enumerate(slots))
        # Each nested step has a stream, under a key that is not a path: adding a step keeps the others' numbers.
        names = [] if certain else [f"{path}.{child.key}." for child in step.steps]
        columns = [self.uniform(name, where, 1) for name in names[: op.numbers]]
        chosen = choose(step, np.hstack(columns), {v: drawn[v] for v in op.draws}) if columns else None
        for number, slot in enumerate(slots):
            for i in slot:
                child = step.steps[i]
                reached_child = drawn["applied"] if chosen is None else drawn["applied"] & (chosen[:, number] == i)
                paths = child_path(path, number, slots, child, i), f"{whole}.{child.key}"
                self._draw(draws, child, paths, reached_child, where)

    def uniform(self, key: str, where: Where, columns: int) -> Array:
        """Return (samples, columns) numbers in [0, 1) of the stream of a step's key, which no other key shares."""
        epoch, start, count, calls = (*where, 1)[:4]
        counter, skip = divmod(start * columns, _DOUBLES)
        view = (self.view,) if self.view and key.split(".")[0] not in self.plan.shared else ()
        seed = derive_seed(self.seed, self.plan.split, self.rank, key, epoch, *view)
        stream, drawn = _generator(seed), np.empty((calls, skip + count * columns))
        # Of lists, which NumPy reads faster than arrays, and than it advances a stream.
        state = {**stream.bit_generator.state, "buffer": [0] * _DOUBLES}
        for call in drawn:
            state["state"] = {"counter": [counter & _WORD, counter >> 64, 0, 0], "key": [seed & _WORD, seed >> 64]}
            stream.bit_generator.state = state
            stream.random(out=call)
            counter += CALL * columns // _DOUBLES
        return drawn[:, skip:].reshape(calls * count, columns)


class _Key(ISeedSequence):
    """A key of 128 bits. For `Philox(key=...)`, NumPy asks the system for entropy, too, and takes 3 times as long."""

    def __init__(self, key: int) -> None:
        self._words = np.array([key & _WORD, key >> 64], np.uint64)

    def generate_state(self, n_words: int, dtype: Any = None) -> Any:
        return self._words


def _generator(key: int) -> np.random.Generator:
    seed: Any = _Key(key)  # NumPy's stubs know no other sequence than its own
    return np.random.Generator(np.random.Philox(seed))
