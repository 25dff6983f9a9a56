"""Mix samples and targets with PyTorch, after the DALI graph: the batch stages of a plan.

On a GPU, all threads wait for each other where they launch work, so little is launched for a batch: what is drawn is
copied for many batches at once, and one kernel runs mixup and cutmix, one after the other, and mixes the targets. With
other ops, PyTorch's operators run; samples that a stage skips get its op's neutral values, if it has some.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from augment.data.targets.kind import Kind
from augment.data.targets.spatial import SpatialKind
from augment.data.targets.visible_regions import Parts
from augment.params import Size
from augment.pipeline.graph.parameter_feed import Ahead, Values, compact, stage_values
from augment.pipeline.kernels.instructions import kernels_run
from augment.recipe.op_kinds import BatchOp
from augment.recipe.plan import Plan
from augment.recipe.sampler import Sampler, Where
from augment.recipe.stage import Draws, Stage
from augment.support.device import to_device
from augment.support.errors import UserError

_Values = dict[str, Tensor]
_Made = tuple[Values, bool]  # the parts that an op makes, see `Parts.mixed`, and whether it blends


class Mixer:
    """Mixes each sample of a batch with those that follow it, as the batch stages of a plan say.

    The values of several batches are drawn at once, as `ahead` does.
    """

    def __init__(
        self, plan: Plan, kind: Kind, *, seed: int, rank: int, classes: int, ahead: Callable[..., Ahead[Any]] = Ahead
    ) -> None:
        self._sampler = Sampler(plan.only("batch"), seed, rank)
        self._stages, self._kind, self._classes = plan.batch_stages, kind, classes
        if isinstance(kind, SpatialKind):
            several = "ops with parts=..., as mixup" if kind.blends else "ops that paste, as cutmix and mosaic do"
            for op, stage in ((_op(stage), stage) for stage in plan.batch_stages):
                if not (kind.pastes and op.parts) or (op.blends and not kind.blends):
                    place = f"{plan.path}.{stage.steps[0].key}"
                    raise UserError(
                        f"{place}: '{op.name}' mixes samples, which {kind.units} cannot follow. "
                        f"Allowed: {several if kind.pastes else 'a recipe without it'}."
                    )
        self._ahead = ahead
        self._known = all(stage.steps[0].op.name in ("mixup", "cutmix") for stage in plan.batch_stages)
        # The values of batch stages, for each size of images, by the kernel or not; and what their parts are.
        self._values: dict[tuple[Size, bool], Ahead[list[_Values]]] = {}
        self._made: dict[Size, Ahead[list[_Made]]] = {}

    def mix(self, images: Tensor, targets: Any, *, epoch: int, start: int) -> tuple[Tensor, Any]:
        """Mix a batch, or one view of it, whose first sample is at `start` of an epoch.

        Images are (N, 3, height, width), before and after, then in channels_last memory; targets, as the kind collates
        them, become the share of each class, (N, classes) float32. Labels and numbers are mixed in the same shares,
        (N, K). Those in the image stay as they are: they follow `parts`.
        """
        if isinstance(self._kind, SpatialKind):
            return self._mix(images, images.new_zeros((len(images), 1), dtype=torch.float32), epoch, start)[0], targets
        return self._mix(images, targets, epoch, start)

    def parts(self, size: Size, count: int, *, epoch: int, start: int) -> Parts:
        """Return which parts of the samples of a batch mixed images show, as far as ops say so."""
        ahead = self._made.setdefault(size, self._ahead(partial(self._draw_parts, size)))
        (drawn, rows), parts = ahead.take(epoch, start, count), Parts.whole(count, size)
        for made, blends in drawn:
            parts = parts.mixed(made[rows], blends=blends)
        return parts

    def _draw_parts(self, size: Size, where: Where) -> list[_Made]:
        draws = self._sampler.draw(*where)
        fed = [(_op(stage), stage_values(stage, draws, size, neutral=True)) for stage in self._stages]
        return [(op.parts(size=size, **values), op.blends) for op, values in fed if op.parts]

    def _mix(self, images: Tensor, targets: Tensor, epoch: int, start: int) -> tuple[Tensor, Tensor]:
        in_order = images.permute(0, 2, 3, 1).is_contiguous()
        by_kernel = self._known and in_order and kernel_runs(images.device)
        kind = Size(*images.shape[2:]), by_kernel
        ahead = self._values.setdefault(kind, self._ahead(partial(self._draw, kind, images.device)))
        drawn, rows = ahead.take(epoch, start, len(images))
        given = [{name: value[rows] for name, value in stage.items()} for stage in drawn]
        if by_kernel:
            from augment.pipeline.kernels.mix import mix

            return mix(images, targets, given[0]["records"], self._classes)
        own = targets if isinstance(self._kind, SpatialKind) else self._kind.shares(targets, self._classes)
        # Rolled in the order of memory: CUDA returns rolled images plane by plane.
        partners = images.permute(0, 2, 3, 1).roll(-1, 0).permute(0, 3, 1, 2)
        whole, count = own, len(own)
        for stage, values in zip(self._stages, given, strict=True):
            applied, op, both = values.pop("applied", None), _op(stage), (images, partners)
            if op.writes:  # what it is given is needed again
                both, values = (images.clone(), partners.clone()), {n: value.clone() for n, value in values.items()}
            made = op.function(*both, **op.fixed(stage.steps[0].params), **values)
            shapes = [tuple(np.shape(one)) for one in made] if isinstance(made, tuple) else type(made).__name__
            allowed = [tuple(images.shape), (count,)]
            if shapes != allowed and shapes != [allowed[0], (count, *shapes[-1][1:2])]:
                raise UserError(f"op '{op.name}' made {shapes}. Allowed: images and share, {allowed}.")
            mixed, share = made
            if share.ndim == 1:
                shared = whole.roll(-1, 0).lerp(own, share[:, None])
            else:
                every = [own, *(whole.roll(-k, 0) for k in range(1, share.shape[1]))]
                shared = (torch.stack(every, dim=1) * share[..., None]).sum(dim=1)
            if applied is not None:
                mixed = torch.where(applied[:, None, None, None], mixed, images)
                shared = torch.where(applied[:, None], shared, own)
            images, own = mixed, shared
        return images.contiguous(memory_format=torch.channels_last), own

    def _draw(self, kind: tuple[Size, bool], device: torch.device, where: Where) -> list[_Values]:
        """Return what each batch stage is fed, with a mask `applied` if its op has no neutral values.

        Of `kind`, the size of images, and whether a kernel mixes them: it takes `records` of all stages.
        """
        draws, (size, by_kernel) = self._sampler.draw(*where), kind
        if by_kernel:
            fed = [{"records": np.stack([_records(stage, draws, size) for stage in self._stages], axis=1)}]
        else:
            fed = [stage_values(stage, draws, size, neutral=True) for stage in self._stages]
        return [to_device({name: compact(value) for name, value in stage.items()}, device) for stage in fed]


def _op(stage: Stage) -> BatchOp:
    op = stage.steps[0].op
    assert isinstance(op, BatchOp)
    return op


def _records(stage: Stage, draws: Mapping[str, Draws], size: Size) -> Values:
    """Return what the kernel takes of mixup or cutmix, (N, 6) float32, see `kernel_mix`; both have neutral values."""
    op, (rows, own) = _op(stage), stage.packed(draws)
    values, count = stage_values(stage, own, size, neutral=True), len(stage.applied(draws))
    assert op.parts is not None
    left, top, right, bottom = op.parts(size=size, **values)[:, 1, :4].T
    share = values["share"]
    made = np.stack([left, right, top, bottom, share * op.blends, share], axis=1).astype(np.float32)
    records = np.tile(made[-1], (count, 1))
    records[rows] = made[: len(rows)]
    return records


def kernel_runs(device: torch.device) -> bool:
    """Return whether a kernel mixes here."""
    return device.type == "cuda" and kernels_run(device.index)
