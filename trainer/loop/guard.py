"""Skip batches whose loss or gradients are not finite; this is decided on the device, so the host never waits."""

import math

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.loop.ranks import Ranks


class Guard:
    """Keeps a batch whose loss or gradients are not finite from changing weights, buffers or the optimizer's state.

    The batch's whole step is skipped, including the other batches' part of it if gradients are accumulated. This works
    by selecting between old and new values on the device, which can be recorded and supports any optimizer. Step counts
    that an optimizer keeps on the CPU still advance.

    Args:
        model: the model, already on its device.
        device: the model's device.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model = model
        self._bad = torch.zeros((), dtype=torch.bool, device=device)  # whether the current step has a bad batch

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
            () bool, on the device: whether loss and gradients are finite.
        """
        gradients = [p.grad for p in self._model.parameters() if p.grad is not None]
        largest = [value.float() for value in torch._foreach_norm(gradients, math.inf)] if gradients else []
        finite = torch.stack([loss.detach().float(), *largest]).isfinite().all()
        bad = ~finite
        for gradient in gradients:
            gradient.masked_fill_(bad, 0)
        _restore(buffers, bad)
        self._bad.logical_or_(bad)
        return finite

    @torch.no_grad()
    def agree(self, finite: Tensor, ranks: Ranks) -> Tensor:
        """Return whether a batch is finite on all ranks; a batch that is not on one is skipped by all.

        Args:
            finite: what `judge` returned.
            ranks: the ranks.
        """
        if ranks.size == 1:
            return finite
        bad = (~finite).float()
        ranks.add_up([bad])
        self._bad.logical_or_(bad > 0)
        return bad == 0

    @torch.no_grad()
    def step(self, optimizer: Optimizer) -> None:
        """Make a step, and undo it if one of its batches is not finite."""
        trained = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        values = [value for p in trained for value in optimizer.state.get(p, {}).values() if isinstance(value, Tensor)]
        mine = [value for value in (*trained, *values) if value.device == self._bad.device]
        floats = [value for value in mine if value.is_floating_point()]
        counts = [(value, value.clone()) for value in mine if not value.is_floating_point()]
        before = [torch.empty_like(value) for value in floats]
        torch._foreach_copy_(before, floats)
        optimizer.step()
        # The gradients were zeroed, so everything is finite and products with 0 and 1 select: three launches in all.
        torch._foreach_mul_(floats, (~self._bad).float())
        torch._foreach_mul_(before, self._bad.float())
        torch._foreach_add_(floats, before)
        _restore(counts, self._bad)
        self._bad.zero_()

    def drop(self) -> None:
        """Forget the batches of a step that will not be made."""
        self._bad.zero_()


def _restore(kept: list[tuple[Tensor, Tensor]], where: Tensor) -> None:
    for value, old in kept:
        value.copy_(torch.where(where, old, value))
