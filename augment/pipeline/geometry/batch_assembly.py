"""Makes batches from a pipeline's outputs: moves targets with their pixels, mixes samples, and adds frames.

`Mixer` runs the batch stages of a plan, which mix samples and targets, in PyTorch. Threads that launch GPU kernels wait
for each other, so the mixer launches few kernels per batch. It copies draws to the GPU for many batches at once. If a
plan mixes only by mixup and cutmix, one kernel mixes RGB images and their targets. Otherwise, PyTorch operators mix
them. Samples that skip an op get its neutral values, which change nothing. If an op has no neutral values, a mask keeps
these samples unchanged.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from augment.data.dataset import Split
from augment.data.targets.combined import Several
from augment.data.targets.keypoints import missing_pairs
from augment.data.targets.kind import Kind
from augment.data.targets.spatial import Rules, SpatialKind
from augment.data.targets.visible_regions import Parts
from augment.params import Size
from augment.pipeline.batch import Batch
from augment.pipeline.geometry.motion import BatchMotion, Motions
from augment.pipeline.graph.parameter_feed import DrawAhead, FedValues, compact, stage_values
from augment.pipeline.kernels.instructions import kernels_run
from augment.pipeline.unreadable_images import unreadable_error
from augment.recipe.op_kinds import BatchOp
from augment.recipe.plan import Plan
from augment.recipe.sampler import Sampler, SampleRange
from augment.recipe.stage import Draws, Stage
from augment.support.device import to_device
from augment.support.errors import UserError

_Values = dict[str, Tensor]
_OpParts = tuple[FedValues, bool]  # the result of an op's `parts`, see `Parts.mixed`, and whether the op blends


class Mixer:
    """Mixes each sample of a batch with the following samples, as the batch stages of a plan define.

    Args:
        plan: the plan.
        kind: the kind of the targets.
        seed: the seed of the draws.
        rank: the rank, which also seeds the draws.
        classes: number of classes.
        ahead: draws for several batches at once. A subclass of `DrawAhead`.

    Raises:
        UserError: masks, boxes or keypoints cannot follow an op.
    """

    def __init__(
        self,
        plan: Plan,
        kind: Kind,
        *,
        seed: int,
        rank: int,
        classes: int,
        ahead: Callable[..., DrawAhead[Any]] = DrawAhead,
    ) -> None:
        self._sampler = Sampler(plan.only("batch"), seed, rank)
        self._stages, self._kind, self._classes = plan.batch_stages, kind, classes
        if isinstance(kind, SpatialKind):
            usable = "an op that pastes, such as cutmix or mosaic"
            if kind.blends:
                usable = "an op with parts=..., such as mixup"
            for stage in plan.batch_stages:
                op = _op(stage)
                if not (kind.pastes and op.parts) or (op.blends and not kind.blends):
                    remedy = f"Use {usable}" if kind.pastes else "Remove this step"
                    raise UserError(
                        f"{plan.path}.{stage.steps[0].key}: '{op.name}' mixes samples, which {kind.units} cannot "
                        f"follow. {remedy}."
                    )
        self._ahead = ahead
        self._kernel_knows_ops = all(stage.steps[0].op.name in ("mixup", "cutmix") for stage in plan.batch_stages)
        # The draws of the batch stages. Values depend on the image size, and on whether the kernel runs. Parts depend
        # only on the image size.
        self._values: dict[tuple[Size, bool], DrawAhead[list[_Values]]] = {}
        self._parts: dict[Size, DrawAhead[list[_OpParts]]] = {}

    def mix(self, images: Tensor, targets: Any, *, epoch: int, start: int) -> tuple[Tensor, Any]:
        """Mix a batch, or one view of it, whose first sample is at position `start` of an epoch.

        Args:
            images: (N, C, height, width).
            targets: the targets as their kind collates them. Masks, boxes and keypoints are returned unchanged, because
                `BatchMaker` moves them by the result of `parts`.
            epoch: the epoch.
            start: the position of the first sample in the epoch.

        Returns:
            The images in channels_last memory, and the targets: the share of each class, (N, classes) float32, or mixed
            labels or regression targets, (N, K).
        """
        if isinstance(self._kind, SpatialKind):
            return self._mix(images, images.new_zeros((len(images), 1), dtype=torch.float32), epoch, start)[0], targets
        return self._mix(images, targets, epoch, start)

    def parts(self, size: Size, count: int, *, epoch: int, start: int) -> Parts:
        """Return the parts of samples that the mixed images of a batch show. Ignore ops that declare no `parts`."""
        ahead = self._parts.setdefault(size, self._ahead(partial(self._draw_parts, size)))
        drawn, rows = ahead.take(epoch, start, count)
        parts = Parts.whole(count, size)
        for made, blends in drawn:
            parts = parts.mixed(made[rows], blends=blends)
        return parts

    def _draw_parts(self, size: Size, where: SampleRange) -> list[_OpParts]:
        draws = self._sampler.draw(*where)
        fed = [(_op(stage), stage_values(stage, draws, size, neutral=True)) for stage in self._stages]
        return [(op.parts(size=size, **values), op.blends) for op, values in fed if op.parts]

    def _mix(self, images: Tensor, targets: Tensor, epoch: int, start: int) -> tuple[Tensor, Tensor]:
        in_order = images.permute(0, 2, 3, 1).is_contiguous()
        by_kernel = self._kernel_knows_ops and in_order and images.shape[1] == 3 and mixing_kernel_runs(images.device)
        variant = Size(*images.shape[2:]), by_kernel
        ahead = self._values.setdefault(variant, self._ahead(partial(self._draw, variant, images.device)))
        drawn, rows = ahead.take(epoch, start, len(images))
        if by_kernel:
            from augment.pipeline.kernels.mix import mix

            return mix(images, targets, drawn[0]["records"][rows], self._classes)
        own = targets if isinstance(self._kind, SpatialKind) else self._kind.shares(targets, self._classes)
        # Roll NHWC images, because CUDA would return rolled NCHW images in a different memory format.
        partners = images.permute(0, 2, 3, 1).roll(-1, 0).permute(0, 3, 1, 2)
        unmixed = own
        for stage, of_batches in zip(self._stages, drawn, strict=True):
            values = {name: value[rows] for name, value in of_batches.items()}
            applied = values.pop("applied", None)
            mixed, share = _run(stage, images, partners, values)
            shared = _mixed_targets(unmixed, own, share)
            if applied is not None:
                mixed = torch.where(applied[:, None, None, None], mixed, images)
                shared = torch.where(applied[:, None], shared, own)
            images, own = mixed, shared
        return images.contiguous(memory_format=torch.channels_last), own

    def _draw(self, variant: tuple[Size, bool], device: torch.device, where: SampleRange) -> list[_Values]:
        """Return the values of each batch stage, with a mask `applied` if its op has no neutral values.

        `variant` is the size of the images, and whether the kernel mixes them. The kernel takes only the `records`.
        """
        size, by_kernel = variant
        draws = self._sampler.draw(*where)
        if by_kernel:
            records = np.stack([_records(stage, draws, size) for stage in self._stages], axis=1)
            return [to_device({"records": compact(records)}, device)]
        fed = []
        for stage in self._stages:
            values = stage_values(stage, draws, size, neutral=True)
            fed.append(to_device({name: compact(value) for name, value in values.items()}, device))
        return fed


def _op(stage: Stage) -> BatchOp:
    return cast(BatchOp, stage.steps[0].op)


def _run(stage: Stage, images: Tensor, partners: Tensor, values: _Values) -> tuple[Tensor, Tensor]:
    op, expected = _op(stage), [tuple(images.shape), (len(images),)]
    if op.writes:  # pass copies, because the op may change its arguments
        images, partners = images.clone(), partners.clone()
        values = {name: value.clone() for name, value in values.items()}
    made = op.function(images, partners, **op.fixed(stage.steps[0].params), **values)
    shapes = [tuple(np.shape(one)) for one in made] if isinstance(made, tuple) else type(made).__name__
    if shapes != expected and shapes != [expected[0], (len(images), *shapes[-1][1:2])]:
        raise UserError(f"op '{op.name}' returned {shapes}. Return images and share, {expected}.")
    mixed, share = made
    return mixed, share


def _mixed_targets(unmixed: Tensor, own: Tensor, share: Tensor) -> Tensor:
    """Mix each sample's target so far, (N, classes), with the unmixed targets of the following samples.

    `share` holds the share of the sample's own target, (N,), or also the shares of the following targets, (N, 1 + K).
    """
    if share.ndim == 1:
        return unmixed.roll(-1, 0).lerp(own, share[:, None])
    every = [own, *(unmixed.roll(-k, 0) for k in range(1, share.shape[1]))]
    return (torch.stack(every, dim=1) * share[..., None]).sum(dim=1)


def _records(stage: Stage, draws: Mapping[str, Draws], size: Size) -> FedValues:
    """Return the kernel's input for mixup or cutmix, (N, 6) float32, see `kernels.mix`."""
    op = _op(stage)
    rows, own = stage.applied_draws(draws)
    values, count = stage_values(stage, own, size, neutral=True), len(stage.applied(draws))
    assert op.parts is not None
    left, top, right, bottom = op.parts(size=size, **values)[:, 1, :4].T
    share = values["share"]
    made = np.stack([left, right, top, bottom, share * op.blends, share], axis=1).astype(np.float32)
    records = np.tile(made[-1], (count, 1))  # the last row is neutral if samples skip the stage, see `applied_draws`
    records[rows] = made[: len(rows)]
    return records


def mixing_kernel_runs(device: torch.device) -> bool:
    return device.type == "cuda" and kernels_run(device.index)


class BatchMaker:
    """Makes the batches of a plan.

    Args:
        plan: the plan.
        kind: the kind of the targets.
        seed: the seed of the draws.
        rank: the rank, which also seeds the draws.
        frames: whether to add frames. Batches with masks, boxes or keypoints always have frames.
        mixer: mixes samples. None: nothing is mixed.
        ahead: draws the motions of several batches at once. A subclass of `DrawAhead`.
        names: the names of the classes or keypoints, for messages.

    Raises:
        UserError: masks, boxes or keypoints cannot follow a step, or mirrored keypoints have no `flip_pairs`.
    """

    def __init__(
        self, plan: Plan, kind: Kind, seed: int, rank: int, *,
        frames: bool, mixer: Mixer | None, ahead: Callable[..., DrawAhead[Any]] = DrawAhead, names: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._spatial = kind if isinstance(kind, SpatialKind) else None
        self._rules, self._mixer, self._motions = Rules(*plan.rules), mixer, None
        if frames or self._spatial is not None:
            units = self._spatial.units if self._spatial is not None else ""
            self._motions = Motions(plan, seed, rank, targets=units, ahead=ahead)
            kinds = kind.kinds.values() if isinstance(kind, Several) else [kind]
            if self._motions.mirrors and any(getattr(of, "flip_pairs", ()) is None for of in kinds):
                raise missing_pairs(getattr(kind, "point_names", names), plan.path)

    def make(
        self,
        views: list[Tensor],
        targets: Any,
        indices: Tensor,
        crops: tuple[Sequence[Tensor], Callable[[], NDArray[np.int64]]],
        *,
        epoch: int,
        start: int,
        share: float = 1.0,
    ) -> Batch:
        """Make a batch of N samples.

        Args:
            views: the images of each view, (N, C, height, width).
            targets: targets that describe whole images, (N, ...), or N results of `SpatialKind.load`.
            indices: (N,) int64, see `Batch`.
            crops: the crop windows of each view, (N, 6) on the CPU, see `GraphImage`, and a function that returns the
                EXIF orientations, (N,). Only used with frames.
            epoch: the epoch of the draws.
            start: the position of the first sample in the epoch.
            share: see `Batch`.
        """
        views, followed = list(views), [targets] * len(views)
        motions: list[BatchMotion] = []
        if self._motions is not None:
            windows, orientations = crops
            motions = self._motions.of(windows, orientations(), epoch, start, indices.device)
        if self._mixer is not None:
            parts = partial(self._mixer.parts, count=len(indices), epoch=epoch, start=start)
            motions = [motion.mixed(parts(motion.size)) for motion in motions]
        if self._spatial is not None:
            for view, motion in enumerate(motions):
                of_parts = [targets[sample] for sample in motion.parts.samples]
                followed[view] = self._spatial.follow(of_parts, motion, self._rules)
        if self._mixer is not None:
            for view, images in enumerate(views):
                views[view], followed[view] = self._mixer.mix(images, followed[view], epoch=epoch, start=start)
        frames = tuple(torch.from_numpy(motion.frame[motion.parts.own]) for motion in motions)
        return Batch(
            views[0],
            followed[0],
            indices,
            tuple(views),
            share,
            frames[0] if frames else None,
            frames,
            tuple(followed) if self._spatial is not None else (),
        )


_TARGETS_PER_CALL = 16  # number of targets that a thread reads at a time


class TargetReader:
    """Reads the targets of upcoming batches, such as mask files, in threads.

    The reader keeps its results, because decoding a PNG in Python blocks all threads. It does not keep masks from a
    user's code, because these may change.

    Attributes:
        reads: whether targets are in files, so that announcing a batch saves time.
    """

    def __init__(self, split: Split, threads: int) -> None:
        assert isinstance(split.kind, SpatialKind)
        self._split, self._kind = split, split.kind
        self.reads = any(self._kind.stored(target) is not None for target in split.targets)
        self._coming: dict[int, Future[dict[int, Any]]] = {}
        self._kept: dict[int, Any] = {}
        # Bytes that are left for kept results. Masks are kept as runs, so one gigabyte is enough for about 100,000
        # one-megapixel masks with few objects.
        self._room = 2**30
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="targets") if self.reads else None

    def announce(self, indices: NDArray[np.integer[Any]]) -> None:
        """Start to read the targets of an upcoming batch."""
        if self._pool is not None:
            wanted = dict.fromkeys(indices.tolist())
            new = [index for index in wanted if index not in self._coming and index not in self._kept]
            for start in range(0, len(new), _TARGETS_PER_CALL):
                part = new[start : start + _TARGETS_PER_CALL]
                self._coming.update(dict.fromkeys(part, self._pool.submit(self._load, part)))

    def take(self, indices: Sequence[int]) -> list[Any]:
        """Return the results of `SpatialKind.load` for a batch."""
        coming = {index: self._coming.pop(index) for index in indices if index in self._coming}
        found = self._load([index for index in indices if index not in coming and index not in self._kept])
        found |= {index: future.result()[index] for index, future in coming.items()}
        return [found[index] if index in found else self._kept[index] for index in indices]

    def forget(self) -> None:
        """Cancel the reads that were announced for a pass that has ended."""
        for future in self._coming.values():
            future.cancel()
        self._coming.clear()

    def _load(self, indices: Sequence[int]) -> dict[int, Any]:
        """Read targets. An unreadable target raises a UserError that names its image."""
        found = {}
        for index in indices:
            target = self._split.targets[index]
            try:
                found[index] = self._kind.load(target)
            except (OSError, UserError) as error:
                raise unreadable_error(self._split.files[index], error) from error
            if self._room > 0 and getattr(self._kind.stored(target), "kept", True):
                self._kept[index] = found[index]
                parts = found[index] if isinstance(found[index], tuple) else (found[index],)
                self._room -= sum(getattr(part, "nbytes", 0) for part in parts)
        return found
