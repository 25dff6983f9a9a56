"""Steps whose gradients are not finite are skipped, and in float16 the loss is scaled: by PyTorch's `GradScaler`."""

from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import SGD, Optimizer


class Scaler:
    """PyTorch's `GradScaler`, for steps that may be cancelled and checkpoints that may be taken within a step.

    PyTorch's fused kernels skip a step without the host; for any other optimizer, the host waits for the decision. In
    between, `GradScaler` keeps a state in Python, so that a step cannot be recorded, only the passes before it. Of
    several ranks, each scales the loss alike, and what is not finite on one is in the sum that all of them check.

    Args:
        device: the device of the loss and of the gradients.
        scaled: whether small gradients would vanish, as in float16 (Micikevicius et al. 2018, arXiv:1710.03740): the
            loss is multiplied by a factor, which a skipped step halves. Otherwise, the factor stays 1.

    Attributes:
        grad_scaler: PyTorch's.
        skipped: () int64, number of skipped steps of a scaled loss.
    """

    def __init__(self, device: torch.device, *, scaled: bool) -> None:
        self._scaled = scaled
        self.grad_scaler = GradScaler(device.type) if scaled else GradScaler(device.type, init_scale=1.0)
        self._one = torch.ones((), device=device)
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def factor(self) -> Tensor:
        """What the loss is multiplied by, () float32."""
        return self.grad_scaler.scale(self._one)

    def scale(self, loss: Tensor) -> Tensor:
        """Return a loss times the factor."""
        return self.grad_scaler.scale(loss)

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the gradients of a step by the factor, and find out whether they are finite."""
        self.grad_scaler.unscale_(optimizer)

    def keep(self, gradients: list[Tensor]) -> None:
        """Multiply gradients by the factor again after a step that was cancelled, as more are added to them."""
        factor = self.factor
        torch._foreach_mul_(gradients, factor)
        self.grad_scaler.update(factor)

    def step(self, optimizer: Optimizer) -> None:
        """Make the optimizer's step, unless the gradients are not finite; adapt the factor."""
        before = self.factor
        complete_momentum(optimizer)
        self.grad_scaler.step(optimizer)
        self.grad_scaler.update(None if self._scaled else 1.0)
        self.skipped += self.factor < before

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state, of a scaled loss."""
        state = self.grad_scaler.state_dict()
        clean = torch.tensor(state["_growth_tracker"], dtype=torch.int32)
        return {"scale": torch.tensor(state["scale"]), "clean": clean, "skipped": self.skipped.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, in place: recorded work reads the factor."""
        kept = {"scale": float(state["scale"]), "_growth_tracker": int(state["clean"])}
        self.grad_scaler.load_state_dict(self.grad_scaler.state_dict() | kept)
        self.skipped.copy_(state["skipped"])


def complete_momentum(optimizer: Optimizer) -> None:
    """Give parameters of fused SGD that were not trained before a momentum of 0.

    Its kernel needs all buffers or none, and where it skips the first step, it leaves them as they came from memory.
    """
    for group in optimizer.param_groups if type(optimizer) is SGD else ():
        trained = [p for p in group["params"] if p.grad is not None]
        new = [p for p in trained if optimizer.state[p].get("momentum_buffer") is None]
        # Without buffers, the first gradients are not dampened.
        if group["fused"] and group["momentum"] and not (group["dampening"] and len(new) == len(trained)):
            for p in new:
                optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
