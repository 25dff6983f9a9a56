"""Callbacks that watch numbers that are not finite: batches that are skipped, and the scale of the loss in float16."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from time import monotonic
from typing import TYPE_CHECKING, Any

from augment.support.files import shown
from augment.support.text import amount
from trainer.callbacks.plots import as_fed
from trainer.callbacks.recorder import NonFiniteLossError
from trainer.loop.callback import Callback, Phase
from trainer.loop.checkpoint import to_host

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.loop.learner import Learner

log = logging.getLogger(__name__)

# With a scale below this, float16's smallest normal number, even gradients near 1 would vanish: what is not finite is
# not due to the scale.
_LOWEST = 2.0**-14


class NonFinite(Callback):
    """Saves skipped batches and stops the fit after too many; `trainer.loop.runner` skips them.

    Checking whether there was one waits for the device, so it is done every `interval` seconds, or at every batch on
    the CPU. Of the batches skipped since the last check, the first one of each shape is saved: `nonfinite-STEP.pt`
    holds images, targets unless they are lists, and the samples' indices, and the PNG of the same name shows them. Of
    several ranks, all check after the same batch, and each bad part is saved: that of rank 1 as
    `nonfinite-STEP-rank1.pt`.

    `fit.skip_nonfinite` is the number of batches that may be skipped.
    """

    order = Phase.MEASURE
    saves = ("skipped",)

    def __init__(self, interval: float = 0.5) -> None:
        self.interval = interval
        self.skipped = 0
        self._judged: Tensor | None = None
        self._counts: list[Tensor] = []  # of the batches since the last check, () bool: whether they were skipped
        self._kept: dict[Hashable, dict[str, Tensor]] = {}  # by shape, on the device; bad: whether it is a bad batch
        self._due = 0.0

    def after_batch(self, learner: Learner) -> None:
        """Keep the batch on the device if it is the first one that is not finite; check if it is due."""
        import torch

        finite, here, batch = getattr(learner, "finite", None), getattr(learner, "finite_here", None), learner.batch
        if not learner.training or finite is None or here is None or finite is self._judged:
            return  # a cancelled batch still has the verdict on the previous one
        self._judged = finite
        self._counts.append(~finite)
        device = batch.images.device
        targets = {"targets": batch.targets} if isinstance(batch.targets, torch.Tensor) else {}
        given = targets | {
            "images": batch.images,
            "indices": batch.indices.to(device, non_blocking=True),
            "step": torch.full((), learner.step + 1, device=device),
            "bad": ~here,
        }
        shape = batch.images.shape, batch.images.dtype, *(value.shape for value in targets.values())
        kept = self._kept.setdefault(shape, {name: torch.zeros_like(value) for name, value in given.items()})
        take = given["bad"] & ~kept["bad"]
        for name, value in kept.items():
            value.copy_(torch.where(take, given[name], value))
        if device.type == "cpu" or learner.ranks.agree("check", monotonic() >= self._due):
            self._read(learner)

    def after_train(self, learner: Learner) -> None:
        """Check the rest of the pass."""
        self._read(learner)

    def _read(self, learner: Learner) -> None:
        import torch

        if not self._counts:
            return
        flags = [torch.stack(self._counts).sum(), *(kept["bad"].long() for kept in self._kept.values())]
        new, *bad = torch.stack(flags).tolist()
        self._due, self._counts = monotonic() + self.interval, []
        if not new:
            return
        self.skipped += new
        mine = [to_host(kept) for kept, is_bad in zip(self._kept.values(), bad, strict=True) if is_bad]
        for kept in self._kept.values():
            kept["bad"].zero_()
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


def _save(learner: Learner, rank: int, part: dict[str, Any]) -> str:
    """Write a rank's part of a batch into the folder of the run; return the file's name."""
    import torch

    from trainer.figures.batch import plot_batch

    assert learner.folder is not None
    step = int(part["step"])
    file = learner.folder / f"nonfinite-{step}{f'-rank{rank}' if rank else ''}.pt"
    torch.save({"step": step} | {name: value for name, value in part.items() if name not in ("step", "bad")}, file)
    pixels, captions = as_fed(learner, part["images"][:32], part.get("targets", [])[:32])
    captions = captions or [f"image {index}" for index in part["indices"].tolist()]
    plot_batch(pixels, captions, file.with_suffix(".png"), title=f"training batch {step}, not finite")
    return str(shown(file))


class LossScale(Callback):
    """Logs the scale and the skipped steps after each epoch; stops the fit if no scale makes the gradients finite.

    `trainer.loop.runner.Scaler` scales the loss and skips steps; the first few of a fit usually are, until the scale is
    found.
    """

    main_only = True
    order = Phase.MEASURE

    def after_train(self, learner: Learner) -> None:
        """Log the state of the scaling."""
        import torch

        scaler = learner.runner.scaler
        if scaler is None:
            return
        scale, skipped = torch.stack([scaler.factor, scaler.skipped.float()]).tolist()
        steps = amount(int(skipped), "step")
        log.info("fit.precision=fp16: loss scale %g after epoch %d, %s skipped so far", scale, learner.epoch + 1, steps)
        if scale < _LOWEST:
            raise NonFiniteLossError(
                "fit.precision=fp16: the gradients are not finite at any scale of the loss, by step "
                f"{learner.step + 1} of {learner.total_steps} (epoch {learner.epoch + 1}). A smaller fit.lr or "
                "fit.precision=bf16, which has the range of fp32, may help."
            )
