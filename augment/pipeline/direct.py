"""A recipe on decoded images of one size in GPU memory: one kernel crops, another runs all stages, without DALI.

What they do with each image is drawn for several calls at once: a draw of many steps costs NumPy a fixed time, as much
as the samples of ten batches.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from augment.pipeline.frames import COLUMNS, random_windows
from augment.pipeline.graph import Form, Placement
from augment.pipeline.images import Images
from augment.pipeline.program import LARGEST, Program, are_alike, kernels_run
from augment.recipe.kinds import Array
from augment.recipe.plan import Plan
from augment.recipe.sampler import DOUBLES, Sampler
from augment.support.device import to_device

CALL = 2**32  # from the position of a call's first sample to that of the next call's
_AHEAD = 8192  # samples that are drawn at once, if calls follow each other


@dataclass(frozen=True)
class CallSampler(Sampler):
    """Draws for calls of `batch` samples, one after the other, what `Sampler` draws for each."""

    batch: int = 1

    def uniform(self, key: str, where: tuple[int, int, int], columns: int) -> Array:
        """Return what `Sampler` does for each call, (count, columns); `where` starts at the first of the calls."""
        epoch, start, count = where
        stream, _ = self.stream(key, epoch, start * columns)
        drawn = np.empty((count // self.batch, self.batch * columns))
        for call in drawn:
            stream.random(out=call)
            stream.bit_generator.advance((CALL * columns - len(call)) // DOUBLES)  # type: ignore[attr-defined]
        return drawn.reshape(count, columns)


@dataclass(frozen=True)
class _Drawn:
    """What was drawn for some calls: of each view the windows, here and on the device, and the programs."""

    key: tuple[object, ...]  # for which images
    calls: range
    windows: list[NDArray[np.float32]]
    there: dict[str, Tensor]


class Direct:
    """What `Transform` does with each view of a batch, in place of a graph of DALI's."""

    batch_size = math.inf

    def __init__(self, plan: Plan, device: torch.device, form: Form, samplers: Sequence[Sampler]) -> None:
        self._program, self._device, self._form, self._samplers = Program(plan), device, form, samplers
        self._drawn = _Drawn((), range(0), [], {})

    @staticmethod
    def knows(plan: Plan, placement: Placement) -> bool:
        """Return whether the kernels do all that a plan does, and run here."""
        program = Program(plan)
        known = are_alike(plan) and _has_window(plan) and not program.before and math.prod(plan.size) <= LARGEST
        return placement.device == "gpu" and known and kernels_run(placement.gpu, every_op=program.every_op)

    def run(self, images: Images, call: int) -> tuple[list[Tensor], list[Tensor]]:
        """Return each view, (N, 3, height, width), with the draws of a call, and with frames its windows."""
        from augment.pipeline.kernel_crop import resize_windows

        count, views, windows = len(images), [], []
        drawn = self._draw(call, count, images.data.shape[1:3])
        rows = slice((call - drawn.calls.start) * count, (call - drawn.calls.start + 1) * count)
        for view, sampler in enumerate(self._samplers):
            cropped = resize_windows(images.data, drawn.there[f"{view} windows"][rows], sampler.plan.size)
            made = self._program.run(cropped, drawn.there[f"{view} programs"][rows], self._form)
            views.append(made.permute(0, 3, 1, 2))
            sides = np.tile(np.float32(images.data.shape[1:3]), (count, 1))
            windows.append(torch.from_numpy(np.hstack([sides, drawn.windows[view][rows]])))
        return views, windows if self._form.frames else []

    def _draw(self, call: int, count: int, sides: Sequence[int]) -> _Drawn:
        """Return what is drawn for some calls, the given one among them; more of them the more follow each other."""
        stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        last, key = self._drawn, (count, *sides, stream)
        if last.key == key and call in last.calls:
            return last
        follows = last.key == key and call == last.calls.stop
        calls = range(call, call + max(1, min(2 * len(last.calls), _AHEAD // count) if follows else 1))
        where, sizes = (0, call * CALL, count * len(calls)), np.tile(np.array(sides), (count * len(calls), 1))
        windows, there = [], {}
        for view, own in enumerate(self._samplers):
            sampler = CallSampler(own.plan, own.seed, own.rank, own.view, batch=count)
            windows.append(_windows(sampler, where, sizes).astype(np.float32))
            there[f"{view} windows"] = windows[-1]
            there[f"{view} programs"] = self._program.values(sampler, where)
        self._drawn = _Drawn(key, calls, windows, to_device(there, self._device))
        return self._drawn


def _has_window(plan: Plan) -> bool:
    """Return whether a plan's crop resizes a window, and nothing else."""
    name = plan.crop.op.name
    return name in {"random_resized_crop", "center_crop"} or (name == "resize" and plan.crop.params["side"] != "long")


def _windows(sampler: Sampler, where: tuple[int, int, int], sizes: NDArray[np.int64]) -> Array:
    """Return the windows that the crop resizes, of images of these sizes: start and end, (y, x) in pixels, (N, 4)."""
    crop, proportions = sampler.plan.crop, np.array(sampler.plan.size.proportions)
    if crop.op.random:
        uniform = sampler.uniform(crop.key, where, COLUMNS)
        return random_windows(uniform, sizes, crop.params["area_range"], crop.params["aspect_range"])
    sides = sizes.astype(np.float64)
    if crop.params.get("side") != "both":
        sides = crop.params.get("scale", 1.0) * (sizes / proportions).min(axis=1, keepdims=True) * proportions
    return np.hstack([sizes - sides, sizes + sides]) / 2
