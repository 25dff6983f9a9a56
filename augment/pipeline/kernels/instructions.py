"""Runs the stages of a plan in one kernel on the GPU, instead of in up to sixty DALI operators.

A policy applies one or two of many ops to a sample. DALI would run the operators of all ops for each batch, and the CPU
would need more time to launch them than to decode. Here, each sample has a program. For each stage, the program holds
whether the stage applies, and its values. One block of threads runs the program, and skips stages that do not apply.
The kernel is written in Triton, which PyTorch for CUDA includes. It runs on PyTorch's stream after the DALI graph.

The kernel draws noise with a counter-based generator (Philox). Each sample and stage has its own seed.
"""

import math
from functools import cache
from logging import getLogger

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from augment.params import Size
from augment.params.pixel_format import RGB, PixelFormat
from augment.pipeline.graph.decoding import OutputFormat, Placement
from augment.pipeline.graph.parameter_feed import FedValues, Feed, stage_values
from augment.pipeline.graph.sample_order import Reading
from augment.pipeline.kernels.opcodes import ANY_CHANNELS, BORDER_CODES, CODES, LAST_OF_POLICIES, PLANES, ROUTINES
from augment.recipe.fusion import positions_of
from augment.recipe.plan import Plan
from augment.recipe.sampler import Sampler, SampleRange
from augment.recipe.stage import Stage

MAX_AREA = 256**2  # the largest image area, in pixels, for which the kernel runs ops that policies do not use


class Program:
    """The stages of a plan that the kernel runs, and their values for each sample.

    Attributes:
        plan: the plan.
        before: the stages up to the last one that the kernel does not support. DALI's operators run these stages.
        stages: the remaining stages, which the kernel runs.
        names: the names of `stages`. Finding the names for each batch would take longer than launching the kernel.
        every_op: whether the kernel needs ops that policies do not use.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.before, self.stages = _split(plan)
        self.names = tuple(map(_name, self.stages))
        self.every_op = any(CODES[name] > LAST_OF_POLICIES for name in self.names)

    @staticmethod
    def of(plan: Plan) -> "Program | None":
        """Return the program of a plan, or None if DALI's operators must run the plan or may be as fast.

        With fewer than two local stages, DALI launches few operators for RGB images. For other images, each stage takes
        several operators. Images above `MAX_AREA` use the kernel only for the RGB ops of policies, because one block of
        threads runs a whole sample.
        """
        program, is_rgb = Program(plan), plan.pixels.is_rgb
        local = sum(stage.kind == "local" for stage in program.stages)
        saves_operators = local > 1 if is_rgb else bool(program.stages)
        is_small = math.prod(plan.size) <= MAX_AREA or (is_rgb and not program.every_op)
        return program if saves_operators and is_small else None

    def values(self, sampler: Sampler, where: SampleRange) -> NDArray[np.float32]:
        """Return the programs of samples, (N, numbers).

        For each stage, a program holds the stage's code, the count of its values, and the values. If the stage does not
        apply to a sample, all numbers except the count are 0. All samples of one call have the same count. For motion
        blur, the count depends on these samples, because each convolution kernel is as large as the longest motion.
        """
        draws, size = sampler.draw(*where), self.plan.size
        found = []
        for name, stage in zip(self.names, self.stages, strict=True):
            rows, own = stage.applied_draws(draws)
            fed = {n: v[: len(rows)] for n, v in stage_values(stage, own, size, neutral=False).items()}
            fed.pop("applied", None)
            if stage.steps[0].op.random:
                # The seed consists of two numbers, because a float32 holds only 24-bit integers exactly.
                fed["seed"] = np.floor(sampler.uniform(f"{stage.steps[0].key}.noise", where, 2)[rows] * 2**24)
            found.append((CODES[name], rows, ROUTINES[name](stage, fed, size)))
        counts = [sum(column.shape[1] for column in columns) for _, _, columns in found]
        programs = np.zeros((where.total, sum(counts) + 2 * len(counts)), np.float32)
        at = 0
        for (code, rows, columns), count in zip(found, counts, strict=True):
            programs[rows, at] = code
            programs[:, at + 1] = count
            at += 2
            for column in columns:
                programs[rows, at : at + column.shape[1]] = column
                at += column.shape[1]
        return programs

    def run(self, images: Tensor, programs: Tensor, form: OutputFormat) -> Tensor:
        """Apply the stages to levels, (N, height, width, C). Return normalized floats, or levels if the form is raw.

        `programs` come from `values`, and must be on the device of the images.
        """
        floats = torch.float16 if form.half else torch.float32
        out = torch.empty(images.shape, dtype=images.dtype if form.raw else floats, device=images.device)
        mean, std = (tuple(255 * value for value in values) for values in (self.plan.mean, self.plan.std))
        count, plane = len(self.names), not PLANES.isdisjoint(self.names)
        if self.plan.pixels.is_rgb:
            from augment.pipeline.kernels import stages

            stages.launch(images, programs, out, mean, std, stages=count, every_op=self.every_op, plane=plane)
        else:
            from augment.pipeline.kernels import any_channels

            any_channels.launch(images, programs, out, mean, std, stages=count, raw=form.raw)
        return out

    def runs(self, gpu: int) -> bool:
        """Return whether the kernel for this program compiles and runs on a GPU."""
        return kernels_run(gpu, self.plan.pixels, every_op=self.every_op)


def _split(plan: Plan) -> tuple[list[Stage], list[Stage]]:
    """Split the stages after the last one that the kernel does not support.

    Stages may be reordered if at most one of them applies to a sample, such as the choices of a `one_of`.
    """
    positions = enumerate(positions_of(plan.tree))
    position = {step.key: number for number, alternatives in positions for step in alternatives}
    known = CODES.keys() if plan.pixels.is_rgb else ANY_CHANNELS
    before: list[Stage] = []
    after: list[Stage] = []
    for stage in plan.image_stages:
        if _name(stage) in known and (stage.kind != "geometry" or stage.border[0] in BORDER_CODES):
            after.append(stage)
            continue
        at = len(after)
        while at and len({position[step.key] for step in (*after[at - 1].steps, *stage.steps)}) == 1:
            at -= 1
        before += [*after[:at], stage]
        after = after[at:]
    return before, after


def program_of(plan: Plan, placement: Placement) -> Program | None:
    """Return the program that a kernel runs after the DALI graph, or None if DALI's operators run all stages."""
    program = Program.of(plan) if placement.device == "gpu" and are_alike(plan) else None
    return program if program is not None and program.runs(placement.gpu) else None


def are_alike(plan: Plan) -> bool:
    """Return whether all views run the same steps, each on its own crop."""
    return plan.views.crop == "own" and not plan.views.named


class ProgramFeed(Feed):
    """Feeds the programs of each batch, (batch_size, numbers), instead of the values of each stage."""

    def __init__(self, program: Program, sampler: Sampler, reading: Reading) -> None:
        super().__init__(sampler, reading)
        self._program = program

    def by_stage(self, where: SampleRange) -> list[dict[str, FedValues]]:
        return [{"program": self._program.values(self._sampler, where)}]


def _name(stage: Stage) -> str:
    if stage.kind == "local":
        return stage.steps[0].op.name
    if stage.chained:
        return "chain"
    return "color of mean" if stage.uses_mean else stage.kind


@cache
def kernels_run(gpu: int = 0, pixels: PixelFormat = RGB, *, every_op: bool = False) -> bool:
    """Return whether the kernels for a pixel format compile and run on a GPU.

    By default, these are the kernels for RGB with the ops of policies only.
    """
    if not torch.cuda.is_available():
        return False
    try:
        device = torch.device("cuda", gpu)
        # Pass the same types as most batches have, so that this call compiles the kernels that they need.
        stored = torch.zeros(1, 8, 8, pixels.channels, dtype=getattr(torch, pixels.dtype), device=device)
        programs, zeros, ones = torch.zeros(1, 2, device=device), (0.0,) * pixels.channels, (1.0,) * pixels.channels
        if pixels.is_rgb:
            from augment.pipeline.kernels import stages

            stages.launch(stored, programs, stored.float(), zeros, ones, stages=1, every_op=every_op, plane=every_op)
        else:
            from augment.pipeline.kernels import any_channels

            levels = any_channels.resize_windows(
                stored, torch.tensor([[0.0, 0, 8, 8]], device=device), Size(8, 8), pixels
            )
            any_channels.launch(levels, programs, levels.float(), zeros, ones, stages=1, raw=False)
    except Exception as error:  # no Triton, no C compiler, an old version, ...
        message = "the Triton kernels do not run here, so DALI's and PyTorch's operators run instead: %s"
        getLogger(__name__).info(message, error)
        return False
    return True
