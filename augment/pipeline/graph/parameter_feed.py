"""Converts drawn parameters to the inputs of DALI's operators, and draws for several batches at once."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from augment.params import Size
from augment.pipeline.graph.sample_order import Reading
from augment.recipe.sampler import CALL, Sampler, SampleRange
from augment.recipe.stage import Draws, Stage
from augment.support.background import Background
from augment.support.errors import UserError
from augment.support.lazy_torch import torch

T = TypeVar("T")
FedValues = NDArray[Any]
_Block = tuple[int, int]  # the epoch, and the number of the block in the epoch

# Number of samples whose parameters are drawn at once. Drawing for several batches takes little longer than for one.
BLOCK = 4096

# Between the operators of a chained color stage, this uint16 number stands for one gray level: 65535 = 257 * 255.
LEVEL = 257


class Feed:
    """Feeds the parameters of each batch to DALI's external_source. These depend only on the number of the batch.

    Validation repeats the parameters of its first epoch.

    Args:
        sampler: draws the parameters.
        reading: the images that the pipeline reads.
        neutral: if a step's op has neutral values, with which it changes nothing, feed these to samples that skip the
            step, instead of a mask. On the GPU, running the op for the whole batch is cheaper than applying a mask.
    """

    def __init__(self, sampler: Sampler, reading: Reading, *, neutral: bool = False) -> None:
        self._sampler, self._reading, self._neutral = sampler, reading, neutral
        self._batches, self._fixed = reading.batches, sampler.plan.split == "val"
        self._together = max(1, BLOCK // reading.batch_size)
        self._block: tuple[_Block, list[FedValues]] | None = None
        self._coming: dict[_Block, Background[list[FedValues]]] = {}

    def __call__(self, info: Any) -> list[FedValues]:
        return self.values(info.iteration)

    def values(self, iteration: int) -> list[FedValues]:
        """Return the values of all stages, in order, for the batch with this number.

        Each array is (batch_size, ...), with the data type that DALI's operator needs.
        """
        epochs_done, batch = divmod(iteration, self._batches)
        epoch = self._reading.epoch if self._fixed else self._reading.epoch + epochs_done
        number, offset = divmod(batch, self._together)
        block = (epoch, number)

        if self._block is None:  # draw nothing in the background yet, because the pipeline waits for its first batch
            self._block = block, self._draw(block)
        else:
            if self._block[0] != block:
                coming = self._coming.pop(block, None)
                self._block = block, self._draw(block) if coming is None else coming.result()
            following = self._after(block)
            if following != block and following not in self._coming:
                self._coming[following] = Background(partial(self._draw, following))

        first = offset * self._reading.batch_size
        return [values[first : first + self._reading.batch_size] for values in self._block[1]]

    def _after(self, block: _Block) -> _Block:
        epoch, number = block
        if (number + 1) * self._together < self._batches:
            return epoch, number + 1
        return (epoch if self._fixed else epoch + 1), 0

    def _draw(self, block: _Block) -> list[FedValues]:
        epoch, number = block
        batch, size = number * self._together, self._reading.batch_size
        count = min(self._together, self._batches - batch) * size
        return [values for stage in self.by_stage(SampleRange(epoch, batch * size, count)) for values in stage.values()]

    def by_stage(self, where: SampleRange) -> list[dict[str, FedValues]]:
        plan, draws = self._sampler.plan, self._sampler.draw(*where)
        return [stage_values(stage, draws, plan.size, neutral=self._neutral) for stage in plan.image_stages]


class DrawAhead(Generic[T]):
    """Draws for the samples of several batches at once, which takes little longer than for one batch.

    Args:
        draw: the function that draws.
        together: the smallest number of consecutive samples to draw for.
    """

    def __init__(self, draw: Callable[[SampleRange], T], together: int = BLOCK) -> None:
        self._draw, self._together = draw, together
        self._where = SampleRange(-1, 0, 0)
        self._drawn: T | None = None

    def take(self, epoch: int, start: int, count: int) -> tuple[T, slice]:
        """Return the draws of a block, and the rows for the `count` samples from position `start` of an epoch."""
        drawn_epoch, first, size, _ = self._where
        if self._drawn is None or epoch != drawn_epoch or start < first or start + count > first + size:
            first, size = start, max(count, self._together)
            self._where = SampleRange(epoch, first, size)
            self._drawn = self._draw(self._where)
        return self._drawn, slice(start - first, start - first + count)


class DrawAheadOfCalls(DrawAhead[T]):
    """Draws for several calls of a `Transform` at once.

    While calls have the same size, it draws for twice as many calls each time, up to twice `together` samples.
    """

    _calls, _key = range(0), tuple[Any, ...]()

    def take(self, epoch: int, start: int, count: int) -> tuple[T, slice]:
        """Return the draws of several calls, and the rows that belong to call number `start` / CALL."""
        # Draws that were copied to the GPU on one CUDA stream are ready only for later work on this stream.
        ready: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        key = count, torch.cuda.current_stream() if ready else None
        call, last = start // CALL, self._calls
        if self._drawn is None or key != self._key or call not in last:
            calls = 1
            if key == self._key and call == last.stop:
                calls = max(1, min(2 * len(last), 2 * self._together // count))
            self._calls, self._key = range(call, call + calls), key
            self._drawn = self._draw(SampleRange(epoch, start, count, calls))
        first = (call - self._calls.start) * count
        return self._drawn, slice(first, first + count)


def stage_values(stage: Stage, draws: Mapping[str, Draws], size: Size, *, neutral: bool) -> dict[str, FedValues]:
    """Return the values to feed to a stage, by name.

    If the stage needs a mask of the samples that it changes, the mask has the name `applied`.

    Args:
        stage: the stage.
        draws: the result of `Sampler.draw`.
        size: the size of the images.
        neutral: see `Feed`.
    """
    if stage.kind == "remap":
        return _remap_stage(stage, draws, size, masks=not neutral)
    if stage.kind in ("geometry", "color"):
        fed = _matrix_stage(stage, draws, size)
        # Identity matrices change nothing, but on the CPU it is faster to skip the operator.
        is_always_applied = any(len(steps) == 1 and steps[0].p == 1 for steps in stage.positions)
        return fed if neutral or is_always_applied else {"applied": stage.applied(draws), **fed}
    fed = {name: compact(value) for name, value in stage.values(draws, size, neutral=stage.is_gated).items()}
    # Noise depends on a sample's position in the operator's input, which a mask changes. Both devices must draw the
    # same noise, so ops with noise also use neutral values on the CPU.
    uses_neutral = stage.neutral and (neutral or stage.steps[0].op.random)
    return {"applied": stage.applied(draws), **fed} if stage.is_gated and not uses_neutral else fed


def _matrix_stage(stage: Stage, draws: Mapping[str, Draws], size: Size) -> dict[str, FedValues]:
    """Return the matrices of a geometry or color stage in the form that its DALI operators take."""
    if stage.kind == "geometry":
        return {"matrix": compact(_inverted(stage, stage.matrix(draws, size), size))}
    if not stage.chained:
        return _color_values(stage.matrix(draws, size))
    # Between the operators, levels are multiplied by `LEVEL` and stored as uint16. This clips them like bytes, but
    # hardly rounds them.
    fed: dict[str, FedValues] = {}
    links = stage.chain_matrices(draws, size)
    for number, matrix in enumerate(links):
        before = 1 if number == 0 else LEVEL
        after = 1 if number == len(links) - 1 else LEVEL
        scale = np.array([after / before] * (matrix.shape[-1] - 1) + [after])
        fed |= _color_values(matrix * scale, f" {number}")
    return fed


def _color_values(matrix: NDArray[np.float64], link: str = "") -> dict[str, FedValues]:
    """Return a color matrix by name.

    A matrix of shape (N, C, C + 1) stays whole. A matrix of shape (N, C, 2 C + 1) is split into the matrices for the
    image and for its mean color.
    """
    channels = matrix.shape[-2]
    if matrix.shape[-1] > channels + 1:
        return {f"matrix{link}": compact(matrix[..., :channels]), f"mean_matrix{link}": compact(matrix[..., channels:])}
    return {f"matrix{link}": compact(matrix)}


def _inverted(stage: Stage, matrix: NDArray[np.float64], size: Size) -> NDArray[np.float64]:
    """Invert a stage's matrices, (N, 3, 3), because a warp looks up each output pixel in the input.

    The inverses have their origin in the center of the top left pixel.
    """
    there, back = about_middle(size)
    # Leave identity matrices as they are: with rounding errors, the warp would resample skipped samples.
    rows = np.flatnonzero((matrix != np.eye(3)).any(axis=(1, 2)))
    total = np.tile(np.eye(3), (len(matrix), 1, 1))
    with np.errstate(all="ignore"):
        total[rows] = there @ _inverse(matrix[rows]) @ back
    if not np.isfinite(compact(total)).all():  # DALI would hang
        names = ", ".join(step.key for step in stage.steps)
        raise UserError(
            f"aug: {names}: a matrix has no inverse. Change the parameters so that no area is mapped to a line."
        )
    return total


def remap_values(stage: Stage, draws: Mapping[str, Draws], size: Size) -> dict[str, FedValues]:
    """Return the values of a remap stage, for `augment.pipeline.geometry.remap`.

    Each part of the stage is a matrix or a remap. `chain`, (N, parts, 3, 3), holds the inverse of each matrix, in
    pixels from the middle of the image. For a remap, `chain` holds zeros if the remap applies to the sample, and
    otherwise the identity. The names of a remap's arguments end with the number of its part.
    """
    values: dict[str, FedValues] = {"chain": np.empty((len(stage.remapped(draws)), len(stage.warp_parts), 3, 3))}
    for number, steps in enumerate(stage.warp_parts):
        own = replace(stage, positions=tuple((step,) for step in steps))
        if steps[0].op.kind == "remap":
            values["chain"][:, number] = np.where(own.applied(draws)[:, None, None], 0, np.eye(3))
            found = own.values(draws, size, neutral=own.is_gated)
            values |= {f"{name} {number}": value for name, value in found.items()}
        else:
            # With Size(1, 1), `_inverted` keeps the origin in the middle.
            values["chain"][:, number] = _inverted(own, own.matrix(draws, size), Size(1, 1))
    return values


def _remap_stage(stage: Stage, draws: Mapping[str, Draws], size: Size, *, masks: bool) -> dict[str, FedValues]:
    """Return the values of a remap stage, and of a warp that replaces the stage for samples without a remap.

    The warp gives these samples exactly the pixels that a recipe without remaps would give them.
    """
    fed = {name: compact(value) for name, value in remap_values(stage, draws, size).items()}
    if any(len(steps) == 1 and steps[0].p == 1 and steps[0].op.kind == "remap" for steps in stage.positions):
        return fed
    remapped = stage.remapped(draws)
    if len(stage.warp_parts) > 1:
        matrix = np.where(remapped[:, None, None], np.eye(3), stage.matrix(draws, size))
        fed["warp matrix"] = compact(_inverted(stage, matrix, size))
        fed["chain"][~remapped] = np.eye(3)
        if masks:
            fed["warp applied"] = np.logical_and(stage.applied(draws), ~remapped)
    return fed | {"applied": remapped} if masks else fed


def about_middle(size: Size) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the matrices that move the origin from the middle of an image to its top left pixel, and back."""
    y, x = ((side - 1) / 2 for side in size)
    return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]]), np.array([[1, 0, -x], [0, 1, -y], [0, 0, 1]])


def _inverse(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Invert (N, 3, 3) matrices by their adjugates, in a third of NumPy's time."""
    a, b, c, d, e, f, g, h, i = matrix.reshape(-1, 9).T
    minors = (e * i - f * h, c * h - b * i, b * f - c * e, f * g - d * i, a * i - c * g, c * d - a * f)
    adjugate = np.stack([*minors, d * h - e * g, b * g - a * h, a * e - b * d], axis=-1)
    determinant = a * adjugate[:, 0] + b * adjugate[:, 3] + c * adjugate[:, 6]
    return np.asarray(adjugate / determinant[:, None]).reshape(-1, 3, 3)


def compact(values: FedValues) -> FedValues:
    """Make values contiguous, and convert float64 to float32, because DALI gets them in this form."""
    return np.ascontiguousarray(values, np.float32 if values.dtype == np.float64 else values.dtype)
