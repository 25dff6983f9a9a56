"""Mix samples and targets with PyTorch, after the DALI graph: the batch stages of a plan.

On a GPU, all threads wait for each other where they launch work, so little is launched for a batch: what is drawn is
copied for many batches at once, and one kernel runs mixup and cutmix, one after the other, and mixes the targets. With
ops of your own, PyTorch's operators run; samples that a stage skips get its op's neutral values, if it has some.
"""

from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from augment.data.targets.kind import Kind
from augment.data.targets.spatial import SpatialKind
from augment.params import Size
from augment.pipeline.feed import BLOCK, Ahead, Values, compact, stage_values
from augment.pipeline.program import runs
from augment.recipe.kinds import BatchOp
from augment.recipe.plan import Plan
from augment.recipe.sampler import Sampler
from augment.support.device import to_device
from augment.support.errors import UserError

_Values = dict[str, Tensor]
_KERNEL_OPS = {"mixup", "cutmix"}


class Mixer:
    """Mixes each sample of a batch with the next one, as the batch stages of a plan say.

    The values of `together` samples are drawn at once.
    """

    def __init__(self, plan: Plan, kind: Kind, *, seed: int, rank: int, classes: int, together: int = BLOCK) -> None:
        self._sampler = Sampler(plan.only("batch"), seed, rank)
        self._kind, self._classes = kind, classes
        self._pasted = kind if isinstance(kind, SpatialKind) else None
        if self._pasted is not None:
            _refuse(plan, self._pasted)
        self._together = together
        self._known = all(stage.steps[0].op.name in _KERNEL_OPS for stage in plan.batch_stages)
        # The values of batch stages, for each size of images, by the kernel or not.
        self._values: dict[tuple[Size, bool], Ahead[list[_Values]]] = {}

    def mix(self, images: Tensor, targets: Tensor, *, epoch: int, start: int) -> tuple[Tensor, Tensor]:
        """Mix a batch, or one view of it, whose first sample is at `start` of an epoch.

        Images are (N, 3, height, width), before and after, then in channels_last memory; targets, as the kind collates
        them, become the share of each class, (N, classes) float32. Labels and numbers are mixed in the same shares,
        (N, K), and masks pasted as images are.
        """
        stages = self._sampler.plan.batch_stages
        in_order = images.permute(0, 2, 3, 1).is_contiguous()
        by_kernel = self._known and self._pasted is None and in_order and kernel_runs(images.device)
        kind = Size(*images.shape[2:]), by_kernel
        if kind not in self._values:
            self._values[kind] = Ahead(partial(self._draw, kind, images.device), self._together)
        drawn, rows = self._values[kind].take(epoch, start, len(images))
        given = [{name: value[rows] for name, value in stage.items()} for stage in drawn]
        if by_kernel:
            from augment.pipeline.kernel_mix import mix

            return mix(images, targets, given[0]["records"], self._classes)
        own = targets if self._pasted is not None else self._kind.shares(targets, self._classes)
        # Rolled in the order of memory: CUDA returns rolled images plane by plane.
        partners = images.permute(0, 2, 3, 1).roll(-1, 0).permute(0, 3, 1, 2)
        others = own.roll(-1, 0)
        for stage, values in zip(stages, given, strict=True):
            applied, step = values.pop("applied", None), stage.steps[0]
            both = images, partners
            assert isinstance(step.op, BatchOp)
            if step.op.writes:  # what it is given is needed again
                both, values = (images.clone(), partners.clone()), {n: value.clone() for n, value in values.items()}
            made = step.op.function(*both, **step.op.fixed(step.params), **values)
            shapes = [tuple(np.shape(one)) for one in made] if isinstance(made, tuple) else type(made).__name__
            if shapes != (allowed := [tuple(images.shape), (len(own),)]):
                raise UserError(f"op '{step.op.name}' made {shapes}. Allowed: images and share, {allowed}.")
            mixed, share = made
            if self._pasted is not None:
                assert step.op.pastes
                where = step.op.pastes(**values)
                where = where if applied is None else where & applied[:, None, None]
                own = self._pasted.paste(own, others, where)
            if applied is not None:
                mixed = torch.where(applied[:, None, None, None], mixed, images)
                share = torch.where(applied, share, 1.0)
            images, own = mixed, others.lerp(own, share[:, None]) if self._pasted is None else own
        return images.contiguous(memory_format=torch.channels_last), own

    def _draw(self, kind: tuple[Size, bool], device: torch.device, where: tuple[int, int, int]) -> list[_Values]:
        """Return what each batch stage is fed, with a mask `applied` if its op has no neutral values.

        Of `kind`, the size of images, and whether a kernel mixes them: it takes `records` of all stages.
        """
        draws, (size, by_kernel) = self._sampler.draw(*where), kind
        fed = [stage_values(stage, draws, size, neutral=True) for stage in self._sampler.plan.batch_stages]
        if by_kernel:
            fed = [{"records": np.stack([_records(values, size) for values in fed], axis=1)}]
        return [to_device({name: compact(value) for name, value in stage.items()}, device) for stage in fed]


def _refuse(plan: Plan, kind: SpatialKind) -> None:
    """Refuse steps that mix what targets in the image cannot follow."""
    for stage in plan.batch_stages:
        step = stage.steps[0]
        assert isinstance(step.op, BatchOp)
        if not (kind.pastes and step.op.pastes):
            raise UserError(
                f"{plan.path}.{step.key}: '{step.op.name}' mixes samples, which {kind.units} cannot follow. Allowed: "
                f"{'ops that paste, as cutmix does' if kind.pastes else 'a recipe without it'}."
            )


def _records(fed: dict[str, Values], size: Size) -> Values:
    """Return what the kernel takes of mixup or cutmix, (N, 6) float32, see `kernel_mix`; both have neutral values."""
    share = fed["share"]
    records = np.zeros((len(share), 6), np.float32)
    records[:, 5] = share
    if "across" in fed:  # a rectangle of the partner
        for column, mask in ((0, fed["across"]), (2, fed["down"])):
            records[:, column] = mask.argmax(axis=1)
            records[:, column + 1] = records[:, column] + mask.sum(axis=1)
    else:
        records[:, 1], records[:, 3] = size.width, size.height
        records[:, 4] = share
    return records


@cache
def kernel_runs(device: torch.device) -> bool:
    """Return whether a kernel can mix here."""

    def trial() -> None:
        from augment.pipeline.kernel_mix import mix

        images = torch.zeros(2, 8, 8, 3, device=device).permute(0, 3, 1, 2)
        mix(images, torch.zeros(2, dtype=torch.int64, device=device), torch.zeros(2, 1, 6, device=device), 2)

    return device.type == "cuda" and runs(trial, "samples are mixed by PyTorch's operators")
