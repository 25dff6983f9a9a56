"""The optimizer's step: eager, or recorded with the learning rate in a tensor."""

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from trainer.graphs import Runner, Tensors, capturable
from trainer.optimizers import IMPLEMENTATION


class Stepper:
    """Makes the optimizer's steps and clears the gradients.

    If work is recorded and the optimizer can be, the learning rate of each group is a tensor of no dimensions from
    here on, which is filled and not replaced (`trainer.optimizers.set_value`); a number put there all the same is taken
    over. The step is recorded once the other settings have stayed the same for some steps; one that is scheduled keeps
    it eager.

    Args:
        optimizer: whose steps to make.
        runner: how to run them.

    Attributes:
        pending: whether there are gradients that no step was made of yet.
    """

    def __init__(self, optimizer: Optimizer, runner: Runner) -> None:
        self._optimizer = optimizer
        self._runner = runner
        self._captures = runner.captures and capturable(optimizer)
        # As they were, for states that load anywhere.
        self._how = {name: optimizer.defaults[name] for name in IMPLEMENTATION if name in optimizer.defaults}
        self._rates: list[Tensor] = []
        self._settings: Hashable = None
        self._first: Tensor | None = None
        self.pending = False
        if runner.captures:
            self._arrange()
            optimizer.register_load_state_dict_post_hook(lambda _: self._arrange())

    def step(self) -> None:
        """Make a step of the gradients there are, and clear them."""
        self.pending = False
        if not self._runner.captures:
            self._optimizer.step()
            self._optimizer.zero_grad()
        elif not self._captures:
            self._step_and_zero()
        else:
            self._take_rates()
            settings = _settings(self._optimizer)
            if settings != self._settings:
                self._settings = settings
                self._runner.forget("step")
            self._runner.run("step", self._step_and_zero)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss to those there are.

        Where work is recorded, all are added in a few launches; autograd by itself takes one for each parameter, which
        for a small batch is a tenth of the step.
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

    def drop_gradients(self) -> None:
        """Forget the gradients of a step that will not be made."""
        self.pending = False
        self._optimizer.zero_grad(set_to_none=not self._runner.captures)

    def expect_gradients(self) -> None:
        """Get ready for a batch's gradients, which a replay adds without a call of `backward`.

        Recording starts anew if somebody put other gradients in place of those that recorded work adds to.
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
        """Return the optimizer's state, with numbers for rates and as it was made, so that it loads on any device."""
        state = self._optimizer.state_dict()
        if not self._captures:
            return state
        groups = [{**group, **self._how, "lr": float(group["lr"])} for group in state["param_groups"]]
        return {**state, "param_groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned, whatever device it comes from."""
        self._optimizer.load_state_dict(state)
        if not self._runner.captures:
            _place_counts(self._optimizer, on_device=False)

    def _arrange(self) -> None:
        """Make the optimizer fit to be recorded; also after it was given a state, which replaces its tensors."""
        self._runner.forget()
        self._settings = self._first = None
        _place_counts(self._optimizer, on_device=self._captures)
        if not self._captures:
            return
        self._rates = []
        for group in self._optimizer.param_groups:
            how: dict[str, Any] = {"capturable": True} if "capturable" in group else {}
            if type(self._optimizer) in (SGD, Adam, AdamW):
                how |= {"fused": True, "foreach": False}
            group.update(how)
            self._optimizer.defaults.update(how)
            rate = torch.as_tensor(group["lr"], dtype=torch.float32, device=group["params"][0].device).clone()
            group["lr"] = rate
            self._rates.append(rate)

    def _take_rates(self) -> None:
        if len(self._rates) != len(self._optimizer.param_groups):  # some were added
            self._arrange()
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            if group["lr"] is not rate:
                rate.fill_(group["lr"])
                group["lr"] = rate

    def _step_and_zero(self) -> Tensors:
        if self._captures and type(self._optimizer) is SGD:
            _complete_momentum(self._optimizer)
        self._optimizer.step()
        gradients = [p.grad for group in self._optimizer.param_groups for p in group["params"] if p.grad is not None]
        if gradients:
            torch._foreach_zero_(gradients)  # one launch for all
        return ()


def _settings(optimizer: Optimizer) -> Hashable:
    """Return what a recorded step takes for granted."""
    names = [[name for name in group if name not in ("params", "lr")] for group in optimizer.param_groups]
    return tuple(
        tuple((name, _plain(group[name])) for name in of_group)
        for group, of_group in zip(optimizer.param_groups, names, strict=True)
    )


def _plain(value: object) -> Hashable:
    return value if isinstance(value, Hashable) else repr(value)


def _complete_momentum(optimizer: SGD) -> None:
    """Give parameters that are trained only from now on a momentum of 0: the fused kernel wants all or none."""
    for group in optimizer.param_groups:
        trained = [p for p in group["params"] if p.grad is not None]
        without = [p for p in trained if optimizer.state[p].get("momentum_buffer") is None]
        if group["momentum"] and 0 < len(without) < len(trained):
            for p in without:
                optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)


def _place_counts(optimizer: Optimizer, *, on_device: bool) -> None:
    """Put the counts of steps where the optimizer looks for them.

    A state that was read to the GPU brings them along to it, and an eager step would wait for each of them.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if isinstance(count := state.get("step"), Tensor):
                there = on_device or group.get("fused") or group.get("capturable")
                state["step"] = count.to(parameter.device if there else "cpu")
