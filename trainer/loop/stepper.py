"""The optimizer's step: eager, or recorded with the learning rate in a tensor."""

from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from trainer.loop.graphs import Runner, Tensors, capturable
from trainer.loop.guard import Guard, step_unless
from trainer.loop.ranks import Ranks
from trainer.loop.scaling import LossScaler
from trainer.optim.optimizers import IMPLEMENTATION

_ALIGNED = 64  # elements


class Stepper:
    """Makes the optimizer's steps and clears the gradients.

    If work is recorded and the optimizer allows it, the learning rate of each group becomes a scalar tensor that is
    filled, not replaced (`trainer.optim.optimizers.set_value`); a number that replaces it is copied into it. The step
    is recorded once the other settings have stayed the same for some steps; a scheduled setting keeps it eager.

    Args:
        optimizer: the optimizer that makes the steps.
        runner: the runner that runs them.
        guard: finds batches that are not finite, whose steps are skipped; None: nobody does.
        scaler: scales the loss, and finds steps to skip; None: the loss is not scaled.

    Attributes:
        pending: whether there are gradients that no step has used yet.
    """

    def __init__(
        self, optimizer: Optimizer, runner: Runner, guard: Guard | None = None, scaler: LossScaler | None = None
    ) -> None:
        self._optimizer = optimizer
        self._guard = guard
        self._scaler = scaler
        self._begun: list[int] = []  # what was trained when a step was last made on the host's decision
        self._runner = runner
        self._captures = runner.captures and capturable(optimizer)
        # The original options, so that saved states load anywhere.
        self._how = {name: optimizer.defaults[name] for name in IMPLEMENTATION if name in optimizer.defaults}
        self._rates: list[Tensor] = []
        self._settings: Hashable = None
        self._first: Tensor | None = None
        self._known: list[Tensor] = []  # gradients, and the tensor that they lie in
        self._whole: list[Tensor] = []
        self.pending = False
        if runner.captures:
            self._arrange()
            optimizer.register_load_state_dict_post_hook(lambda _: self._arrange())

    def step(self) -> None:
        """Make a step with the current gradients, and clear them."""
        self.pending = False
        if not self._runner.captures:
            self._optimize()
            self._settle()
            self._optimizer.zero_grad()
        elif not self._captures:
            self._step_and_zero()
        else:
            self._fill_rates()
            settings = _settings(self._optimizer)
            if settings != self._settings:
                self._settings = settings
                self._runner.forget("step")
            if self._begins():
                self._step_and_zero()
            else:
                self._runner.run("step", self._step_and_zero)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss to the current ones.

        Where work is recorded, a few launches add all of them; autograd itself needs one for each parameter, which is a
        tenth of the step for a small batch.
        """
        if not self._runner.captures and self._scaler is None:
            loss.backward()  # type: ignore[no-untyped-call]
            return
        parameters = [p for group in self._optimizer.param_groups for p in group["params"] if p.requires_grad]
        scaled = loss if self._scaler is None else loss * self._scaler.scale
        found = torch.autograd.grad(scaled, parameters, allow_unused=True)
        pairs = [(p, gradient) for p, gradient in zip(parameters, found, strict=True) if gradient is not None]
        if missing := [p for p, _ in pairs if p.grad is None]:
            _start_gradients(missing)
        if pairs:
            gradients = [gradient for _, gradient in pairs]
            if self._scaler is not None:
                gradients = self._scaler.unscale(gradients)
            torch._foreach_add_([p.grad for p, _ in pairs], gradients)

    def add_up(self, ranks: Ranks, statistics: Sequence[Tensor], share: float) -> None:
        """Replace the gradients by their sums over the ranks, and running statistics by their mean.

        Args:
            ranks: the ranks.
            statistics: the running statistics of the model's batch norms.
            share: the share of this rank in the mean.
        """
        if statistics:
            torch._foreach_mul_([*statistics], share)
        groups = self._optimizer.param_groups
        gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None]
        overflow = [] if self._scaler is None else [self._scaler.overflow]
        ranks.add_up([*self._in_one(gradients), *statistics, *overflow])
        for value in overflow:
            value.clamp_(max=1)

    def _in_one(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return the tensor that all gradients lie in, if `_start_gradients` made them at once."""
        if not self._runner.captures:  # each step has new ones, which must not be kept
            return gradients
        if len(gradients) != len(self._known) or not all(map(is_, gradients, self._known)):
            self._known, self._whole = gradients, gradients
            storages = {gradient.untyped_storage().data_ptr() for gradient in gradients}
            whole = gradients[0].new_empty(0).set_(gradients[0].untyped_storage()) if gradients else None
            if whole is not None and len(storages) == 1 and len(whole) == sum(map(_room, gradients)):
                self._whole = [whole]
        return self._whole

    def drop_gradients(self) -> None:
        """Discard the gradients of a step that will not be made."""
        self.pending = False
        self._optimizer.zero_grad(set_to_none=not self._runner.captures)
        for part in (self._guard, self._scaler):
            if part is not None:
                part.drop()

    def expect_gradients(self) -> None:
        """Prepare for a batch's gradients, which a replay adds without a call of `backward`.

        Recording starts over if a callback replaced the gradients that recorded work adds to.
        """
        self.pending = True
        if not self._runner.captures:
            return
        parameters = (p for group in self._optimizer.param_groups for p in group["params"] if p.requires_grad)
        gradient = next((p.grad for p in parameters), None)
        if self._first is not None and gradient is not self._first:
            self._runner.forget()
        self._first = gradient

    def state_dict(self, ranks: Ranks) -> dict[str, Any]:
        """Return the optimizer's state with plain rates and the original options, so that it loads on any device.

        With it come the state of the loss scaling, as "scaler", and whether an unfinished step has a bad batch, "bad".
        """
        state = self._optimizer.state_dict()
        if self._scaler is not None:
            ranks.add_up([self._scaler.overflow])  # of each rank's batches since the last step
            state["scaler"] = self._scaler.state_dict()
        if self._guard is not None:
            state["bad"] = self._guard.bad.clone()
        if not self._captures:
            return state
        groups = [{**group, **self._how, "lr": float(group["lr"])} for group in state["param_groups"]]
        return {**state, "param_groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, from whatever device."""
        # The saved run may have had another precision, or no guard.
        if self._scaler is not None and "scaler" in state:
            self._scaler.load_state_dict(state["scaler"])
        if self._guard is not None and "bad" in state:
            self._guard.bad.copy_(state["bad"])
        self._optimizer.load_state_dict({name: state[name] for name in state if name not in ("scaler", "bad")})
        if not self._runner.captures:
            _move_step_counts(self._optimizer, on_device=False)

    def _arrange(self) -> None:
        """Make the optimizer recordable; this is repeated after a state was loaded, which replaces its tensors."""
        self._runner.forget()
        self._settings = self._first = None
        _move_step_counts(self._optimizer, on_device=self._captures)
        if not self._captures:
            return
        self._rates = []
        for group in self._optimizer.param_groups:
            how = recording_options(self._optimizer, group)
            group.update(how)
            self._optimizer.defaults.update(how)
            rate = torch.as_tensor(group["lr"], dtype=torch.float32, device=group["params"][0].device).clone()
            group["lr"] = rate
            self._rates.append(rate)

    def _fill_rates(self) -> None:
        if len(self._rates) != len(self._optimizer.param_groups):  # groups were added
            self._arrange()
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            if group["lr"] is not rate:
                rate.fill_(group["lr"])
                group["lr"] = rate

    def _optimize(self) -> None:
        skip = self._skip()
        if skip is None:
            self._optimizer.step()
        elif self._begins() or not (self._runner.captures or skip.is_cuda):
            if not skip:
                self._optimizer.step()
                self._begun = self._trained()
        else:
            step_unless(skip, self._optimizer)

    def _settle(self) -> None:
        """Prepare for the batches of the next step."""
        if self._guard is not None:
            self._guard.drop()
        if self._scaler is not None:
            self._scaler.update()

    def _skip(self) -> Tensor | None:
        """Return whether to skip the step, () bool on the device; None: no step is skipped."""
        flags = [] if self._guard is None else [self._guard.bad]
        flags += [] if self._scaler is None else [self._scaler.overflow > 0]
        return torch.stack(flags).any() if flags else None

    def _begins(self) -> bool:
        """Return whether the step may create state of the optimizer, and may have to be skipped.

        The device cannot undo that, so the host waits for it to decide; for a step or a few, where training begins.
        """
        return not (self._guard is None and self._scaler is None) and self._begun != self._trained()

    def _trained(self) -> list[int]:
        return [id(p) for group in self._optimizer.param_groups for p in group["params"] if p.grad is not None]

    def _step_and_zero(self) -> Tensors:
        if self._captures and type(self._optimizer) is SGD:
            _complete_momentum(self._optimizer)
        self._optimize()
        self._settle()
        gradients = [p.grad for group in self._optimizer.param_groups for p in group["params"] if p.grad is not None]
        if gradients:
            torch._foreach_zero_(gradients)  # one launch for all
        return ()


def _start_gradients(parameters: Sequence[Tensor]) -> None:
    """Give parameters gradients of 0, one after another in one tensor, which ranks add up without copying them."""
    for dtype in {p.dtype for p in parameters}:
        same = [p for p in parameters if p.dtype == dtype]
        rooms = [_room(p) for p in same]
        whole = torch.zeros(sum(rooms), dtype=dtype, device=same[0].device)
        for p, start in zip(same, accumulate(rooms, initial=0), strict=False):
            p.grad = whole.as_strided(p.shape, torch.empty_like(p, device="meta").stride(), start)


def _room(value: Tensor) -> int:
    """Return how many elements a tensor takes among others, so that all begin where a GPU reads fast."""
    return -(-value.numel() // _ALIGNED) * _ALIGNED


def recording_options(optimizer: Optimizer, group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with which a parameter group's step can be recorded."""
    how: dict[str, Any] = {"capturable": True} if "capturable" in group else {}
    return how | ({"fused": True, "foreach": False} if type(optimizer) in (SGD, Adam, AdamW) else {})


def _settings(optimizer: Optimizer) -> Hashable:
    """Return the settings that a recorded step depends on."""
    return tuple(
        tuple(
            (name, value if isinstance(value, Hashable) else repr(value))
            for name, value in group.items()
            if name not in ("params", "lr")
        )
        for group in optimizer.param_groups
    )


def _complete_momentum(optimizer: SGD) -> None:
    """Give newly trained parameters a momentum of 0: the fused kernel needs all buffers or none."""
    for group in optimizer.param_groups:
        trained = [p for p in group["params"] if p.grad is not None]
        without = [p for p in trained if optimizer.state[p].get("momentum_buffer") is None]
        if group["momentum"] and 0 < len(without) < len(trained):
            for p in without:
                optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)


def _move_step_counts(optimizer: Optimizer, *, on_device: bool) -> None:
    """Move the step counts to the device where the optimizer expects them.

    Loading a state to the GPU moves them there, too, and an eager step would wait for each of them.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if isinstance(count := state.get("step"), Tensor):
                stays = on_device or group.get("fused") or group.get("capturable")
                state["step"] = count.to(parameter.device if stays else "cpu")
