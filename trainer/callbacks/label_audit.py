"""The callback that finds training samples whose label is probably wrong."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from augment.data.dataset import Split
from augment.data.images import image_keys
from augment.data.targets.classification import CLASSES
from augment.data.targets.multilabel import LABELS
from augment.params import Count, setting
from augment.support.files import json_line, write_atomically
from augment.support.lazy_torch import Tensor, torch
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import Callback, configurable
from trainer.loop.lazy_learner import Learner
from trainer.loop.ranks import current
from trainer.tasks.label_errors import TrainingResult

_BATCHES_AT_ONCE = 16  # batches that are added to the table at once
# The last epochs do not count, because the model memorizes wrong labels when the learning rate falls. This affects the
# estimate first. If all 20 epochs of a run counted, an audit of Imagenette would find half of the wrong labels. The
# order of the margins is affected later. With several labels per image, the estimate also uses the margins, so the
# smaller share applies to both.
_MARGIN_SHARE, _PROBABILITY_SHARE = 0.9, 0.7  # shares of the epochs that count
_MIN_EPOCHS = 5  # fewest epochs that count
_MAX_VALUES = 2**27  # largest number of samples times labels, so that the table needs at most 1 GiB of GPU memory


@configurable
@dataclass(eq=False)
class LabelAudit(Callback):
    """Finds wrong labels of training images, for classification and multi-label data.

    It records the margin of each sample, which is the logit of the given label minus the highest logit of the other
    classes. With several labels per image, the margin of a given label is its logit, and the margin of any other label
    is its negative logit. A wrong label has a low mean margin over the epochs (Pleiss et al. 2020, arXiv:2001.10528).
    Later epochs have a higher weight, because the model has learned more. The last epochs of long runs do not count,
    because models then memorize wrong labels. Recording does not synchronize with the device.

    If an image is mixed with another one, its margin counts in proportion to its share, and ignores the other class.
    With several labels per image, a label counts only if both images agree on it.
    """

    images: int = setting(Count(default=200, within=(0, 1000), doc="number of suspicious images in labels.html"))
    tracks = True
    # A row per sample. With one class per image, (2 + classes,): the weighted sum of the margins, the sum of their
    # weights, and the weighted sum of each class's probability. With several labels per image, (labels, 2): the
    # weighted sum of each label's margins, and the sum of the weights.
    table: Tensor | None = field(default=None, init=False)
    given: Tensor | None = field(default=None, init=False)  # the targets in the dataset
    _loaded: Tensor | None = field(default=None, init=False)
    _waiting: list[tuple[Tensor, ...]] = field(default_factory=list, init=False)  # batches to add

    def before_fit(self, learner: Learner) -> None:
        """Allocate the table, or continue with the table of the resumed run."""
        self.table = self.given = None
        self._waiting = []
        split: Any = getattr(learner.train_loader, "split", None)
        kind, names = getattr(split, "kind", None), len(learner.classes)
        if split is None or learner.training_step is not None or kind not in (CLASSES, LABELS):
            return
        width = (2 + names,) if kind == CLASSES else (names, 2)
        if kind.task not in learner.task.lineage or len(split) * width[0] > _MAX_VALUES:
            return
        self.given = kind.collate(split.targets).to(learner.device)
        self.table = torch.zeros(len(split), *width, device=learner.device)
        if self._loaded is not None and self._loaded.shape == self.table.shape and learner.ranks.is_main:
            self.table.copy_(self._loaded)
        self._loaded = None

    def after_batch(self, learner: Learner) -> None:
        """Store the outputs of a training batch. Several batches are added to the table at once, which is faster."""
        if self.given is None or not learner.training or learner.loss is None or not learner.batch.share:
            return  # the batch was skipped, or only pads the pass
        progress = learner.progress
        self._weight = (progress.epoch + 1) / progress.epochs
        self._only_margins = progress.epoch >= _MIN_EPOCHS and self._weight > _PROBABILITY_SHARE
        if self._only_margins and (self._weight > _MARGIN_SHARE or self.given.ndim == 2):
            return
        targets = learner.task.targets_of(learner.batch)
        self._waiting.append((learner.batch.indices, learner.output.detach().clone(), targets))
        if len(self._waiting) == _BATCHES_AT_ONCE:
            self._add()

    def after_train(self, learner: Learner) -> None:
        """Add the remaining batches of the epoch."""
        self._add()

    def _add(self) -> None:
        """Add the waiting batches to the table."""
        if not self._waiting:
            return
        assert self.table is not None
        assert self.given is not None
        with torch.no_grad():
            indices, logits, targets = (torch.cat(parts) for parts in zip(*self._waiting, strict=True))
            rows_of = _with_labels if self.given.ndim == 2 else _with_classes
            rows = rows_of(logits.float(), self.given[indices], targets)
            columns = slice(2 if self._only_margins else None)
            self.table[:, columns].index_add_(0, indices, rows[:, columns], alpha=self._weight)
        self._waiting = []

    def after_fit(self, learner: Learner) -> None:
        """Write labels.csv and labels.json."""
        if learner.error is not None or (table := self.merged()) is None:
            return
        if learner.folder is None or not learner.folder.is_dir():
            return
        from trainer.figures.label_report import REPORT_FILE, TABLE_FILE, audit_classes, audit_labels

        split, rows = learner.train_loader.split, table.double().numpy()
        audit = audit_labels if rows.ndim == 3 else audit_classes
        if split.repeated:
            rows = _joined(rows, split)
        files, targets = split.files[: split.images], split.targets[: split.images]
        found = audit(
            rows, targets, learner.classes, _training_result(learner, "val_accuracy" if rows.ndim == 2 else "val_map")
        )
        write_atomically(learner.folder / TABLE_FILE, found.as_csv(files))
        report = found.report(files, learner.classes, self.images, several=rows.ndim == 3)
        write_atomically(learner.folder / REPORT_FILE, json_line(asdict(report)))

    def merged(self) -> Tensor | None:
        """Return the table of all ranks, on the CPU. All ranks must call this method."""
        if self.table is None:
            return None
        self._add()
        return torch.stack(current().gather(self.table.cpu())).sum(dim=0)

    def state_dict(self) -> dict[str, Any]:
        """Return the sum of all ranks' tables.

        In a resumed run, rank 0 starts with this sum, and other ranks start with zeros.
        """
        return {"table": self.merged() if self._loaded is None else self._loaded}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loaded = None if state["table"] is None else state["table"].cpu()


def _training_result(learner: Learner, metric: str) -> TrainingResult:
    """Return the number of epochs, and the best validation score of an epoch."""
    recorders = [callback for callback in learner.callbacks if isinstance(callback, Recorder)]
    scores = [row.get(metric, math.nan) for recorder in recorders for row in recorder.rows]
    known = [score for score in scores if not math.isnan(score)]
    return TrainingResult(learner.progress.position.epoch, metric, max(known, default=math.nan))


def _joined(rows: Any, split: Split) -> Any:
    """Add up the rows of each image that the split repeats. Return one row per image, (M, ...)."""
    first: dict[Any, int] = {}
    images = np.array([first.setdefault(key, index) for index, key in enumerate(image_keys(split.files))])
    joined = np.zeros((split.images, *rows.shape[1:]))
    np.add.at(joined, images, rows)
    return joined


def _with_classes(logits: Tensor, given: Tensor, targets: Tensor) -> Tensor:
    """Return the rows that samples add to the table, (N, 2 + K).

    Args:
        logits: (N, K).
        given: (N,) the classes in the dataset.
        targets: (N,) the same classes, or (N, K) the shares of the classes in mixed images.
    """
    column = given[:, None]
    own, share = logits.gather(1, column), torch.ones_like(column, dtype=logits.dtype)
    if targets.ndim == 2:
        share = targets.gather(1, column)
        logits = logits.masked_fill(targets > 0, -torch.inf).scatter(1, column, own)
    margins = own - logits.scatter(1, column, -torch.inf).amax(dim=1, keepdim=True)
    # The margin is infinite without other classes, and after an overflow. Such samples do not count.
    weights = share * margins.isfinite()
    values = torch.cat([margins, torch.ones_like(margins), logits.softmax(dim=1)], dim=1)
    return torch.where(weights > 0, values * weights, 0.0)


def _with_labels(logits: Tensor, given: Tensor, targets: Tensor) -> Tensor:
    """Return the rows that samples add to the table, (N, K, 2). All arguments are (N, K)."""
    weights = (targets == given) * logits.isfinite()
    margins = logits.nan_to_num(0, 0, 0) * (2 * given - 1)
    return torch.stack([margins * weights, weights], dim=2)
