"""Mix samples and targets with PyTorch, after the DALI graph: the batch stages of a plan."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from augment.pipeline.feed import BLOCK, compact
from augment.recipe.op import Array
from augment.recipe.plan import Plan
from augment.recipe.sampler import Sampler

_Values = dict[str, Array]


class Mixer:
    """Mixes each sample of a batch with the next one, as the batch stages of a plan say.

    Args:
        plan: the plan, whose batch stages and their steps are used.
        seed: the run's seed.
        rank: the rank of this process.
        classes: number of classes.
    """

    def __init__(self, plan: Plan, *, seed: int, rank: int, classes: int) -> None:
        keys = {step.key.split(".")[0] for stage in plan.batch_stages for step in stage.steps}
        mixing = replace(plan, tree=tuple(step for step in plan.tree if step.key in keys))
        self._sampler = Sampler(mixing, seed, rank)
        self._classes = classes
        # For each size of images: epoch, first and last sample, and values.
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
        plan = self._sampler.plan
        own = targets if targets.is_floating_point() else one_hot(targets, self._classes).float()
        # CUDA's roll returns images plane by plane.
        partners = images.roll(-1, 0).contiguous(memory_format=torch.channels_last)
        others = own.roll(-1, 0)
        for stage, drawn in zip(
            plan.batch_stages, self._values(images.shape[-1], epoch, start, len(images)), strict=True
        ):
            values = {name: to_device(value, images.device) for name, value in drawn.items()}
            applied, step = values.pop("applied"), stage.steps[0]
            mixed, share = step.op.function(images, partners, **step.op.fixed(step.params), **values)
            images = torch.where(applied[:, None, None, None], mixed, images)
            own = others.lerp(own, torch.where(applied, share, 1.0)[:, None])
        return images.contiguous(memory_format=torch.channels_last), own

    def _values(self, size: int, epoch: int, start: int, count: int) -> list[_Values]:
        """Return for each batch stage what it is fed, and `applied`; many batches are drawn at once."""
        drawn, first, end, stages = self._drawn.get(size, (-1, 0, 0, []))
        if epoch != drawn or start < first or start + count > end:
            plan, first, end = self._sampler.plan, start, start + max(count, BLOCK)
            draws = self._sampler.draw(epoch, first, end - first)
            stages = [{**stage.values(draws, size), "applied": stage.applied(draws)} for stage in plan.batch_stages]
            self._drawn[size] = epoch, first, end, stages
        rows = slice(start - first, start - first + count)
        return [{name: value[rows] for name, value in stage.items()} for stage in stages]


def to_device(values: Array, device: torch.device) -> Tensor:
    """Copy values to the device asynchronously."""
    tensor = torch.from_numpy(compact(values))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
