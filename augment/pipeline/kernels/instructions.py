"""All stages of a plan in one kernel on the GPU, in place of up to sixty DALI operators.

A policy applies one or two of many ops to a sample. As DALI operators all of them run for every batch, and their starts
on the CPU take longer than decoding. Here each sample has a program: for each stage whether it applies, and its values.
One block of threads runs it, and touches the image only where a stage applies. The kernel is written in Triton, which
comes with PyTorch for CUDA, and runs on PyTorch's stream, after DALI's graph.

Noise is drawn in the kernel, by a counter-based generator (Philox) with a seed for each sample and stage.
"""

import math
from functools import cache
from logging import getLogger

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from augment.pipeline.graph.decoding import Form, Placement
from augment.pipeline.graph.parameter_feed import Feed, Values, stage_values
from augment.pipeline.graph.sample_order import Reading
from augment.pipeline.kernels.opcodes import BORDERS, CODES, OF_POLICIES, PLANES, ROUTINES
from augment.recipe.fusion import positions_of
from augment.recipe.plan import Plan
from augment.recipe.sampler import Sampler, Where
from augment.recipe.stage import Stage

LARGEST = 256**2  # pixels up to which the other ops than those of policies run in the kernel


class Program:
    """What the kernel does for the samples of a plan.

    Attributes:
        plan: the plan.
        before: its stages up to the last one that the kernel does not know, which DALI's operators run, in the graph.
        stages: those after it, which the kernel runs.
        names: their names; to find them for each batch would take longer than to start the kernel.
        every_op: whether the kernel is needed with more ops than those of policies.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.before, self.stages = _split(plan)
        self.names = tuple(map(_name, self.stages))
        self.every_op = any(CODES[name] > OF_POLICIES for name in self.names)

    @staticmethod
    def of(plan: Plan) -> "Program | None":
        """Return the program of a plan, None if DALI's operators must run it, or do so as fast.

        They do with a single local stage: on the CPU it starts few operators, beside decoding. They may with other ops
        than those of policies on large images, as here one block of threads runs a sample.
        """
        program = Program(plan)
        several = sum(stage.kind == "local" for stage in program.stages) > 1
        return program if several and (math.prod(plan.size) <= LARGEST or not program.every_op) else None

    def values(self, sampler: Sampler, where: Where) -> NDArray[np.float32]:
        """Return the programs of samples, (N, numbers).

        For each stage they are its code, the number of its values, and these; where it does not apply, all but that
        number are 0. The number is the same for all samples, but it depends on them where motions are blurred: the
        kernels are as large as the longest motion.
        """
        draws, size = sampler.draw(*where), self.plan.size
        made: list[tuple[str, NDArray[np.intp], list[Values]]] = []
        for name, stage in zip(self.names, self.stages, strict=True):
            rows, own = stage.packed(draws)
            fed = {n: v[: len(rows)] for n, v in stage_values(stage, own, size, neutral=False).items()}
            fed.pop("applied", None)
            if stage.steps[0].op.random:
                # Two numbers of 24 bits, as many as a float holds.
                fed["seed"] = np.floor(sampler.uniform(f"{stage.steps[0].key}.noise", where, 2)[rows] * 2**24)
            values = ROUTINES[name](stage, fed, size)
            made.append((name, rows, values))
        counts = [sum(value.shape[1] for value in values) for _, _, values in made]
        programs, at = np.zeros((math.prod(where[2:]), sum(counts) + 2 * len(counts)), np.float32), 0
        for (name, rows, values), count in zip(made, counts, strict=True):
            programs[rows, at], programs[:, at + 1], at = CODES[name], count, at + 2
            for value in values:
                programs[rows, at : at + value.shape[1]], at = value, at + value.shape[1]
        return programs

    def run(self, images: Tensor, programs: Tensor, form: Form) -> Tensor:
        """Apply the stages to (N, height, width, 3) uint8 and normalize: float, or uint8 if the form is raw.

        The programs, which `values` returns, are on the device of the images.
        """
        from augment.pipeline.kernels.stages import launch

        kind = torch.uint8 if form.raw else torch.float16 if form.half else torch.float32
        out = torch.empty(images.shape, dtype=kind, device=images.device)
        mean, std = ([255 * value for value in values] for values in (self.plan.mean, self.plan.std))
        options = {"every_op": self.every_op, "plane": not PLANES.isdisjoint(self.names)}
        launch(images, programs, out, mean, std, stages=len(self.names), **options)
        return out


def _split(plan: Plan) -> tuple[list[Stage], list[Stage]]:
    """Return the stages up to the last one that the kernel does not know, and those after it.

    Stages of which a sample meets one at most, such as the choices of a `one_of`, may change places.
    """
    positions = enumerate(positions_of(plan.tree))
    position = {step.key: number for number, alternatives in positions for step in alternatives}
    before: list[Stage] = []
    after: list[Stage] = []
    for stage in plan.image_stages:
        if _name(stage) in CODES and (stage.kind != "geometry" or stage.border[0] in BORDERS):
            after.append(stage)
            continue
        at = len(after)
        while at and len({position[step.key] for step in (*after[at - 1].steps, *stage.steps)}) == 1:
            at -= 1
        before += [*after[:at], stage]
        after = after[at:]
    return before, after


def program_of(plan: Plan, placement: Placement) -> Program | None:
    """Return what a kernel does on a GPU in place of DALI's operators, None for plans that it does not run."""
    program = Program.of(plan) if placement.device == "gpu" and are_alike(plan) else None
    return program if program is not None and kernels_run(placement.gpu, every_op=program.every_op) else None


def are_alike(plan: Plan) -> bool:
    """Return whether all views run the same steps, each on a crop of its own."""
    return plan.views.crop == "own" and not plan.views.named


class ProgramFeed(Feed):
    """Feeds the programs of each batch, (batch_size, numbers), in place of the values of each stage."""

    def __init__(self, program: Program, sampler: Sampler, reading: Reading) -> None:
        super().__init__(sampler, reading)
        self._program = program

    def by_stage(self, where: Where) -> list[dict[str, Values]]:
        """Return the programs as the only values of one stage."""
        return [{"program": self._program.values(self._sampler, where)}]


def _name(stage: Stage) -> str:
    if stage.kind == "local":
        return stage.steps[0].op.name
    return "chain" if stage.chained else "color of mean" if stage.uses_mean else stage.kind


@cache
def kernels_run(gpu: int = 0, *, every_op: bool = False) -> bool:
    """Return whether programs can be compiled and run on the GPU of that number, by default those of policies."""
    if not torch.cuda.is_available():
        return False
    try:
        from augment.pipeline.kernels.stages import launch

        image = torch.zeros(1, 8, 8, 3, dtype=torch.uint8, device=torch.device("cuda", gpu))
        # As for most batches, so that this compiles the kernel that they need.
        programs = torch.zeros(1, 2, device=image.device)
        launch(image, programs, image.float(), [0.0] * 3, [1.0] * 3, stages=1, every_op=every_op, plane=every_op)
    except Exception as error:  # no Triton, no C compiler, an old version, ...
        instead = "DALI's and PyTorch's operators run instead"
        getLogger(__name__).info("%s, as Triton's kernels do not run here: %s", instead, error)
        return False
    return True
