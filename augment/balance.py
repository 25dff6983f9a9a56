"""Classes of unequal size: pictures of the smaller ones are repeated, or weigh more in the loss."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from augment.dataset import Dataset, Split
from augment.errors import UserError
from augment.subset import draw
from augment.wording import amount

# Or one over it. Of a label that next to no picture has, a single one would drown all others.
MAX_LABEL_WEIGHT = 100.0


def check_balance(dataset: Dataset, how: str) -> None:
    """Check that classes can be balanced.

    Args:
        dataset: whose.
        how: none, oversample or weights.

    Raises:
        UserError: they cannot.
    """
    if how != "none" and dataset.task == "regress":
        raise UserError(f"data.balance={how}: pictures have numbers, and these no classes. Allowed: none.")
    if how == "oversample" and dataset.task == "multilabel":
        raise UserError(
            "data.balance=oversample: pictures have several labels, which are repeated together. "
            "Allowed: none, weights."
        )


def oversample(dataset: Dataset, seed: int) -> Dataset:
    """Return the dataset with as many training samples of each class as the largest one has pictures.

    Each picture of a class is there equally often, up to one; which are there once more is drawn once and for all. What
    is repeated follows the pictures, so that these keep their places. Classes without pictures stay without.

    Args:
        dataset: with one class a picture.
        seed: of what is left to chance.
    """
    train = dataset.train
    targets = np.array(train.targets, np.int64)
    counts = np.bincount(targets)
    whole, rest = np.divmod(counts.max(), np.maximum(counts, 1))
    order = np.lexsort((draw(len(targets), seed, "oversample"), targets))
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order)) - (np.cumsum(counts) - counts)[targets[order]]
    more = np.repeat(np.arange(len(targets)), whole[targets] - 1 + (rank < rest[targets])).tolist()
    files = train.files + tuple(train.files[place] for place in more)
    return replace(
        dataset, train=Split(files, train.targets + tuple(train.targets[i] for i in more), repeated=len(more))
    )


def loss_weights(dataset: Dataset) -> NDArray[np.float64]:
    """Return what classes or labels weigh in the loss, by the train split: (K,).

    Of n pictures, each of the n_c of a class weighs n / (k n_c), where k classes have pictures: all classes weigh the
    same, and a picture weighs 1 in the mean. A picture that has a label weighs (n - n_c) / n_c there, within
    `MAX_LABEL_WEIGHT`: those that have it weigh as much as those that do not. What no picture has weighs 0 as a class
    and 1 as a label.
    """
    if dataset.task == "multilabel":
        having = np.zeros(len(dataset.classes))
        for row in dataset.train.targets:
            having += row
        weights = (len(dataset.train) - having) / np.maximum(having, 1)
        return np.where(having > 0, np.clip(weights, 1 / MAX_LABEL_WEIGHT, MAX_LABEL_WEIGHT), 1.0)
    counts = np.bincount(np.array(dataset.train.targets, np.int64), minlength=len(dataset.classes))
    weights = len(dataset.train) / (np.count_nonzero(counts) * np.maximum(counts, 1))
    return np.where(counts > 0, weights, 0.0)


def describe_balance(dataset: Dataset, how: str) -> str:
    """Say what balancing came to; empty where nothing is balanced."""
    if how == "none":
        return ""
    train, names = dataset.train, dataset.classes
    if how == "oversample":
        counts = np.bincount(np.array(train.targets[: train.pictures], np.int64))
        least = int(np.where(counts > 0, counts, len(train)).argmin())
        each = counts.max() / counts[least]
        return (
            f"balance: {train.pictures:,} training pictures make {len(train):,} samples an epoch, {counts.max():,} of "
            f"each class; the smallest, {names[least]}, has "
            f"{amount(counts[least], 'picture')}, seen {each:.3g} times each"
        )
    weights = loss_weights(dataset)
    low, high = int(np.where(weights > 0, weights, np.inf).argmin()), int(weights.argmax())
    kind = "label" if dataset.task == "multilabel" else "class"
    return (
        f"balance: in the training loss the {kind} {names[low]} weighs {weights[low]:.3g}, {names[high]} "
        f"{weights[high]:.3g}; validation is not weighed"
    )
