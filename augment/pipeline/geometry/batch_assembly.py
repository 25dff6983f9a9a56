"""Make batches of what a graph hands out: let targets in the image follow its pixels, mix samples, tell frames."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
from augment.pipeline.unreadable_images import UnreadableImageError
from augment.recipe.plan import Plan
from augment.support.errors import UserError


class BatchMaker:
    """Makes the batches of a plan.

    Args:
        plan: what was done to the images.
        kind: the kind of their targets.
        seed: the seed of the draws.
        rank: the rank of the draws.
        frames: whether to tell frames; always so with targets in the image.
        mixer: mixes samples; None: none are mixed.
        ahead: draws the motions of several batches at once.
        names: the names of the classes or points, for messages.

    Raises:
        UserError: targets in the image cannot follow a step, or it is not known how a mirrored image changes them.
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
            views: the images of each view, (N, 3, height, width).
            targets: (N, ...) of whole images; or what `SpatialKind.load` returned, N of them.
            indices: (N,) int64.
            shown: with frames: the window of each view, (N, 6) on the CPU, see `GraphImage`; and what returns the
                orientations of EXIF, (N,).
            epoch: the epoch by which its samples are drawn.
            start: position of its first sample in the epoch.
            share: see `Batch`.
        """
        motions, followed = list[BatchMotion](), [targets] * len(views)
        if self._motions is not None:
            windows, orientations = shown
            motions = self._motions.of(windows, orientations(), epoch, start, indices.device)
        if self._mixer is not None:
            where = {"epoch": epoch, "start": start}
            motions = [m.mixed(self._mixer.parts(m.size, len(indices), **where)) for m in motions]
        if self._follow is not None:
            own = [[targets[sample] for sample in motion.parts.samples] for motion in motions]
            followed = [self._follow.follow(*pair, self._rules) for pair in zip(own, motions, strict=True)]
        if self._mixer is not None:
            mixed = [self._mixer.mix(*pair, epoch=epoch, start=start) for pair in zip(views, followed, strict=True)]
            views, followed = [view for view, _ in mixed], [own for _, own in mixed]
        frames = tuple(torch.from_numpy(motion.frame[motion.parts.own]) for motion in motions)
        of_views = tuple(followed) if self._follow is not None else ()
        first = frames[0] if frames else None
        return Batch(views[0], followed[0], indices, tuple(views), share, first, frames, of_views)


_PART = 16  # targets that a thread reads at a time


class TargetReader:
    """Reads the targets of coming batches in threads, such as masks in files, while the batches before are used.

    What was read is kept, as decoding a PNG in Python holds up all threads; but not masks of a user's own code, which
    may change.

    Attributes:
        reads: whether files are read, so that it helps to announce them.
    """

    def __init__(self, split: Split, threads: int) -> None:
        assert isinstance(split.kind, SpatialKind)
        self._split, self._kind = split, split.kind
        self.reads = any(self._kind.stored(target) is not None for target in split.targets)
        self._coming: dict[int, Future[dict[int, Any]]] = {}
        self._kept: dict[int, Any] = {}
        self._room = 2**30  # bytes of arrays of targets: 100,000 masks of a megapixel with few objects
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="targets") if self.reads else None

    def announce(self, indices: NDArray[np.integer[Any]]) -> None:
        """Begin to read the targets of a coming batch."""
        if self._pool is not None:
            new = [i for i in dict.fromkeys(indices.tolist()) if i not in self._coming and i not in self._kept]
            for start in range(0, len(new), _PART):
                part = new[start : start + _PART]
                self._coming.update(dict.fromkeys(part, self._pool.submit(self._load, part)))

    def take(self, indices: Sequence[int]) -> list[Any]:
        """Return what `SpatialKind.load` does for the targets of a batch."""
        coming = {index: self._coming.pop(index, None) for index in indices}
        found = self._load([i for i, future in coming.items() if future is None and i not in self._kept])
        found |= {index: future.result()[index] for index, future in coming.items() if future is not None}
        return [found[index] if index in found else self._kept[index] for index in indices]

    def forget(self) -> None:
        """Forget what was announced for a pass that is over."""
        for future in self._coming.values():
            future.cancel()
        self._coming.clear()

    def _load(self, indices: Sequence[int]) -> dict[int, Any]:
        """Return the targets of some samples of a batch; an UnreadableImageError names one that cannot be read."""
        found = {}
        for index in indices:
            target = self._split.targets[index]
            try:
                found[index] = self._kind.load(target)
            except (OSError, UserError) as error:
                raise UnreadableImageError(self._split.files[index], error) from error
            if self._room > 0 and getattr(self._kind.stored(target), "kept", True):
                self._kept[index] = found[index]
                parts = found[index] if isinstance(found[index], tuple) else (found[index],)
                self._room -= sum(getattr(part, "nbytes", 0) for part in parts)
        return found
