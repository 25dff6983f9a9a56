"""Classes: how many pictures of each are right, and which are taken for which."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.metrics import wilson_interval


@dataclass(frozen=True)
class ClassScore:
    """How well one class is recognized.

    Attributes:
        name: of the class.
        right: pictures of it that are right.
        total: pictures of it.
        low: lower end of the 95 % interval of its accuracy.
        high: upper end.
        taken_for: the class that its other pictures are most often taken for; empty if all are right.
        times: how often.
    """

    name: str
    right: int
    total: int
    low: float
    high: float
    taken_for: str
    times: int

    @property
    def accuracy(self) -> float:
        """Share of its pictures that are right."""
        return self.right / self.total


@dataclass(frozen=True)
class Confused:
    """A class and another one that its pictures are taken for: how often, and in what share of them."""

    true: str
    predicted: str
    times: int
    share: float


def class_scores(confusion: NDArray[np.int64], classes: Sequence[str]) -> list[ClassScore]:
    """Return the scores of all classes that have pictures, the worst first.

    Args:
        confusion: (C, C), rows are targets.
        classes: C names.
    """
    scores = []
    for i, name in enumerate(classes):
        right, total = int(confusion[i, i]), int(confusion[i].sum())
        if not total:
            continue
        others = confusion[i].copy()
        others[i] = 0
        most = int(others.argmax())
        taken_for, times = (classes[most], int(others[most])) if others[most] else ("", 0)
        scores.append(ClassScore(name, right, total, *wilson_interval(right, total), taken_for, times))
    return sorted(scores, key=lambda score: (score.accuracy, score.name))


def most_confused(confusion: NDArray[np.int64], classes: Sequence[str], count: int) -> list[Confused]:
    """Return the `count` pairs of classes that are confused most often, the most frequent first."""
    wrong = confusion - np.diag(confusion.diagonal())
    order = np.argsort(-wrong, axis=None, kind="stable")[:count]
    totals = confusion.sum(axis=1)
    return [
        Confused(classes[true], classes[predicted], int(wrong[true, predicted]), wrong[true, predicted] / totals[true])
        for true, predicted in zip(*np.unravel_index(order, wrong.shape), strict=True)
        if wrong[true, predicted]
    ]
