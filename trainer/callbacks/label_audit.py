"""The callback that finds training samples whose label is probably wrong."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from augment.data.image_refs import keys_of
from augment.data.targets.classification import CLASSES
from augment.data.targets.multilabel import LABELS
from augment.params import Count, setting
from augment.support.files import json_line, write_atomically
from augment.support.lazy_torch import Tensor, torch
from trainer.loop.callback import Callback, configurable
from trainer.loop.ranks import current

if TYPE_CHECKING:
    from augment.data.dataset import Split
    from trainer.loop.learner import Learner

_MOST = 2**27  # largest number of labels and samples that are recorded, so that a GPU needs at most 1 GiB


@configurable
@dataclass(eq=False)
class LabelAudit(Callback):
    """Finds wrong labels of training images, for classification and multi-label data.

    For each sample, it records how far the logit of the given label is above the logit of the best other class. The
    mean of this margin over all epochs is low if the label is wrong (Pleiss et al. 2020, arXiv:2001.10528). Nothing
    waits for the device. Later epochs count more, because a model that has learned little says little.

    A mixed image is evidence for each of its labels: the margin excludes the other classes in the image, and counts by
    the share of the sample. With several labels per image, a mixed label counts only if all mixed images agree on it.
    """

    images: int = setting(Count(default=200, within=(0, 1000), doc="number of suspicious images in labels.html"))
    tracks = True
    # Per sample: with classes, the sum of the margins, the sum of their weights, the suggested class and its votes.
    # With several labels per image: (labels, 2), the sum of each label's margins and of their weights.
    table: Tensor | None = field(default=None, init=False)
    given: Tensor | None = field(default=None, init=False)  # the targets in the dataset
    _measured: Tensor | None = field(default=None, init=False)
    _loaded: Tensor | None = field(default=None, init=False)

    def before_fit(self, learner: Learner) -> None:
        """Allocate the table, or continue with the table of the resumed run."""
        self.table = self.given = self._measured = None
        split: Any = getattr(learner.train_loader, "split", None)
        kind: Any = getattr(split, "kind", None)
        width = {CLASSES: (4,), LABELS: (len(learner.classes), 2)}.get(kind)
        if width is None or learner.training_step is not None or kind.task not in learner.task.lineage:
            return
        if len(split) * width[0] > _MOST:
            return
        self.given = kind.collate(split.targets).to(learner.device)
        self.table = torch.zeros(len(split), *width, device=learner.device)
        if self._loaded is not None and self._loaded.shape == self.table.shape and learner.ranks.is_main:
            self.table.copy_(self._loaded)
        self._loaded = None

    def after_batch(self, learner: Learner) -> None:
        """Add the margins of a training batch."""
        loss = getattr(learner, "loss", None)
        if self.table is None or not learner.training or loss is self._measured or not learner.batch.share:
            return  # a skipped batch leaves the previous loss, and a batch without a share only pads the pass
        self._measured = loss
        assert self.given is not None
        indices = learner.batch.indices
        with torch.no_grad():
            rows, given = self.table.index_select(0, indices), self.given.index_select(0, indices)
            targets = learner.task.targets_of(learner.batch)
            add = _with_labels if given.ndim == 2 else _with_classes
            weight = learner.progress.batches_done / learner.progress.total_batches
            self.table.index_copy_(0, indices, add(rows, learner.output.detach().float(), given, targets, weight))

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
        found = audit(rows, targets, learner.classes, learner.progress.position.epoch)
        write_atomically(learner.folder / TABLE_FILE, found.as_csv(files))
        report = found.report(files, learner.classes, self.images, several=rows.ndim == 3)
        write_atomically(learner.folder / REPORT_FILE, json_line(asdict(report)))

    def merged(self) -> Tensor | None:
        """Return the table of all ranks, on the CPU. All ranks must call this method."""
        if self.table is None:
            return None
        every = torch.stack(current().gather(self.table.cpu()))
        total: Tensor = every.sum(dim=0)
        if total.ndim == 2:
            most = every[:, :, 3].argmax(dim=0)
            total[:, 2:] = every[most, torch.arange(len(total)), 2:]
        return total

    def state_dict(self) -> dict[str, Any]:
        """Return the table of all ranks, which rank 0 continues."""
        return {"table": self.merged() if self._loaded is None else self._loaded}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loaded = None if state["table"] is None else state["table"].cpu()


def _joined(rows: Any, split: Split) -> Any:
    """Return the rows of the images, (M, 4). Rows of repeated images are added to those of the images."""
    first: dict[Any, int] = {}
    images = np.array([first.setdefault(key, index) for index, key in enumerate(keys_of(split.files))])
    joined, order = np.zeros((split.images, 4)), np.argsort(rows[:, 3], kind="stable")
    np.add.at(joined[:, :2], images, rows[:, :2])
    joined[images[order], 2:] = rows[order, 2:]  # the last one counts, which has the most votes
    return joined


def _with_classes(rows: Tensor, logits: Tensor, given: Tensor, targets: Tensor, weight: float) -> Tensor:
    """Return the rows of a batch with its margins added.

    Args:
        rows: (N, 4), see `LabelAudit.table`.
        logits: (N, K).
        given: (N,) the classes in the dataset.
        targets: (N,) the same classes, or (N, K) the shares of the classes in mixed images.
        weight: the weight of the batch.
    """
    column = given[:, None]
    own = logits.gather(1, column)[:, 0]
    if targets.ndim == 2:
        share = targets.gather(1, column)[:, 0]
        others = logits.masked_fill(targets > 0, -torch.inf)
    else:
        share, others = torch.ones_like(own), logits
    best, other = others.scatter(1, column, -torch.inf).max(dim=1)
    margins = own - best
    weights = share * margins.isfinite() * weight  # without other classes, or after an overflow, there is no evidence
    # A majority vote in constant memory (Boyer and Moore 1991): other classes use up the votes of the suggested one.
    votes = rows[:, 3] + weights * torch.where(rows[:, 2] == other, 1.0, -1.0)
    suggested = torch.where(votes < 0, other.float(), rows[:, 2])
    sums = rows[:, :2] + torch.stack([margins.nan_to_num(0, 0, 0) * weights, weights], dim=1)
    return torch.cat([sums, torch.stack([suggested, votes.abs()], dim=1)], dim=1)


def _with_labels(rows: Tensor, logits: Tensor, given: Tensor, targets: Tensor, weight: float) -> Tensor:
    """Return the rows of a batch, (N, K, 2), with the margins of its labels. The others are (N, K)."""
    weights = (targets == given) * logits.isfinite() * weight
    margins = logits.nan_to_num(0, 0, 0) * (2 * given - 1)
    return rows + torch.stack([margins * weights, weights], dim=2)
