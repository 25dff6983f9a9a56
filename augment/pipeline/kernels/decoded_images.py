"""Runs a recipe on decoded images of one size in GPU memory, without DALI: one kernel crops, another runs all stages.

Values are drawn for several calls at once, because NumPy's overhead per step takes as long as drawing ten batches.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from augment.pipeline.geometry.frames import COLUMNS, random_windows
from augment.pipeline.graph.decoding import OutputFormat, Placement
from augment.pipeline.graph.parameter_feed import BLOCK, DrawAhead, DrawAheadOfCalls
from augment.pipeline.images_in_memory import InputImages
from augment.pipeline.kernels.instructions import MAX_AREA, Program, are_alike
from augment.recipe.op_kinds import Array
from augment.recipe.plan import Plan
from augment.recipe.sampler import CALL, Sampler, SampleRange
from augment.support.device import to_device

# At most twice this many entries of color matrices, channels x channels each, are drawn at once. More do not fit in the
# CPU's caches: for ten channels, drawing 8,192 instead of 5,120 matrices takes twice as long per matrix.
_ENTRIES = 2**18


class KernelTransform:
    """Transforms the views of a batch with kernels instead of a DALI graph."""

    batch_size = math.inf

    def __init__(self, plan: Plan, device: torch.device, form: OutputFormat, samplers: Sequence[Sampler]) -> None:
        self._program, self._device, self._form, self._samplers = Program(plan), device, form, samplers
        self._drawn: dict[tuple[int, ...], DrawAhead[Any]] = {}  # by the height and width of the images

    @staticmethod
    def supports(plan: Plan, placement: Placement) -> bool:
        """Return whether the kernels support the whole plan and run here."""
        program = Program(plan)
        known = are_alike(plan) and _has_window(plan) and not program.before and math.prod(plan.size) <= MAX_AREA
        return placement.device == "gpu" and known and program.runs(placement.gpu)

    def run(self, images: InputImages, call: int) -> tuple[list[Tensor], list[Tensor]]:
        """Run call number `call`. Return each view, (N, C, height, width), and, with frames, its windows."""
        count, sides, views, windows = len(images), tuple(images.data.shape[1:3]), [], []
        if sides not in self._drawn:
            together = min(BLOCK, _ENTRIES // self._program.plan.pixels.channels**2)
            self._drawn = {sides: DrawAheadOfCalls(partial(self._draw, sides), together)}
        (drawn, there), rows = self._drawn[sides].take(0, call * CALL, count)
        for view, sampler in enumerate(self._samplers):
            cropped = _resize(images.data, there[f"{view} windows"][rows], sampler.plan)
            made = self._program.run(cropped, there[f"{view} programs"][rows], self._form)
            views.append(made.permute(0, 3, 1, 2))
            if self._form.frames:
                windows.append(torch.from_numpy(np.insert(drawn[view][rows], [0, 0], sides, axis=1)))
        return views, windows

    def _draw(self, sides: Sequence[int], where: SampleRange) -> tuple[list[NDArray[np.float32]], dict[str, Tensor]]:
        """Draw for images with these sides. Return the windows of each view, and the kernels' inputs on the device."""
        sizes = np.tile(np.array(sides), (where.total, 1))
        windows, there = [], {}
        for view, sampler in enumerate(self._samplers):
            windows.append(_windows(sampler, where, sizes).astype(np.float32))
            there[f"{view} windows"] = windows[-1]
            there[f"{view} programs"] = self._program.values(sampler, where)
        return windows, to_device(there, self._device)


def _resize(images: Tensor, windows: Tensor, plan: Plan) -> Tensor:
    """Resize a window of each image to the size of a plan, and convert pixels to levels."""
    if plan.pixels.is_rgb:
        from augment.pipeline.kernels import crop

        return crop.resize_windows(images, windows, plan.size)
    from augment.pipeline.kernels import any_channels

    return any_channels.resize_windows(images, windows, plan.size, plan.pixels)


def _has_window(plan: Plan) -> bool:
    """Return whether a plan's crop only resizes a window."""
    name = plan.crop.op.name
    return name in {"random_resized_crop", "center_crop"} or (name == "resize" and plan.crop.params["side"] != "long")


def _windows(sampler: Sampler, where: SampleRange, sizes: NDArray[np.int64]) -> Array:
    """Return the crop windows for images of these sizes: start and end, (y, x) in pixels, (N, 4)."""
    crop, proportions = sampler.plan.crop, np.array(sampler.plan.size.proportions)
    if crop.op.random:
        uniform = sampler.uniform(crop.key, where, COLUMNS)
        return random_windows(uniform, sizes, crop.params["area_range"], crop.params["aspect_range"])
    sides = sizes.astype(np.float64)
    if crop.params.get("side") != "both":
        sides = crop.params.get("scale", 1.0) * (sizes / proportions).min(axis=1, keepdims=True) * proportions
    return np.hstack([sizes - sides, sizes + sides]) / 2
