"""Skip batches and steps that are not finite; this is decided on the device, so the host does not wait."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from trainer.loop.ranks import Ranks


class Guard:
    """Keeps a batch whose loss or gradients are not finite from changing weights, buffers or the optimizer's state.

    The batch's whole step is skipped, including the other batches' part of it if gradients are accumulated.

    Args:
        model: the model, already on its device.
        device: the model's device.
        scaled: whether the loss is scaled: gradients that are not finite are then part of finding the scale, and only
            the loss counts.

    Attributes:
        bad: () bool, whether the current step has a bad batch.
    """

    def __init__(self, model: nn.Module, device: torch.device, *, scaled: bool = False) -> None:
        self._model = model
        self._scaled = scaled
        self.bad = torch.zeros((), dtype=torch.bool, device=device)

    def buffers(self) -> list[tuple[Tensor, Tensor]]:
        """Return the buffers that a pass may change, such as running statistics, with copies of them."""
        return [(buffer, buffer.clone()) for buffer in self._model.buffers()]

    @torch.no_grad()
    def judge(self, loss: Tensor, buffers: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Restore the buffers and zero the gradients after a pass that is not finite.

        Args:
            loss: the batch's loss, ().
            buffers: what `buffers` returned before the pass.

        Returns:
            () bool, on the device: whether the batch is finite.
        """
        gradients = [p.grad for p in self._model.parameters() if p.grad is not None and not self._scaled]
        largest = [value.float() for value in torch._foreach_norm(gradients, math.inf)] if gradients else []
        finite = torch.stack([loss.detach().float(), *largest]).isfinite().all()
        bad = ~finite
        for gradient in gradients:
            gradient.masked_fill_(bad, 0)
        _restore(buffers, bad)
        self.bad.logical_or_(bad)
        return finite

    @torch.no_grad()
    def agree(self, finite: Tensor, before: Sequence[Tensor], ranks: Ranks) -> Tensor:
        """Return whether a batch is finite on all ranks; one that is not is skipped by all, which restore the buffers.

        Args:
            finite: what `judge` returned.
            before: the copies that `buffers` returned.
            ranks: the ranks.
        """
        if ranks.size == 1:
            return finite
        count = (~finite).float()
        ranks.add_up([count])
        bad = count > 0
        _restore(list(zip(self._model.buffers(), before, strict=True)), bad)
        self.bad.logical_or_(bad)
        return ~bad

    def drop(self) -> None:
        """Forget the batches of a step that was made, skipped or given up."""
        self.bad.zero_()


@torch.no_grad()
def step_unless(skip: Tensor, optimizer: Optimizer) -> None:
    """Make an optimizer's step, or leave weights and state as they are; the device decides.

    PyTorch's fused kernels can skip a step. For any other optimizer, the step is made without gradients, and the old
    values are selected afterwards; step counts that an optimizer keeps in Python or on the CPU still advance. All state
    must exist before, as what the step creates cannot be undone.

    Args:
        skip: () bool, on the device: whether to skip the step.
        optimizer: the optimizer.
    """
    if type(optimizer) in (SGD, Adam, AdamW) and all(group.get("fused") for group in optimizer.param_groups):
        optimizer.found_inf = skip.float()  # type: ignore[attr-defined]  # as GradScaler does
        optimizer.step()
        del optimizer.found_inf  # type: ignore[attr-defined]
        return
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    values = [value for p in trained for value in optimizer.state.get(p, {}).values() if isinstance(value, Tensor)]
    mine = [value for value in (*trained, *values) if value.device == skip.device]
    floats = [value for value in mine if value.is_floating_point()]
    counts = [(value, value.clone()) for value in mine if not value.is_floating_point()]
    before = [torch.empty_like(value) for value in floats]
    torch._foreach_copy_(before, floats)
    for p in trained:
        p.grad.masked_fill_(skip, 0)
    optimizer.step()
    # Everything is finite, so products with 0 and 1 select: three launches in all.
    torch._foreach_mul_(floats, (~skip).float())
    torch._foreach_mul_(before, skip.float())
    torch._foreach_add_(floats, before)
    _restore(counts, skip)


def _restore(kept: list[tuple[Tensor, Tensor]], where: Tensor) -> None:
    for value, old in kept:
        torch.where(where, old, value, out=value)
