"""Classification targets: one class per image."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.data.targets.class_names import LabeledSplit, TargetOptions, as_lists, find_names, label_number
from augment.data.targets.kind import Kind, Target, register
from augment.support.errors import UserError
from augment.support.lazy_torch import Tensor, torch


class Classes(Kind):
    """One class per image. A target is the index of the class."""

    noun, units, task = "class", "classes", "classify"
    cuts_each, balances = True, ("none", "oversample", "weights")

    def read(
        self, splits: Sequence[LabeledSplit], options: TargetOptions
    ) -> tuple[tuple[str, ...], list[tuple[Target, ...]]]:
        """Return the names of the classes, and the class of each image."""
        if options.names:
            raise UserError(
                "data.targets is for numbers, but data.task=classify. List the classes in data.classes=FILE."
            )
        splits, options = as_lists(splits, options, self.task, single=True)
        for split in splits:
            odd = np.flatnonzero(split.labels.counts != 1)
            if len(odd):
                count = int(split.labels.counts[odd[0]])
                more = f" ({len(odd):,} images have none or several)" if len(odd) > 1 else ""
                raise UserError(
                    f"{split.key}: {split.name(int(odd[0]))} has {f'{count} labels' if count else 'no label'}{more}. "
                    "Give each image one label, or set data.multilabel=true."
                )
        # Without names, there is a class for each number up to the highest label. A very high label is probably an ID.
        names, found = find_names(splits, options, most=1_000_000)
        return names, [tuple(indices.tolist()) for indices in found]

    def fault(self, targets: Sequence[object], names: int) -> str:
        """Describe the first target that is not the index of a class."""
        strange = {kind for kind in set(map(type, targets)) if not issubclass(kind, Integral)}
        odd = [t for t in targets if type(t) in strange] or [t for t in targets if not 0 <= t < names]  # type: ignore[operator]
        return f"{odd[0]!r}. Use an index below {names}, the number of classes." if odd else ""

    def collate(self, targets: Sequence[Target]) -> Tensor:
        """Return (N,) int64."""
        return torch.from_numpy(np.array(targets, np.int64))

    def shares(self, targets: Tensor, names: int) -> Tensor:
        """Return 1 for the class of each image, and 0 otherwise."""
        zeros = torch.zeros(len(targets), names, dtype=torch.float32, device=targets.device)
        return zeros.scatter_(1, targets[:, None], 1.0)

    def caption(self, target: Any, names: Sequence[str]) -> str:
        """Return the class, or the mixed classes with their shares: "cat 70%, dog 30%"."""
        if isinstance(target, int):
            return names[target] if names else str(target)
        shares = sorted(((share, i) for i, share in enumerate(target) if share >= 0.005), reverse=True)
        return ", ".join(f"{names[i] if names else i} {share:.0%}" for share, i in shares)

    def blank(self, names: int) -> Target:
        return 0

    def target_of(self, text: str, names: Sequence[str], where: str) -> Target:
        """Return the class with a name."""
        return label_number(text, names, where)

    def present(self, target: Target) -> Sequence[int]:
        return (int(target),)

    def strata(self, targets: Sequence[Target]) -> NDArray[np.int64]:
        return np.array(targets, np.int64)

    def loss_weights(self, targets: Sequence[Target], names: int) -> NDArray[np.float64]:
        """Return n / (k n_c) for n images, n_c images of class c, and k classes that have images.

        All classes have the same total weight, and the mean weight of an image is 1. Classes without images have
        weight 0.
        """
        counts = np.bincount(np.array(targets, np.int64), minlength=names)
        weights = len(targets) / (np.count_nonzero(counts) * np.maximum(counts, 1))
        return np.where(counts > 0, weights, 0.0)


CLASSES = register(Classes())
