"""Feed what the sampler draws to DALI's external_source, batch by batch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from augment.params import Size
from augment.pipeline.graph.sample_order import Reading
from augment.recipe.sampler import CALL, Sampler, Where
from augment.recipe.stage import Draws, Stage
from augment.support.background import Background
from augment.support.errors import UserError
from augment.support.lazy_torch import torch

T = TypeVar("T")
Values = NDArray[Any]
_Block = tuple[int, int]  # epoch, and number of the block in it

# Samples whose parameters are drawn at once: one vectorized step for several batches costs little more than for one.
BLOCK = 4096

# A gray level between the operators of a chained color stage, as 65535 = 257 * 255.
LEVEL = 257


class Feed:
    """The parameters of every batch, for DALI's external_source: a pure function of the batch's number.

    Validation repeats its first epoch. With `neutral`, samples that a step leaves out are fed neutral values, where its
    op has some, in place of a mask: on the GPU an operator for the whole batch is cheaper than one more operator.
    """

    def __init__(self, sampler: Sampler, reading: Reading, *, neutral: bool = False) -> None:
        self._sampler, self._reading, self._neutral = sampler, reading, neutral
        self._batches, self._fixed = reading.batches, sampler.plan.split == "val"
        self._together = max(1, BLOCK // reading.batch_size)
        self._block: tuple[_Block, list[Values]] | None = None
        self._coming: dict[_Block, Background[list[Values]]] = {}

    def __call__(self, info: Any) -> list[Values]:
        """Return the values of batch `info.iteration`, those of every stage one after the other."""
        return self.values(info.iteration)

    def values(self, iteration: int) -> list[Values]:
        """Return (batch_size, ...) float32, or the type that an op wants, for the batch with this number."""
        epochs_done, batch = divmod(iteration, self._batches)
        epoch = self._reading.epoch if self._fixed else self._reading.epoch + epochs_done
        number, offset = divmod(batch, self._together)
        block = (epoch, number)

        is_first = self._block is None
        if self._block is None or self._block[0] != block:
            self._block = block, self._finish(block)
        if not is_first:  # at the first batch, the pipeline would wait for the background
            self._begin(self._after(block))

        first = offset * self._reading.batch_size
        return [values[first : first + self._reading.batch_size] for values in self._block[1]]

    def _after(self, block: _Block) -> _Block:
        epoch, number = block
        if (number + 1) * self._together < self._batches:
            return epoch, number + 1
        return (epoch if self._fixed else epoch + 1), 0

    def _begin(self, block: _Block) -> None:
        """Draw a block in the background, unless it is the current one or has begun."""
        assert self._block is not None
        if block not in self._coming and block != self._block[0]:
            self._coming[block] = Background(partial(self._draw, block))

    def _finish(self, block: _Block) -> list[Values]:
        coming = self._coming.pop(block, None)
        return self._draw(block) if coming is None else coming.result()

    def _draw(self, block: _Block) -> list[Values]:
        epoch, number = block
        batch, size = number * self._together, self._reading.batch_size
        count = min(self._together, self._batches - batch) * size
        return [values for stage in self.by_stage((epoch, batch * size, count)) for values in stage.values()]

    def by_stage(self, where: Where) -> list[dict[str, Values]]:
        """Return what each stage is fed, by name."""
        plan, draws = self._sampler.plan, self._sampler.draw(*where)
        return [stage_values(stage, draws, plan.size, neutral=self._neutral) for stage in plan.image_stages]


class Ahead(Generic[T]):
    """What is drawn for the samples of a batch, which for `together` samples at once takes little longer.

    Args:
        draw: what draws.
        together: draw for at least so many samples, of batches one after the other.
    """

    def __init__(self, draw: Callable[[Where], T], together: int = BLOCK) -> None:
        self._draw, self._together = draw, together
        self._where = -1, 0, 0
        self._drawn: T | None = None

    def take(self, epoch: int, start: int, count: int) -> tuple[T, slice]:
        """Return what is drawn, and the rows of it that are for samples from a position of an epoch on."""
        drawn, first, size = self._where
        if self._drawn is None or drawn != epoch or start < first or start + count > first + size:
            self._where = _, first, size = epoch, start, max(count, self._together)
            self._drawn = self._draw((epoch, first, size))
        return self._drawn, slice(start - first, start - first + count)


class AheadOfCalls(Ahead[T]):
    """What is drawn for a call of a `Transform`: for more calls the more follow each other."""

    _calls, _key = range(0), tuple[Any, ...]()

    def take(self, epoch: int, start: int, count: int) -> tuple[T, slice]:
        """Return what is drawn, and the rows of it that are for a call, which starts at a multiple of CALL."""
        # What was copied to a GPU on one of its streams is there for those that follow on it.
        ready: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        key = count, torch.cuda.current_stream() if ready else None
        call, last = start // CALL, self._calls
        if self._drawn is None or key != self._key or call not in last:
            follows = key == self._key and call == last.stop
            self._calls = range(call, call + (max(1, min(2 * len(last), 2 * BLOCK // count)) if follows else 1))
            self._key, self._drawn = key, self._draw((epoch, start, count, len(self._calls)))
        first = (call - self._calls.start) * count
        return self._drawn, slice(first, first + count)


def stage_values(stage: Stage, draws: Mapping[str, Draws], size: Size, *, neutral: bool) -> dict[str, Values]:
    """Return what a stage is fed, by name, with a mask `applied` of the samples that it does not skip, if it needs one.

    `draws` are those of `Sampler.draw`, `size` is that of the images; for `neutral` see `Feed`.
    """
    if stage.kind == "remap":
        return _warped(stage, draws, size, masks=not neutral)
    if stage.kind in ("geometry", "color"):
        fed = chain(stage.links(draws, size)) if stage.chained else matrices(stage, stage.matrix(draws, size), size)
        # The identity changes nothing, but on the CPU each warp and each color costs its time.
        spares = not neutral and not any(len(steps) == 1 and steps[0].p == 1 for steps in stage.positions)
        return {"applied": stage.applied(draws), **fed} if spares else fed
    # Noise depends on a sample's position in the operator's input: with a mask on one device and none on the other,
    # it would differ.
    neutral = bool(stage.neutral) and (neutral or stage.steps[0].op.random)
    masked = stage.is_gated and not neutral
    plain = {name: compact(value) for name, value in stage.values(draws, size, neutral=stage.is_gated).items()}
    return {"applied": stage.applied(draws), **plain} if masked else plain


def matrices(stage: Stage, matrix: NDArray[np.float64], size: Size) -> dict[str, Values]:
    """Turn a stage's matrices into what its DALI operator takes.

    A warp asks, for each pixel of the result, where it comes from, in pixels from the center of the top left one.
    """
    return {"matrix": compact(_back(stage, matrix, size))} if stage.kind == "geometry" else color_values(matrix)


def _back(stage: Stage, matrix: NDArray[np.float64], size: Size) -> NDArray[np.float64]:
    """Return the inverses of a stage's matrices, (N, 3, 3), in pixels from the center of the top left one."""
    there, back = about_middle(size)
    # The identity stays the identity: a skipped sample is not resampled.
    rows = np.flatnonzero((matrix != np.eye(3)).any(axis=(1, 2)))
    total = np.tile(np.eye(3), (len(matrix), 1, 1))
    with np.errstate(all="ignore"):
        total[rows] = there @ _inverse(matrix[rows]) @ back
    if not np.isfinite(compact(total)).all():  # DALI would hang
        names = ", ".join(step.key for step in stage.steps)
        raise UserError(f"aug: {names}: a matrix has no inverse. Allowed: geometry that maps no area to a line.")
    return total


def remap_values(stage: Stage, draws: Mapping[str, Draws], size: Size) -> dict[str, Values]:
    """Return what the parts of a remap stage take, see `augment.pipeline.geometry.remap`.

    These are `chain`, (N, parts, 3, 3): the inverse of a matrix in pixels from the middle, or zeros where a remap
    applies to a sample and the identity where not; and the values of each remap by name and number of the part.
    """
    values: dict[str, Values] = {"chain": np.empty((len(stage.remapped(draws)), len(stage.parts), 3, 3))}
    for number, steps in enumerate(stage.parts):
        own = replace(stage, positions=tuple((step,) for step in steps))
        if steps[0].op.kind == "remap":
            values["chain"][:, number] = np.where(own.applied(draws)[:, None, None], 0, np.eye(3))
            found = own.values(draws, size, neutral=own.is_gated)
            values |= {f"{name} {number}": value for name, value in found.items()}
        else:
            values["chain"][:, number] = _back(own, own.matrix(draws, size), Size(1, 1))  # whose middle is its center
    return values


def _warped(stage: Stage, draws: Mapping[str, Draws], size: Size, *, masks: bool) -> dict[str, Values]:
    """Return what a remap stage is fed, with what a warp takes of the samples to which only its matrices apply.

    So these have the pixels that they would have without the remaps.
    """
    fed = {name: compact(value) for name, value in remap_values(stage, draws, size).items()}
    if any(len(steps) == 1 and steps[0].p == 1 and steps[0].op.kind == "remap" for steps in stage.positions):
        return fed
    remapped = stage.remapped(draws)
    if len(stage.parts) > 1:
        matrix = np.where(remapped[:, None, None], np.eye(3), stage.matrix(draws, size))
        fed["warp matrix"] = compact(_back(stage, matrix, size))
        fed["chain"][~remapped] = np.eye(3)
        if masks:
            fed["warp applied"] = np.logical_and(stage.applied(draws), ~remapped)
    return fed | {"applied": remapped} if masks else fed


def about_middle(size: Size) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the matrices that bring the middle of an image from 0 to between its pixels, and back."""
    y, x = ((side - 1) / 2 for side in size)
    return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]]), np.array([[1, 0, -x], [0, 1, -y], [0, 0, 1]])


def color_values(matrix: NDArray[np.float64], link: str = "") -> dict[str, Values]:
    """Split a color matrix, (N, 3, 4) or (N, 3, 7), by what it is applied to: the image, and its mean."""
    if matrix.shape[-1] == 7:
        return {f"matrix{link}": compact(matrix[..., :3]), f"mean_matrix{link}": compact(matrix[..., 3:])}
    return {f"matrix{link}": compact(matrix)}


def chain(matrices: Sequence[NDArray[np.float64]]) -> dict[str, Values]:
    """Turn the matrices of a chained color stage into what its DALI operators take.

    Between them a level is a uint16 of `LEVEL`: clipped like a byte, but hardly rounded.
    """
    fed: dict[str, Values] = {}
    for number, matrix in enumerate(matrices):
        before, after = 1 if number == 0 else LEVEL, 1 if number == len(matrices) - 1 else LEVEL
        scale = np.array([after / before] * (matrix.shape[-1] - 1) + [after])
        fed |= color_values(matrix * scale, f" {number}")
    return fed


def _inverse(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the inverses of (N, 3, 3) matrices, by their adjugates: NumPy takes three times as long."""
    a, b, c, d, e, f, g, h, i = matrix.reshape(-1, 9).T
    minors = (e * i - f * h, c * h - b * i, b * f - c * e, f * g - d * i, a * i - c * g, c * d - a * f)
    adjugate = np.stack([*minors, d * h - e * g, b * g - a * h, a * e - b * d], axis=-1)
    determinant = a * adjugate[:, 0] + b * adjugate[:, 3] + c * adjugate[:, 6]
    return np.asarray(adjugate / determinant[:, None]).reshape(-1, 3, 3)


def compact(values: Values) -> Values:
    """Return values as they are fed: contiguous, and float32 instead of float64."""
    return np.ascontiguousarray(values, np.float32 if values.dtype == np.float64 else values.dtype)
