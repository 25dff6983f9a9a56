"""The callback that saves and counts the batches that are skipped because they are not finite."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

from augment.support.files import shown
from augment.support.text import amount
from trainer.callbacks.plots import as_fed
from trainer.callbacks.recorder import NonFiniteLossError
from trainer.loop.callback import Callback
from trainer.loop.checkpoint import to_host

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from trainer.loop.learner import Learner

log = logging.getLogger(__name__)


class NonFinite(Callback):
    """Saves skipped batches and stops the fit after too many; `trainer.loop.guard` skips them.

    Checking whether there was one waits for the device, so it is done every `interval` seconds, or at every batch on
    the CPU. Of the batches skipped since the last check, the first one of each shape is saved: `nonfinite-STEP.pt`
    holds images, targets and the samples' indices, and the PNG of the same name shows them. Of several ranks, all check
    after the same batch, and each bad part is saved: that of rank 1 as `nonfinite-STEP-rank1.pt`.

    `fit.skip_nonfinite` is the number of batches that may be skipped.

    Args:
        interval: seconds between two checks on a GPU.
    """

    order: ClassVar[int] = -5
    saves = ("skipped",)

    def __init__(self, interval: float = 0.5) -> None:
        self.interval = interval
        self.skipped = 0
        self._judged: Tensor | None = None
        self._count: Tensor | None = None
        self._slots: dict[Hashable, _Slot] = {}
        self._due = 0.0

    def after_batch(self, learner: Learner) -> None:
        """Keep the batch on the device if it is the first one that is not finite; check if it is due."""
        import torch

        finite = getattr(learner, "finite", None)
        if not learner.training or finite is None or finite is self._judged:
            return  # a cancelled batch still has the verdict on the previous one
        self._judged = finite
        images = learner.batch.images
        if self._count is None:
            self._count = torch.zeros((), dtype=torch.int64, device=images.device)
        self._count += ~finite
        assert learner.finite_here is not None
        shape = (images.shape, images.dtype, learner.batch.targets.shape)
        self._slots.setdefault(shape, _Slot(images.device)).keep(~learner.finite_here, learner)
        if images.device.type == "cpu" or learner.ranks.agree("check", monotonic() >= self._due):
            self._read(learner)

    def after_train(self, learner: Learner) -> None:
        """Check the rest of the pass."""
        if self._count is not None:
            self._read(learner)

    def _read(self, learner: Learner) -> None:
        import torch

        assert self._count is not None
        slots = list(self._slots.values())
        new, *full = torch.stack([self._count, *(slot.full.long() for slot in slots)]).tolist()
        self._due = monotonic() + self.interval
        if not new:
            return
        self._count.zero_()
        self.skipped += new
        mine = [slot.take() for slot, found in zip(slots, full, strict=True) if found]
        parts = [(rank, part) for rank, found in enumerate(learner.ranks.gather(mine)) for part in found]
        if not learner.ranks.is_main:
            return
        saved = [_save(learner, rank, part) for rank, part in parts if learner.folder]
        limit = learner.settings.skip_nonfinite
        where = f"; {', '.join(saved)}" if learner.folder else ""
        what = f"{amount(new, 'training batch')} with a loss or gradients that are not finite"
        log.warning("%s skipped by step %d, %d of %d so far%s", what, learner.step + 1, self.skipped, limit, where)
        if self.skipped > limit:
            raise NonFiniteLossError(
                f"loss or gradients of {amount(self.skipped, 'training batch')} are not finite, by step "
                f"{learner.step + 1} of {learner.total_steps} (epoch {learner.epoch + 1}){where}. "
                f"Allowed: fit.skip_nonfinite={limit}. A smaller fit.lr or callbacks.grad_clip.max_norm=1 may help."
            )


class _Slot:
    """Memory on the device for a batch of one shape, and whether it is in use."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self.full = torch.zeros((), dtype=torch.bool, device=device)
        self._step = torch.zeros((), dtype=torch.int64, device=device)
        self._batch: tuple[Tensor, ...] = ()

    def keep(self, bad: Tensor, learner: Learner) -> None:
        """Take the learner's batch if it is bad, and the slot is free."""
        import torch

        batch = learner.batch
        given = (batch.images, batch.targets, batch.indices.to(bad.device, non_blocking=True))
        if not self._batch:
            self._batch = tuple(torch.zeros_like(value) for value in given)
        take = bad & ~self.full
        for own, value in zip(self._batch, given, strict=True):
            own.copy_(torch.where(take, value, own))
        self._step.copy_(torch.where(take, learner.step, self._step))
        self.full.logical_or_(bad)

    def take(self) -> dict[str, Any]:
        """Return the batch, on the host, and free the slot."""
        self.full.zero_()
        images, targets, indices = (to_host(value) for value in self._batch)
        return {"images": images, "targets": targets, "indices": indices, "step": int(self._step) + 1}


def _save(learner: Learner, rank: int, part: dict[str, Any]) -> str:
    """Write a rank's part of a batch into the folder of the run; return the file's name."""
    import torch

    from trainer.figures.batch import plot_batch

    assert learner.folder is not None
    step = part["step"]
    file = learner.folder / f"nonfinite-{step}{f'-rank{rank}' if rank else ''}.pt"
    torch.save(part, file)
    pixels, captions = as_fed(learner, part["images"][:32], part["targets"][:32])
    plot_batch(pixels, captions, file.with_suffix(".png"), title=f"training batch {step}, not finite")
    return str(shown(file))
