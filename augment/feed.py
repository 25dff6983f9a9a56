"""What the sampler draws, as DALI's external_source asks for it, batch by batch."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.sampler import Sampler
from augment.stage import Stage

Values = NDArray[Any]

# Samples whose parameters are drawn at once: one vectorized step for several batches costs little more than for one.
_BLOCK = 4096


class Feed:
    """The parameters of every batch, for DALI's external_source: a pure function of the batch's number.

    Args:
        sampler: draws the parameters of the plan's steps.
        batch_size: samples in a batch.
        batches: batches in an epoch, the padded last one included.
        epoch: epoch of batch 0.
        fixed: stay in that epoch for ever, as validation does.
        neutral: feed neutral values to samples that a step leaves out, where its op has some, in place of a mask: on
            the GPU an operator for the whole batch is cheaper than one more operator.
    """

    def __init__(
        self, sampler: Sampler, *, batch_size: int, batches: int, epoch: int, fixed: bool, neutral: bool = False
    ) -> None:
        self._sampler = sampler
        self._batch_size = batch_size
        self._batches = batches
        self._epoch = epoch
        self._fixed = fixed
        self._neutral = neutral
        self._together = max(1, _BLOCK // batch_size)
        self._block: tuple[tuple[int, int], list[Values]] | None = None

    def __call__(self, info: Any) -> list[Values]:
        """Return the values of batch `info.iteration`, those of every stage one after the other, see `names`."""
        return self.values(info.iteration)

    def names(self) -> list[list[str]]:
        """Return for each stage what is fed to it, in order."""
        draws = self._sampler.draw(0, 0, 1)
        return [list(self._stage_values(stage, draws)) for stage in self._sampler.plan.image_stages]

    def values(self, iteration: int) -> list[Values]:
        """Return (batch_size, ...) float32, or the type that an op wants, of the batch of that number."""
        passed, batch = divmod(iteration, self._batches)
        epoch = self._epoch + (0 if self._fixed else passed)
        number, offset = divmod(batch, self._together)
        if self._block is None or self._block[0] != (epoch, number):
            self._block = (epoch, number), self._draw(epoch, number * self._together)
        rows = slice(offset * self._batch_size, (offset + 1) * self._batch_size)
        return [values[rows] for values in self._block[1]]

    def _draw(self, epoch: int, batch: int) -> list[Values]:
        count = min(self._together, self._batches - batch) * self._batch_size
        draws = self._sampler.draw(epoch, batch * self._batch_size, count)
        stages = self._sampler.plan.image_stages
        return [values for stage in stages for values in self._stage_values(stage, draws).values()]

    def _stage_values(self, stage: Stage, draws: Any) -> dict[str, Values]:
        size = self._sampler.plan.size
        if stage.kind != "local":
            fed = matrices(stage, stage.matrix(draws, size), size)
            # The identity changes nothing, but on the CPU each warp and each color costs its time.
            spares = not self._neutral and not any(len(place) == 1 and place[0].p == 1 for place in stage.places)
            return {"applied": stage.applied(draws), **fed} if spares else fed
        # Noise depends on a sample's place in what its operator is given: with a mask it would differ from device to
        # device, where one masks and the other does not.
        neutral = stage.neutral and (self._neutral or stage.steps[0].op.random)
        masked = stage.is_gated and not neutral
        values = stage.values(draws, size, neutral=stage.is_gated and not masked)
        plain = {name: compact(value) for name, value in values.items()}
        return {"applied": stage.applied(draws), **plain} if masked else plain


def matrices(stage: Stage, matrix: NDArray[np.float64], size: int) -> dict[str, Values]:
    """Turn a stage's matrices into what its DALI operator takes.

    A warp asks, for each pixel of the result, where it comes from, in pixels from the center of the top left one.
    """
    if stage.kind == "geometry":
        middle = (size - 1) / 2
        there = np.array([[1, 0, middle], [0, 1, middle], [0, 0, 1]])
        back = np.array([[1, 0, -middle], [0, 1, -middle], [0, 0, 1]])
        # Halves of pixels are exact, so the identity stays the identity: a skipped sample is not resampled.
        return {"matrix": compact(there @ np.linalg.inv(matrix) @ back)}
    if stage.looks:
        return {"matrix": compact(matrix[..., :3]), "mean_matrix": compact(matrix[..., 3:])}
    return {"matrix": compact(matrix)}


def compact(values: Values) -> Values:
    """Return values as they travel: in one piece, and float32 in place of float64."""
    return np.ascontiguousarray(values, np.float32 if values.dtype == np.float64 else values.dtype)
