"""Multi-label targets: any number of labels per image."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.data.targets.class_names import LabeledSplit, Labels, TargetOptions, as_lists, find_names, label_number
from augment.data.targets.kind import Target, register
from augment.data.targets.regression import Rows

# Weights are limited to this value and its reciprocal. Otherwise, a very rare label would dominate the loss.
MAX_LABEL_WEIGHT = 100.0


class LabelSets(Rows):
    """Any number of labels per image: a row of 1 and 0. Images with the same labels share a row."""

    noun, units, task = "label", "labels", "multilabel"
    many_strata, balances = True, ("none", "weights")

    def read(
        self, splits: Sequence[LabeledSplit], options: TargetOptions
    ) -> tuple[tuple[str, ...], list[tuple[Target, ...]]]:
        """Return the names of the labels, and the row of each image."""
        splits, options = as_lists(splits, options, self.task)
        # Each target has one entry per label, so memory limits the number of labels.
        names, found = find_names(splits, options, most=10_000)
        return names, [_rows(of, split.labels.counts, len(names)) for of, split in zip(found, splits, strict=True)]

    def caption(self, target: Any, names: Sequence[str]) -> str:
        """Return the labels. Mixed labels are followed by their shares."""
        shown = ((name, share) for name, share in zip(names, target, strict=True) if share >= 0.005)
        return ", ".join(name if share > 0.995 else f"{name} {share:.0%}" for name, share in shown) or "none"

    def target_of(self, text: str, names: Sequence[str], where: str) -> Target:
        """Return the row for labels that are separated by semicolons."""
        labels = {label_number(label.strip(), names, where) for label in text.split(";") if label.strip()}
        return tuple(float(index in labels) for index in range(len(names)))

    def present(self, target: Target) -> Sequence[int]:
        return [index for index, has in enumerate(target) if has]

    def strata(self, targets: Sequence[Target]) -> NDArray[np.int64]:
        """Return for each image a number that identifies its set of labels. Sets are ordered by their rarest label.

        A rare label might otherwise be in too few folds (Sechidis et al. 2011).
        """
        sets = Counter(targets)
        having = np.array(list(sets)) > 0.5
        rarity = np.argsort(np.argsort(np.array(list(sets.values())) @ having, kind="stable"))
        keys = [tuple(sorted(rarity[row].tolist())) for row in having]
        number = {labels: index for index, (_, labels) in enumerate(sorted(zip(keys, sets, strict=True)))}
        return np.array([number[labels] for labels in targets], np.int64)

    def loss_weights(self, targets: Sequence[Target], names: int) -> NDArray[np.float64]:
        """Return (n - n_c) / n_c for n images, n_c of them with label c, within the limits of `MAX_LABEL_WEIGHT`.

        Images with and without a label have the same total weight. A label without images has weight 1.
        """
        having = np.zeros(names)
        for row in targets:
            having += row
        weights = (len(targets) - having) / np.maximum(having, 1)
        return np.where(having > 0, np.clip(weights, 1 / MAX_LABEL_WEIGHT, MAX_LABEL_WEIGHT), 1.0)


LABELS = register(LabelSets())


def _rows(indices: NDArray[np.int64], counts: NDArray[np.int64], names: int) -> tuple[Target, ...]:
    sets = [frozenset(labels) for labels in Labels(indices, counts).lists()]
    rows = {labels: tuple(float(index in labels) for index in range(names)) for labels in set(sets)}
    return tuple(rows[labels] for labels in sets)
