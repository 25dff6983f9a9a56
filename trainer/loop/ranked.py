"""The work of a batch where several processes train together: what they exchange, once a step."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from augment.pipeline.batch import Batch
from trainer.loop.callback import Learner
from trainer.loop.graphs import CudaBackend, Graphs
from trainer.loop.recorded import Recorded
from trainer.loop.runner import Pass, Runner


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
        """Run this rank's part of a batch; its loss counts by images, or by the weights of their classes."""
        self._batch_share, self._part = batch.share, self._part_of(batch)
        done = super().train(batch, share)
        if isinstance(self._part, Tensor) and batch.share:  # so that means over images are those of all ranks
            return done._replace(loss=done.loss * (self._part / batch.share))
        return done

    @contextmanager
    def gradients(self) -> Iterator[None]:
        """Add up the gradients of a step; if it is cancelled, rank 0 alone keeps the sum."""
        for p in self._model.parameters():
            if p.requires_grad and p.grad is None:
                p.grad = torch.zeros_like(p)
        if self._statistics:
            torch._foreach_mul_(self._statistics, self._batch_share)
        self._learner.ranks.add_up([*self._gradients(), *self._statistics])
        try:
            with super().gradients():
                yield
        finally:
            if self.pending and not self._learner.ranks.is_main:
                self._optimizer.zero_grad(set_to_none=False)

    def _part_of(self, batch: Batch) -> Tensor | float:
        """Return how much this rank's mean loss counts in that of all ranks' batch: by samples or weights."""
        weights = getattr(self._learner.loss_function, "weight_of", lambda _: None)(self._task.targets_of(batch))
        if weights is None:
            return batch.share
        weights = weights if batch.share else torch.zeros_like(weights)
        total = weights.clone()
        self._learner.ranks.add_up([total])
        return weights / total


class RankedRecorded(Ranked, Recorded):
    """Records what each rank does; the exchanges in between are not recorded."""


def make_runner(learner: "Learner") -> Runner:
    """Return what does the work of a learner's batches: recorded on a GPU, unless the settings say otherwise."""
    ranked = learner.ranks.size > 1
    if learner.settings.graph and learner.device.type == "cuda" and not learner.task.own_loss:
        graphs = Graphs(CudaBackend(learner.device))
        return RankedRecorded(learner, graphs) if ranked else Recorded(learner, graphs)
    return Ranked(learner) if ranked else Runner(learner)
