"""The optimizer's step: eager, or recorded with the learning rate in a tensor."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from trainer.loop.graphs import Runner, Tensors, capturable
from trainer.loop.guard import Guard
from trainer.loop.ranks import Ranks
from trainer.optim.optimizers import IMPLEMENTATION


class Stepper:
    """Makes the optimizer's steps and clears the gradients.

    If work is recorded and the optimizer allows it, the learning rate of each group becomes a scalar tensor that is
    filled, not replaced (`trainer.optim.optimizers.set_value`); a number that replaces it is copied into it. The step
    is recorded once the other settings have stayed the same for some steps; a scheduled setting keeps it eager.

    Args:
        optimizer: the optimizer that makes the steps.
        runner: the runner that runs them.
        guard: undoes the steps of batches that are not finite; None: no step is undone.

    Attributes:
        pending: whether there are gradients that no step has used yet.
    """

    def __init__(self, optimizer: Optimizer, runner: Runner, guard: Guard | None = None) -> None:
        self._optimizer = optimizer
        self._guard = guard
        self._runner = runner
        self._captures = runner.captures and capturable(optimizer)
        # The original options, so that saved states load anywhere.
        self._how = {name: optimizer.defaults[name] for name in IMPLEMENTATION if name in optimizer.defaults}
        self._rates: list[Tensor] = []
        self._settings: Hashable = None
        self._first: Tensor | None = None
        self.pending = False
        if runner.captures:
            self._arrange()
            optimizer.register_load_state_dict_post_hook(lambda _: self._arrange())

    def step(self) -> None:
        """Make a step with the current gradients, and clear them."""
        self.pending = False
        if not self._runner.captures:
            self._optimize()
            self._optimizer.zero_grad()
        elif not self._captures:
            self._step_and_zero()
        else:
            self._fill_rates()
            settings = _settings(self._optimizer)
            if settings != self._settings:
                self._settings = settings
                self._runner.forget("step")
            self._runner.run("step", self._step_and_zero)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss to the current ones.

        Where work is recorded, a few launches add all of them; autograd itself needs one for each parameter, which is a
        tenth of the step for a small batch.
        """
        if not self._runner.captures:
            loss.backward()  # type: ignore[no-untyped-call]
            return
        parameters = [p for group in self._optimizer.param_groups for p in group["params"] if p.requires_grad]
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        pairs = [(p, gradient) for p, gradient in zip(parameters, found, strict=True) if gradient is not None]
        for p, _ in pairs:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        if pairs:
            torch._foreach_add_([p.grad for p, _ in pairs], [gradient for _, gradient in pairs])

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
        ranks.add_up([*(p.grad for group in groups for p in group["params"] if p.grad is not None), *statistics])

    def drop_gradients(self) -> None:
        """Discard the gradients of a step that will not be made."""
        self.pending = False
        self._optimizer.zero_grad(set_to_none=not self._runner.captures)
        if self._guard is not None:
            self._guard.drop()

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

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state with plain rates and the original options, so that it loads on any device."""
        state = self._optimizer.state_dict()
        if not self._captures:
            return state
        groups = [{**group, **self._how, "lr": float(group["lr"])} for group in state["param_groups"]]
        return {**state, "param_groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, from whatever device."""
        self._optimizer.load_state_dict(state)
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
        if self._guard is None:
            self._optimizer.step()
        else:
            self._guard.step(self._optimizer)

    def _step_and_zero(self) -> Tensors:
        if self._captures and type(self._optimizer) is SGD:
            _complete_momentum(self._optimizer)
        self._optimize()
        gradients = [p.grad for group in self._optimizer.param_groups for p in group["params"] if p.grad is not None]
        if gradients:
            torch._foreach_zero_(gradients)  # one launch for all
        return ()


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
