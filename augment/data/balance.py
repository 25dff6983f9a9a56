"""Balance imbalanced classes: repeat images of the smaller ones, or weight the loss."""

from collections import Counter
from dataclasses import replace

import numpy as np

from augment.data.dataset import Dataset
from augment.data.paths import take_images
from augment.data.selection import rank_within
from augment.support.text import amount


def balanced(dataset: Dataset, how: str, seed: int) -> Dataset:
    """Return the dataset with its training samples repeated, or the weights of its classes in the loss, or as it is."""
    if how == "weights":
        weights = dataset.kind.loss_weights(dataset.train.targets, len(dataset.classes))
        return replace(dataset, train=replace(dataset.train, weights=tuple(weights.tolist())))
    return oversample(dataset, seed) if how == "oversample" else dataset


def oversample(dataset: Dataset, seed: int) -> Dataset:
    """Return the dataset with as many training samples of each class as the largest one has images.

    The images of a class are repeated equally often, give or take one; the seed decides which ones get one more.
    Repetitions come after all images, so that these keep their indices. Classes without images stay empty.
    """
    train = dataset.train
    targets = np.array(train.targets, np.int64)
    counts = np.bincount(targets)
    whole, rest = np.divmod(counts.max(), np.maximum(counts, 1))
    one_more = rank_within(targets, seed, "oversample") < rest[targets]
    more = np.repeat(np.arange(len(targets)), whole[targets] - 1 + one_more)
    files = train.files + take_images(train.files, more)
    repeats = tuple(train.targets[i] for i in more.tolist())
    return replace(dataset, train=replace(train, files=files, targets=train.targets + repeats, repeated=len(more)))


def describe_balance(dataset: Dataset, how: str) -> str:
    """Describe the effect of balancing in a sentence; empty for "none"."""
    train, names = dataset.train, dataset.classes
    if how == "none" or len(set(train.weights or Counter(train.targets[: train.images]).values()) - {0.0}) == 1:
        return "" if how == "none" else "balance: all classes have equally many images, so data.balance changes nothing"
    if how == "oversample":
        counts = np.bincount(np.array(train.targets[: train.images], np.int64))
        least = int(np.where(counts > 0, counts, len(train)).argmin())
        each = counts.max() / counts[least]
        return (
            f"balance: {train.images:,} training images make {len(train):,} samples an epoch, {counts.max():,} of "
            f"each class; the smallest, {names[least]}, has "
            f"{amount(counts[least], 'image')}, seen {each:.3g} times each"
        )
    weights = np.array(train.weights)
    low, high = int(np.where(weights > 0, weights, np.inf).argmin()), int(weights.argmax())
    return (
        f"balance: weights in the training loss are from {weights[low]:.3g} ({dataset.noun} {names[low]}) to "
        f"{weights[high]:.3g} ({dataset.noun} {names[high]}); validation is not weighted"
    )
