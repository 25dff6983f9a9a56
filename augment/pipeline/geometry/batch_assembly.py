"""Makes batches from a pipeline's outputs: moves targets with their pixels, mixes samples, and adds frames."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from augment.data.dataset import Split
from augment.data.targets.combined import Several
from augment.data.targets.keypoints import missing_pairs
from augment.data.targets.kind import Kind
from augment.data.targets.spatial import Rules, SpatialKind
from augment.pipeline.batch import Batch
from augment.pipeline.geometry.mixing import Mixer
from augment.pipeline.geometry.motion import BatchMotion, Motions
from augment.pipeline.graph.parameter_feed import Ahead
from augment.pipeline.unreadable_images import unreadable_error
from augment.recipe.plan import Plan
from augment.support.errors import UserError


class BatchMaker:
    """Makes the batches of a plan.

    Args:
        plan: the plan.
        kind: the kind of the targets.
        seed: the seed of the draws.
        rank: the rank, which also seeds the draws.
        frames: whether to add frames. Batches with masks, boxes or keypoints always have frames.
        mixer: mixes samples. None: nothing is mixed.
        ahead: draws the motions of several batches at once. A subclass of `Ahead`.
        names: the names of the classes or keypoints, for messages.

    Raises:
        UserError: masks, boxes or keypoints cannot follow a step, or mirrored keypoints have no `flip_pairs`.
    """

    def __init__(
        self, plan: Plan, kind: Kind, seed: int, rank: int, *,
        frames: bool, mixer: Mixer | None, ahead: Callable[..., Ahead[Any]] = Ahead, names: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._follow = kind if isinstance(kind, SpatialKind) else None
        self._rules, self._mixer, self._motions = Rules(*plan.rules), mixer, None
        if frames or self._follow is not None:
            units = self._follow.units if self._follow is not None else ""
            self._motions = Motions(plan, seed, rank, targets=units, ahead=ahead)
            kinds = kind.kinds.values() if isinstance(kind, Several) else [kind]
            if self._motions.mirrors and any(getattr(of, "flip_pairs", ()) is None for of in kinds):
                raise missing_pairs(getattr(kind, "point_names", names), plan.path)

    def make(
        self,
        views: list[Tensor],
        targets: Any,
        indices: Tensor,
        shown: tuple[Sequence[Tensor], Callable[[], NDArray[np.int64]]],
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
            shown: the crop windows of each view, (N, 6) on the CPU, see `GraphImage`, and a function that returns the
                EXIF orientations, (N,). Only used with frames.
            epoch: the epoch of the draws.
            start: the position of the first sample in the epoch.
            share: see `Batch`.
        """
        views, followed = list(views), [targets] * len(views)
        motions: list[BatchMotion] = []
        if self._motions is not None:
            windows, orientations = shown
            motions = self._motions.of(windows, orientations(), epoch, start, indices.device)
        if self._mixer is not None:
            parts = partial(self._mixer.parts, count=len(indices), epoch=epoch, start=start)
            motions = [motion.mixed(parts(motion.size)) for motion in motions]
        if self._follow is not None:
            for view, motion in enumerate(motions):
                of_parts = [targets[sample] for sample in motion.parts.samples]
                followed[view] = self._follow.follow(of_parts, motion, self._rules)
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
            tuple(followed) if self._follow is not None else (),
        )


_PART = 16  # number of targets that a thread reads at a time


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
            for start in range(0, len(new), _PART):
                part = new[start : start + _PART]
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
