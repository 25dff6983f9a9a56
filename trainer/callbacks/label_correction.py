"""The callback that lets the model's predictions replace wrong labels during training."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from augment.data.targets.classification import CLASSES
from augment.params import Number, setting
from augment.support.errors import UserError
from augment.support.lazy_torch import Tensor, torch
from trainer.loop.callback import Callback, Phase, configurable
from trainer.loop.lazy_learner import Learner
from trainer.loop.ranks import current

if TYPE_CHECKING:
    from augment.pipeline.batch import Batch


@configurable
@dataclass(eq=False)
class LabelCorrection(Callback):
    """Replaces wrong labels during training, for classification.

    The target of an image is a moving average of its label and the model's predictions for it. A network learns the
    correct labels first and memorizes the wrong ones later. From `start` on, the target moves towards the prediction in
    each epoch. So a label that contradicts the other images of its class loses its weight before the network memorizes
    it (Lu and He 2022, arXiv:2205.01156). Validation, metrics and the label audit still use the given labels.
    """

    start: float = setting(Number(default=0.4, within=(0, 1), doc="share of the run that trains only on the labels"))
    momentum: float = setting(Number(default=0.85, within=(0, 1), doc="weight of the old target in each later epoch"))
    order = Phase.FIRST  # later callbacks see the given labels again
    targets: Tensor | None = field(default=None, init=False)  # (N, K), the target of each training image
    # `targets` before the pass, equal on all ranks. None for a single rank.
    _at_start: Tensor | None = field(default=None, init=False)
    _given: Batch | None = field(default=None, init=False)  # the current batch with its labels
    _loaded: Tensor | None = field(default=None, init=False)

    def before_fit(self, learner: Learner) -> None:
        """Start with the labels, or with the targets of the resumed run."""
        split: Any = getattr(learner.train_loader, "split", None)
        if split is None or split.kind != CLASSES or CLASSES.task not in learner.task.lineage:
            raise _unsupported("a dataset that has one class per image")
        if learner.training_step is not None or getattr(learner.loss_function, "takes_images", False):
            raise _unsupported("the usual training step, without fit.teacher")
        labels = CLASSES.collate(split.targets).to(learner.device)
        if int(labels.max()) >= len(learner.classes):
            raise _unsupported("a loader that has a name for each class")
        empty = torch.zeros(len(labels), len(learner.classes), device=learner.device)
        self.targets = empty.scatter_(1, labels[:, None], 1.0)
        if self._loaded is not None:
            if getattr(self._loaded, "shape", None) != self.targets.shape:
                raise _unsupported("the images and classes of the resumed run. Start a new run")
            self.targets.copy_(self._loaded)
        try:
            learner.loss_function(torch.zeros_like(self.targets[:2]), self.targets[:2])
        except (TypeError, ValueError, RuntimeError, IndexError, AttributeError, AssertionError) as error:
            raise _unsupported("a fit.loss that accepts soft targets, such as gce or cross_entropy") from error
        self._at_start = self.targets.clone() if learner.ranks.size > 1 else None

    def before_batch(self, learner: Learner) -> None:
        """Replace the labels of a training batch."""
        self._given = None  # an exception may have ended the previous batch
        if not learner.training:
            return
        assert self.targets is not None
        self._given = learner.batch
        if self._given.targets.ndim != 1:
            raise _unsupported("a recipe that does not mix images. Remove mixup, cutmix and similar steps")
        learner.batch = replace(self._given, targets=self.targets[self._given.indices])

    def after_batch(self, learner: Learner) -> None:
        """Move the targets of the batch towards its predictions."""
        if self._given is None:
            return
        batch, self._given = self._given, None
        learner.batch = batch
        was_skipped = learner.loss is None or not batch.share
        progress = learner.progress
        if was_skipped or progress.batches_done <= self.start * progress.total_batches:
            return
        assert self.targets is not None
        with torch.no_grad():
            predicted = learner.output.detach().float().softmax(dim=1)
            moved = torch.lerp(predicted, self.targets[batch.indices], self.momentum)
            # After an overflow, predictions are not finite. Such images keep their targets.
            moved = torch.where(moved.isfinite(), moved, self.targets[batch.indices])
            self.targets.index_copy_(0, batch.indices, moved)

    def after_epoch(self, learner: Learner) -> None:
        """Exchange the targets that the ranks have changed in this epoch."""
        if self._at_start is not None:
            assert self.targets is not None
            self.targets.copy_(self._merged())
            self._at_start.copy_(self.targets)

    def state_dict(self) -> dict[str, Any]:
        """Return the targets with the changes of all ranks."""
        return {"targets": self._loaded if self.targets is None else self._merged()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loaded = state["targets"]

    def _merged(self) -> Tensor:
        """Return the targets with the changes of all ranks, on the CPU. All ranks must call this method."""
        assert self.targets is not None
        if self._at_start is None:
            return self.targets.cpu()
        changes = current().gather((self.targets - self._at_start).cpu())
        return self._at_start.cpu() + torch.stack(changes).sum(dim=0)


def _unsupported(needs: str) -> UserError:
    return UserError(f"callbacks.label_correction works only with {needs}.")
