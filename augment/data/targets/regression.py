"""Regression targets: one or more numbers per image."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from augment.data.targets.class_names import LabeledSplit, TargetOptions, column_names
from augment.data.targets.kind import Kind, Target, register
from augment.support.lazy_torch import Tensor, torch


class Rows(Kind):
    """Base class of kinds whose targets are rows with one number per name."""

    def fault(self, targets: Sequence[object], names: int) -> str:
        """Describe the first target that is not a tuple of the right length."""
        odd = [target for target in targets if not isinstance(target, tuple) or len(target) != names]
        return f"{odd[0]!r}. Use a tuple of {names} numbers." if odd else ""

    def collate(self, targets: Sequence[Target]) -> Tensor:
        """Return (N, K) float32."""
        return torch.tensor(targets, dtype=torch.float32)

    def shares(self, targets: Tensor, names: int) -> Tensor:
        return targets

    def blank(self, names: int) -> Target:
        return (0.0,) * names


class Numbers(Rows):
    """One or more numbers per image."""

    noun, units, task = "number", "numbers", "regress"

    def read(
        self, splits: Sequence[LabeledSplit], options: TargetOptions
    ) -> tuple[tuple[str, ...], list[tuple[Target, ...]]]:
        """Return the names of the numbers, and the row of each image."""
        rows = [split.rows() for split in splits]
        width = rows[0].shape[1]
        names = column_names(splits[0], width, options.names)
        unnamed = ("target",) if width == 1 else tuple(f"target_{number}" for number in range(1, width + 1))
        targets = []
        for split, values in zip(splits, rows, strict=True):
            numbers = values.astype(np.float64)
            wrong = ~np.isfinite(numbers) | (np.abs(numbers) > np.finfo(np.float32).max)
            if wrong.any():
                raise split.row_error(wrong, ". Use finite float32 numbers.")
            targets.append(tuple(map(tuple, numbers.tolist())))
        return names or unnamed, targets

    def caption(self, target: Any, names: Sequence[str]) -> str:
        return ", ".join(f"{value:.4g}" for value in target)


NUMBERS = register(Numbers())
