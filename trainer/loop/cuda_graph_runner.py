"""The work of a batch, recorded as CUDA graphs: passes, and the optimizer's step with the learning rate in a tensor."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from augment.pipeline.batch import Batch
from trainer.loop.batch_runner import LearnerParts, Pass, Runner, complete_momentum
from trainer.loop.cuda_graphs import CudaBackend, Graphs, Tensors, capturable
from trainer.optim.optimizers import IMPLEMENTATION


class Recorded(Runner):
    """Records each kind of work, which changes no result. Gradients keep their memory, and results have no history.

    If the optimizer allows it, the learning rate of each group becomes a scalar tensor that is filled, not replaced
    (`trainer.optim.optimizers.set_value`); a number that replaces it is copied into it. The step is recorded once the
    other settings have stayed the same for some steps; a scheduled setting keeps it eager. So does a scaler.
    """

    def __init__(self, learner: LearnerParts, graphs: Graphs) -> None:
        super().__init__(learner)
        self._graphs = graphs
        self._records_step = capturable(self._optimizer) and self.scaler is None
        # The original options, so that saved states load anywhere.
        defaults = self._optimizer.defaults
        self._how = {name: defaults[name] for name in IMPLEMENTATION if name in defaults}
        self._rates: list[Tensor] = []
        self._settings: Hashable = None
        self._first: Tensor | None = None  # the gradient that recorded work adds to
        self._arrange()
        self._optimizer.register_load_state_dict_post_hook(lambda _: self._arrange())

    def enter(self, kind: str) -> None:
        """Begin a pass: what was recorded of another model is discarded."""
        self._graphs.enter(kind, self._model)

    def step(self) -> None:
        """Make a step, recorded if possible."""
        if not self._records_step:
            super().step()
            return
        self._fill_rates()
        settings = _settings(self._optimizer)
        if settings != self._settings:
            self._settings = settings
            self._graphs.forget("step")
        self._clear()
        self._graphs.run("step", self._step_and_zero)

    def forget(self) -> None:
        """Discard all recordings."""
        self._graphs.forget()
        super().forget()

    def state_dict(self) -> dict[str, Any]:
        """Return the state with plain rates and the original options."""
        state = super().state_dict()
        if self._records_step:
            groups = state["param_groups"]
            state["param_groups"] = [{**group, **self._how, "lr": float(group["lr"])} for group in groups]
        return state

    def _run(self, kind: str, work: Callable[..., Tensors], *inputs: Tensor) -> Tensors:
        if kind == "train":  # a callback may have replaced the gradients that recorded work adds to
            parameters = (p for group in self._optimizer.param_groups for p in group["params"] if p.requires_grad)
            gradient = next((p.grad for p in parameters), None)
            if self._first is not None and gradient is not self._first:
                self._graphs.forget()
            self._first = gradient
        return self._graphs.run(kind, work, *inputs)

    def _backward(self, loss: Tensor) -> None:
        """Add all gradients in a few launches: autograd needs one for each, a tenth of the step for a small batch."""
        parameters = [p for group in self._optimizer.param_groups for p in group["params"] if p.requires_grad]
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        pairs = [(p, gradient) for p, gradient in zip(parameters, found, strict=True) if gradient is not None]
        for p, _ in pairs:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        if pairs:
            torch._foreach_add_([p.grad for p, _ in pairs], [gradient for _, gradient in pairs])

    def _zero(self) -> None:
        if gradients := self._gradients():
            torch._foreach_zero_(gradients)  # one launch for all

    def _step_and_zero(self) -> Tensors:
        complete_momentum(self._optimizer)
        self._optimizer.step()
        self._zero()
        return ()

    def _arrange(self) -> None:
        """Make the optimizer recordable; this is repeated after a state was loaded, which replaces its tensors."""
        self._graphs.forget()
        self._settings = self._first = None
        if not self._records_step:
            return
        self._rates = []
        for group in self._optimizer.param_groups:
            how = {"capturable": True} if "capturable" in group else {}
            how |= {"fused": True, "foreach": False} if type(self._optimizer) in (SGD, Adam, AdamW) else {}
            group.update(how)
            self._optimizer.defaults.update(how)
            device = group["params"][0].device
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=device).clone()
            self._rates.append(group["lr"])
            for p in group["params"]:
                state = self._optimizer.state.get(p, {})
                if isinstance(count := state.get("step"), Tensor):
                    state["step"] = count.to(device)

    def _fill_rates(self) -> None:
        if len(self._rates) != len(self._optimizer.param_groups):  # groups were added
            self._arrange()
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            if group["lr"] is not rate:
                rate.fill_(group["lr"])
                group["lr"] = rate


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


class Ranked(Runner):
    """Adds to a runner that gradients are those of all ranks, and the running statistics of norms their mean.

    A parameter that this rank has not used counts as if its gradient were 0: all ranks add up the same ones.
    """

    def enter(self, kind: str) -> None:
        """Begin a pass."""
        super().enter(kind)
        # What norms gather in training, which differs between ranks until it is averaged.
        names, modules = ("running_mean", "running_var"), [m for m in self._model.modules() if m.training]
        found = (getattr(module, name, None) for module in modules for name in names)
        self._statistics = [value for value in found if isinstance(value, Tensor)]

    def train(self, batch: Batch, share: float) -> Pass:
        """Run this rank's part of a batch."""
        self._batch_share = batch.share
        return super().train(batch, share)

    @contextmanager
    def gradients(self) -> Iterator[None]:
        """Add up the gradients of a step; if it is cancelled, rank 0 alone keeps the sum."""
        for p in self.parameters.values():
            if p.requires_grad and p.grad is None:
                p.grad = torch.zeros_like(p)
        if self._statistics:
            torch._foreach_mul_(self._statistics, self._batch_share)
        weights = [self._weights] if self._weighted else []
        self._learner.ranks.add_up([*self._gradients(), *self._statistics, *weights])
        try:
            with super().gradients():
                yield
        finally:
            if self.pending and not self._learner.ranks.is_main:
                self._optimizer.zero_grad(set_to_none=False)
                self._weights.zero_()


class RankedRecorded(Ranked, Recorded):
    """Records what each rank does; the exchanges in between are not recorded."""


def make_runner(learner: LearnerParts) -> Runner:
    """Return what does the work of a learner's batches: recorded on a GPU, unless the settings say otherwise."""
    ranked = learner.ranks.size > 1
    fixed = not learner.task.own_loss if learner.training_step is None else hasattr(learner.training_step, "recordable")
    if learner.settings.graph and learner.device.type == "cuda" and fixed:
        graphs = Graphs(CudaBackend(learner.device))
        return RankedRecorded(learner, graphs) if ranked else Recorded(learner, graphs)
    return Ranked(learner) if ranked else Runner(learner)
