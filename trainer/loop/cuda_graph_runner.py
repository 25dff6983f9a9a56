"""Runners that record passes and steps as CUDA graphs, and runners for several ranks."""

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


class GraphRunner(Runner):
    """Records passes and steps as CUDA graphs. Gradients keep their memory, and results have no autograd history.

    If the optimizer allows it, the learning rate of each parameter group becomes a scalar tensor. A new rate is copied
    into this tensor (`trainer.optim.optimizers.set_value`). The step is recorded once the optimizer's other settings
    have been constant for some steps. Steps run eagerly with a scaler, or while a schedule changes another setting.
    """

    def __init__(self, learner: LearnerParts, graphs: Graphs) -> None:
        super().__init__(learner)
        self._graphs = graphs
        self._records_step = capturable(self._optimizer) and self.scaler is None
        # Saved states contain the optimizer's original options, so that they load on any device.
        defaults = self._optimizer.defaults
        self._original_options = {name: defaults[name] for name in IMPLEMENTATION if name in defaults}
        self._rates: list[Tensor] = []
        self._settings: Hashable = None
        self._first_gradient: Tensor | None = None  # the first gradient that recorded passes add to
        self._make_recordable()
        self._optimizer.register_load_state_dict_post_hook(lambda _: self._make_recordable())

    def enter(self, kind: str) -> None:
        """Begin a pass, and discard the graphs of a model that has changed."""
        self._graphs.enter(kind, self._model)

    def step(self) -> None:
        """Take a step, from a recording if possible."""
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
        """Return the state with learning rates as numbers, and with the original options."""
        state = super().state_dict()
        if self._records_step:
            groups = state["param_groups"]
            state["param_groups"] = [{**group, **self._original_options, "lr": float(group["lr"])} for group in groups]
        return state

    def _run(self, kind: str, work: Callable[..., Tensors], *inputs: Tensor) -> Tensors:
        if kind == "train":  # a callback may have replaced the gradients that recorded passes add to
            parameters = (p for group in self._optimizer.param_groups for p in group["params"] if p.requires_grad)
            gradient = next((p.grad for p in parameters), None)
            if self._first_gradient is not None and gradient is not self._first_gradient:
                self._graphs.forget()
            self._first_gradient = gradient
        return self._graphs.run(kind, work, *inputs)

    def _backward(self, loss: Tensor) -> None:
        """Add up all gradients in a few launches. Autograd's launch per tensor would take 10% of a small step."""
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

    def _make_recordable(self) -> None:
        """Make the optimizer recordable. Repeat this after loading a state, which replaces the optimizer's tensors."""
        self._graphs.forget()
        self._settings = self._first_gradient = None
        if not self._records_step:
            return
        self._rates = []
        for group in self._optimizer.param_groups:
            options = {"capturable": True} if "capturable" in group else {}
            options |= {"fused": True, "foreach": False} if type(self._optimizer) in (SGD, Adam, AdamW) else {}
            group.update(options)
            self._optimizer.defaults.update(options)
            device = group["params"][0].device
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=device).clone()
            self._rates.append(group["lr"])
            for p in group["params"]:
                state = self._optimizer.state.get(p, {})
                if isinstance(count := state.get("step"), Tensor):
                    state["step"] = count.to(device)

    def _fill_rates(self) -> None:
        if len(self._rates) != len(self._optimizer.param_groups):  # groups were added
            self._make_recordable()
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            if group["lr"] is not rate:
                rate.fill_(group["lr"])
                group["lr"] = rate


def _settings(optimizer: Optimizer) -> Hashable:
    """Return the settings that a recorded step depends on."""
    items = (item for group in optimizer.param_groups for item in group.items() if item[0] not in ("params", "lr"))
    return tuple((name, value if isinstance(value, Hashable) else repr(value)) for name, value in items)


class RankedRunner(Runner):
    """Adds up the gradients of all ranks, and averages the running statistics of batch norms over the ranks.

    An unused parameter gets the gradient 0, so that all ranks exchange the same tensors.
    """

    def enter(self, kind: str) -> None:
        """Begin a pass, and find the statistics that batch norms update in training."""
        super().enter(kind)
        names, modules = ("running_mean", "running_var"), [m for m in self._model.modules() if m.training]
        found = (getattr(module, name, None) for module in modules for name in names)
        self._statistics = [value for value in found if isinstance(value, Tensor)]

    def train(self, batch: Batch, share: float) -> Pass:
        """Run the forward and backward pass of this rank's images in a batch."""
        self._batch_share = batch.share
        return super().train(batch, share)

    @contextmanager
    def gradients(self) -> Iterator[None]:
        """Add up the gradients over the ranks. If the step is cancelled, only rank 0 keeps the sum."""
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


class RankedGraphRunner(RankedRunner, GraphRunner):
    """Records the work of each rank, but not the exchanges between ranks."""


def make_runner(learner: LearnerParts) -> Runner:
    """Return the runner for a learner. If the settings, the task and the training step allow it, use CUDA graphs."""
    ranked = learner.ranks.size > 1
    step = learner.training_step
    can_record = hasattr(step, "recordable") if step is not None else not learner.task.own_loss
    if learner.settings.graph and learner.device.type == "cuda" and can_record:
        graphs = Graphs(CudaBackend(learner.device))
        return RankedGraphRunner(learner, graphs) if ranked else GraphRunner(learner, graphs)
    return RankedRunner(learner) if ranked else Runner(learner)
