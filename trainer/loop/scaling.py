"""Loss scaling for training in float16, in which small gradients would vanish; the host never waits for it."""

from collections import defaultdict

import torch
from torch import Tensor

# The constants of `torch.amp.GradScaler`.
_INITIAL, _GROWTH, _BACKOFF, _INTERVAL = 2.0**16, 2.0, 0.5, 2000


class LossScaler:
    """Multiplies the loss by a factor, and divides the gradients by it (Micikevicius et al. 2018, arXiv:1710.03740).

    A step with a gradient that is not finite is skipped and halves the factor; 2,000 steps without one double it. That
    is what `torch.amp.GradScaler` does, with the same kernels, but all of it stays on the device, so that it can be
    recorded. Gradients are divided after each batch: what callbacks, clipping and checkpoints see is not scaled.

    Args:
        device: the device of the loss and of the gradients.

    Attributes:
        scale: () float32, the factor.
        overflow: () float32, 1 if a gradient of the current step is not finite, otherwise 0. Where several processes
            add up their gradients, this needs their maximum before the step.
        skipped: () int64, number of skipped steps.
    """

    def __init__(self, device: torch.device) -> None:
        self.scale = torch.full((), _INITIAL, device=device)
        self.overflow = torch.zeros((), device=device)
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)
        self._clean = torch.zeros((), dtype=torch.int32, device=device)  # steps since the scale changed

    @torch.no_grad()
    def unscale(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return the gradients of a scaled loss, divided by the scale, and remember whether they are finite."""
        # Not in place: autograd may give the same tensor to several parameters.
        unscaled = list(torch._foreach_mul(gradients, self.scale.double().reciprocal().float()))
        by_dtype: defaultdict[torch.dtype, list[Tensor]] = defaultdict(list)
        for gradient in unscaled:
            by_dtype[gradient.dtype].append(gradient)
        for alike in by_dtype.values():
            torch._amp_foreach_non_finite_check_and_unscale_(alike, self.overflow, torch.ones_like(self.overflow))
        return unscaled

    @torch.no_grad()
    def update(self) -> None:
        """Adapt the scale after a step that was made or skipped."""
        self.skipped.add_(self.overflow.long())
        torch._amp_update_scale_(self.scale, self._clean, self.overflow, _GROWTH, _BACKOFF, _INTERVAL)
        self.overflow.zero_()

    def drop(self) -> None:
        """Forget the gradients of a step that will not be made."""
        self.overflow.zero_()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state, that of an unfinished step included."""
        return {name.lstrip("_"): value.clone() for name, value in self._state().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned, in place: recorded work reads these tensors."""
        for name, value in self._state().items():
            value.copy_(state[name.lstrip("_")])

    def _state(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in ("scale", "overflow", "skipped", "_clean")}
