"""Draw the random values of every sample as a pure function of its position, without hidden state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from augment.params import Range
from augment.recipe.fusion import child_path, choose, slots_of
from augment.recipe.op_kinds import Array, Mask, PolicyOp
from augment.recipe.plan import Plan
from augment.recipe.stage import Draws
from augment.recipe.step import Step
from augment.support.seeds import derive_seed

CALL = 2**32  # distance between the positions of the first samples of two consecutive calls
_WORD = 2**64 - 1
_DOUBLES = 4  # numbers per counter value of Philox 4x64


class SampleRange(NamedTuple):
    """The samples to draw for: the arguments of `Sampler.draw`."""

    epoch: int
    start: int
    size: int
    calls: int = 1

    @property
    def total(self) -> int:
        """The number of samples of all calls."""
        return self.calls * self.size


@dataclass(frozen=True)
class Sampler:
    """Draws the random values of a plan's steps with counter-based generators (Philox, Salmon et al. 2011).

    Each step has its own stream, with the key (seed, split, rank, step key, epoch). Views after the first add their
    number to the key, except for shared steps. Each sample of an epoch has a fixed position in the stream. Draws are
    therefore equal on every device and for any batch size, and adding a step changes no other step's draws. A step with
    `draw: once` uses a stream with the key (seed, step path). Its values are equal for every sample, epoch, rank, view
    and split, but whether the step applies is still drawn for each sample.

    Attributes:
        plan: the plan with the steps.
        seed: the run's seed.
        rank: the rank of this process among the processes that share an epoch.
        view: index of the view. Steps that the view shares use the draws of view 0.
    """

    plan: Plan
    seed: int
    rank: int = 0
    view: int = 0

    def draw(self, epoch: int, start: int, size: int, calls: int = 1) -> dict[str, Draws]:
        """Draw values for the samples at the positions from `start` to `start + size - 1` of an epoch.

        Args:
            epoch: the epoch, from 0.
            start: position of the first sample in this rank's epoch.
            size: number of samples.
            calls: number of consecutive calls with `size` samples each. The first call begins at `start`.

        Returns:
            For each step's key, its drawn values by name, (calls * size,) each, and whether it is `applied` to each
            sample. The key of a step within a policy is its path.
        """
        draws: dict[str, Draws] = {}
        where = SampleRange(epoch, start, size, calls)
        all_samples = np.ones(where.total, dtype=bool)
        for step in self.plan.tree:
            self._draw(draws, step, (step.key, step.key), all_samples, where)
        return draws

    def _draw(
        self, draws: dict[str, Draws], step: Step, paths: tuple[str, str], reached: Mask, where: SampleRange
    ) -> None:
        """Add the draws of a step, and of the steps nested in it, to `draws`.

        Args:
            draws: the draws by path. This method adds to them.
            step: the step to draw for.
            paths: the step's path with the slots of its policies, and the path without slots.
            reached: whether the policies chose the step for each sample, (N,) bool.
            where: the samples.
        """
        path, path_without_slots = paths
        drawn = self._draw_own(step, path, path_without_slots, reached, where)
        if not isinstance(step.op, PolicyOp):
            draws[path] = drawn
            return
        slots = slots_of(step)
        chosen = self._choose(step, path, slots, drawn, where)
        for number, slot in enumerate(slots):
            for index in slot:
                child = step.steps[index]
                child_paths = child_path(path, number, slots, child, index), f"{path_without_slots}.{child.key}"
                reached_child = drawn["applied"]
                if chosen is not None:
                    reached_child = reached_child & (chosen[:, number] == index)
                self._draw(draws, child, child_paths, reached_child, where)

    def _draw_own(
        self, step: Step, path: str, path_without_slots: str, reached: Mask, where: SampleRange
    ) -> dict[str, Any]:
        """Return whether the step is `applied` to each sample, and its values by name, (N,) each."""
        op = step.op
        count = len(op.draws) + len(op.uniforms)
        if count == 0 and step.p == 1:
            return {"applied": reached.copy()}

        # The first column decides whether the step applies, even if p is 1. A change of p then shifts no other draw.
        uniform = self.uniform(path, where, 1 + count)
        applied, columns = reached & (uniform[:, 0] < step.p), uniform[:, 1:]
        if step.drawn_once:
            columns[:] = _generator(derive_seed(self.seed, "once", path_without_slots)).random(count)

        drawn: dict[str, Any] = {"applied": applied}
        for column, (value, name) in enumerate(op.draws.items()):
            param = cast(Range, op.params[name])
            drawn[value] = param.draw(step.params[name], columns[:, column])
        for column, value in enumerate(op.uniforms, start=len(op.draws)):
            drawn[value] = columns[:, column]
        return drawn

    def _choose(
        self, step: Step, path: str, slots: Sequence[Mapping[int, float]], drawn: Mapping[str, Any], where: SampleRange
    ) -> Array | None:
        """Return the index of the nested step that each slot of a policy runs, (N, slots), or None if all steps run."""
        op = cast(PolicyOp, step.op)
        if all(slot == {number: 1.0} for number, slot in enumerate(slots)):
            return None
        # Each nested step has its own stream, so that adding a step does not change the numbers of other steps. The dot
        # at the end makes the key differ from every path.
        keys = [f"{path}.{child.key}." for child in step.steps][: op.numbers]
        if not keys:
            return None
        uniform = np.hstack([self.uniform(key, where, 1) for key in keys])
        return choose(step, uniform, {value: drawn[value] for value in op.draws})

    def uniform(self, key: str, where: SampleRange, columns: int) -> Array:
        """Return (samples, columns) numbers in [0, 1) from the stream of a step's key."""
        epoch, start, size, calls = where
        # Steps that views share use the draws of view 0.
        is_shared = key.split(".")[0] in self.plan.shared
        view = () if self.view == 0 or is_shared else (self.view,)
        seed = derive_seed(self.seed, self.plan.split, self.rank, key, epoch, *view)

        # A counter value yields four numbers. The first few may belong to earlier samples.
        counter, skip = divmod(start * columns, _DOUBLES)
        drawn = np.empty((calls, skip + size * columns))
        generator = _generator(seed)
        # Setting a state that consists of lists is faster than setting arrays, and faster than advancing the stream.
        state = {**generator.bit_generator.state, "buffer": [0] * _DOUBLES}
        for call in drawn:
            state["state"] = {"counter": [counter & _WORD, counter >> 64, 0, 0], "key": [seed & _WORD, seed >> 64]}
            generator.bit_generator.state = state
            generator.random(out=call)
            counter += CALL * columns // _DOUBLES
        return drawn[:, skip:].reshape(where.total, columns)


class _Key(ISeedSequence):
    """A 128-bit key. `Philox(key=...)` would be 3x slower, because NumPy also requests entropy from the system."""

    def __init__(self, key: int) -> None:
        self._words = np.array([key & _WORD, key >> 64], np.uint64)

    def generate_state(self, n_words: int, dtype: Any = None) -> Any:
        return self._words


def _generator(key: int) -> np.random.Generator:
    seed: Any = _Key(key)  # NumPy's type stubs accept only NumPy's own sequence
    return np.random.Generator(np.random.Philox(seed))
