"""Mix samples and targets with PyTorch, after the DALI graph: the batch stages of a plan.

On a GPU, all threads wait for each other where they launch work, so little is launched for a batch: what is drawn is
copied for many batches at once, and samples that a stage skips get its op's neutral values, if it has some.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from augment.pipeline.feed import BLOCK, compact, stage_values
from augment.recipe.op import Array
from augment.recipe.plan import Plan
from augment.recipe.sampler import Sampler
from augment.support.errors import UserError

_Values = dict[str, Tensor]


class Mixer:
    """Mixes each sample of a batch with the next one, as the batch stages of a plan say.

    Args:
        plan: the plan, whose batch stages and their steps are used.
        seed: the run's seed.
        rank: the rank of this process.
        classes: number of classes.
        together: samples whose values are drawn at once.
    """

    def __init__(self, plan: Plan, *, seed: int, rank: int, classes: int, together: int = BLOCK) -> None:
        keys = {step.key.split(".")[0] for stage in plan.batch_stages for step in stage.steps}
        mixing = replace(plan, tree=tuple(step for step in plan.tree if step.key in keys))
        self._sampler = Sampler(mixing, seed, rank)
        self._classes = classes
        self._together = together
        # For each size of images: epoch, first and last sample, and the values of each batch stage.
        self._drawn: dict[int, tuple[int, int, int, list[_Values]]] = {}

    def mix(self, images: Tensor, targets: Tensor, *, epoch: int, start: int) -> tuple[Tensor, Tensor]:
        """Mix a batch, or one view of it.

        Args:
            images: (N, 3, size, size).
            targets: (N,) class indices, or (N, K) float32 labels or numbers.
            epoch: the epoch it belongs to.
            start: position of its first sample in the epoch.

        Returns:
            Images, (N, 3, size, size) in channels_last memory, and the share of each class in them, (N, classes)
            float32; labels and numbers are mixed in the same shares, (N, K).
        """
        stages = self._sampler.plan.batch_stages
        own = targets if targets.is_floating_point() else _one_hot(targets, self._classes)
        # Rolled in the order of memory: CUDA returns rolled images plane by plane.
        partners = images.permute(0, 2, 3, 1).roll(-1, 0).permute(0, 3, 1, 2)
        others = own.roll(-1, 0)
        given = self._values(images.shape[-1], epoch, start, len(images), images.device)
        for stage, values in zip(stages, given, strict=True):
            applied, step = values.pop("applied", None), stage.steps[0]
            both = images, partners
            if step.op.writes:  # what it is given is needed again
                both, values = (images.clone(), partners.clone()), {n: value.clone() for n, value in values.items()}
            made = step.op.function(*both, **step.op.fixed(step.params), **values)
            shapes = [tuple(np.shape(one)) for one in made] if isinstance(made, tuple) else type(made).__name__
            if shapes != (allowed := [tuple(images.shape), (len(own),)]):
                raise UserError(f"op '{step.op.name}' made {shapes}. Allowed: images and share, {allowed}.")
            mixed, share = made
            if applied is not None:
                mixed = torch.where(applied[:, None, None, None], mixed, images)
                share = torch.where(applied, share, 1.0)
            images, own = mixed, others.lerp(own, share[:, None])
        return images.contiguous(memory_format=torch.channels_last), own

    def _values(self, size: int, epoch: int, start: int, count: int, device: torch.device) -> list[_Values]:
        """Return what each batch stage is fed, with a mask `applied` if its op has no neutral values."""
        drawn, first, end, stages = self._drawn.get(size, (-1, 0, 0, []))
        if epoch != drawn or start < first or start + count > end:
            first, end = start, start + max(count, self._together)
            draws = self._sampler.draw(epoch, first, end - first)
            fed = [stage_values(stage, draws, size, neutral=True) for stage in self._sampler.plan.batch_stages]
            stages = [{name: to_device(value, device) for name, value in values.items()} for values in fed]
            self._drawn[size] = epoch, first, end, stages
        rows = slice(start - first, start - first + count)
        return [{name: value[rows] for name, value in stage.items()} for stage in stages]


def _one_hot(targets: Tensor, classes: int) -> Tensor:
    zeros = torch.zeros(len(targets), classes, dtype=torch.float32, device=targets.device)
    return zeros.scatter_(1, targets[:, None], 1.0)


def to_device(values: Array, device: torch.device) -> Tensor:
    """Copy values to the device asynchronously."""
    tensor = torch.from_numpy(compact(values))
    if device.type == "cpu":
        return tensor
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    pinned.numpy()[...] = values  # `pin_memory` copies with as many threads as there are cores
    return pinned.to(device, non_blocking=True)
