"""All stages of a plan in one kernel on the GPU, in place of some sixty DALI operators.

A policy applies one or two of many ops to a sample. As DALI operators all of them run for every batch, and their starts
on the CPU take longer than decoding. Here each sample has a program: for each stage whether it applies, and its values.
One block of threads runs it, and touches the image only where a stage applies. The kernel is written in Triton, which
comes with PyTorch for CUDA, and runs on PyTorch's stream, after DALI's graph.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from logging import getLogger
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from augment.pipeline.feed import Feed, Values, stage_values
from augment.recipe.plan import Plan
from augment.recipe.sampler import Sampler
from augment.recipe.stage import Draws, Stage

log = getLogger(__name__)

# The number by which the kernel knows a stage; 0 stands for a stage that does not apply to a sample.
_CODES = {"geometry": 1, "color": 2, "color of mean": 3, "sharpen": 4, "posterize": 5, "solarize": 6, "autocontrast": 7,
          "equalize": 8}  # fmt: skip
_TABLES = {"posterize", "solarize", "autocontrast", "equalize"}
_BORDERS = {"constant": 0, "reflect_101": 1, "replicate": 2}
WIDTH = 24  # numbers of a stage in the program of a sample: the code, what the stage is fed, border and fill


@dataclass(frozen=True)
class Program:
    """What the kernel does for the samples of a plan.

    Attributes:
        plan: the plan, whose image stages are run.
    """

    plan: Plan

    @staticmethod
    def of(plan: Plan) -> "Program | None":
        """Return the program of a plan, None if DALI's operators must run it, or do so as fast."""
        names = [_name(stage) for stage in plan.image_stages]
        known = all(name in _CODES for name in names) and all(
            stage.kind != "geometry" or stage.border[0] in _BORDERS for stage in plan.image_stages
        )
        return Program(plan) if known and len(_TABLES & set(names)) > 1 else None

    def values(self, draws: Mapping[str, Draws]) -> NDArray[np.float32]:
        """Return the programs of samples, (N, stages, WIDTH)."""
        stages = self.plan.image_stages
        programs = np.zeros((len(draws[stages[0].steps[0].key]["applied"]), len(stages), WIDTH), np.float32)
        for number, stage in enumerate(stages):
            fed = stage_values(stage, draws, self.plan.size, neutral=False)
            programs[:, number, 0] = _CODES[_name(stage)] * fed.pop("applied", np.True_)
            numbers = [value.reshape(len(programs), -1) for value in fed.values()]
            if stage.kind == "geometry":
                border = _BORDERS[stage.border[0]], stage.border[1]
                numbers.append(np.broadcast_to(border, (len(programs), 2)))
            if numbers:
                joined = np.concatenate(numbers, axis=1)
                programs[:, number, 1 : 1 + joined.shape[1]] = joined
        return programs

    def run(self, images: Tensor, programs: Tensor, *, half: bool, raw: bool) -> Tensor:
        """Apply the stages and normalize.

        Args:
            images: (N, size, size, 3) uint8.
            programs: what `values` returned, on the same device.
            half: float16 in place of float32.
            raw: leave out the normalization.

        Returns:
            (N, size, size, 3) float, or uint8 if raw.
        """
        from augment.pipeline.kernel import launch

        kind = torch.uint8 if raw else torch.float16 if half else torch.float32
        out = torch.empty(images.shape, dtype=kind, device=images.device)
        mean, std = ([255 * value for value in values] for values in (self.plan.mean, self.plan.std))
        launch(images, programs, out, mean, std)
        return out


class ProgramFeed(Feed):
    """Feeds the programs of each batch, (batch_size, stages, WIDTH), in place of the values of each stage.

    Args:
        program: makes the programs.
        sampler: see `Feed`.
        options: see `Feed`.
    """

    def __init__(self, program: Program, sampler: Sampler, **options: Any) -> None:
        super().__init__(sampler, **options)
        self._program = program

    def _stage_values(self, draws: Mapping[str, Draws]) -> list[dict[str, Values]]:
        return [{"program": self._program.values(draws)}]


def _name(stage: Stage) -> str:
    if stage.kind == "local":
        return stage.steps[0].op.name
    return "chain" if stage.chained else "color of mean" if stage.uses_mean else stage.kind


@cache
def kernels_run(gpu: int = 0) -> bool:
    """Return whether kernels can be compiled and run on the GPU of that number; log why not."""
    if not torch.cuda.is_available():
        return False
    try:
        from augment.pipeline.kernel import launch

        image = torch.zeros(1, 8, 8, 3, dtype=torch.uint8, device=torch.device("cuda", gpu))
        # As for most batches, so that this compiles the kernel that they need.
        launch(image, torch.zeros(1, 1, WIDTH, device=image.device), image.float(), [0.0] * 3, [1.0] * 3)
    except Exception as error:  # no Triton, no C compiler, an old version, ...
        log.info("policies run as DALI operators, as Triton's kernels do not run here: %s", error)
        return False
    return True
