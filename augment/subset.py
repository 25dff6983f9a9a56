"""Which of a dataset's pictures are used: the folds of cross-validation, and a share of the training pictures."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from augment.dataset import Dataset, Split, Target, Task
from augment.errors import UserError
from augment.sampler import derive_seed
from augment.wording import amount

_GOLDEN = (5**0.5 - 1) / 2


def take_fold(dataset: Dataset, *, folds: int, fold: int, seed: int) -> Dataset:
    """Return a round of cross-validation over the train split: one fold is to be scored on, the others are learned.

    Each class has equally many pictures in every fold, up to one, and so have the folds. Of several labels, pictures
    whose rarest label is the same are dealt out one after the other. The dataset's own val has no part in it.

    Args:
        dataset: whose train split is cut.
        folds: how many.
        fold: which one is scored on, from 0.
        seed: of the cut.

    Raises:
        UserError: a class has fewer pictures than there are folds.
    """
    train = dataset.train
    # A list may name a picture several times: it must not be learned and scored on.
    places = {picture: place for place, picture in reversed(list(enumerate(train.files)))}
    first = np.sort(np.fromiter(places.values(), np.int64, len(places)))
    strata = _strata([train.targets[place] for place in first.tolist()], dataset.task)
    _check_folds(strata, folds, dataset)
    part = np.empty(len(train), np.int64)
    part[first[_order(strata, seed, "folds")]] = np.arange(len(first)) % folds
    part = part[[places[picture] for picture in train.files]]
    return replace(
        dataset, train=take(train, np.flatnonzero(part != fold)), val=take(train, np.flatnonzero(part == fold))
    )


def take_fraction(dataset: Dataset, *, fraction: float, seed: int) -> Dataset:
    """Return the dataset with a share of its train split, in which a larger share has all pictures of a smaller one.

    A class keeps its share, rounded, and at least one picture. Of several labels, each set of labels keeps about its
    share; of numbers, any pictures are left out.

    Args:
        dataset: whose train split is thinned.
        fraction: in (0, 1].
        seed: of the choice.
    """
    strata = _strata(dataset.train.targets, dataset.task)
    order = _order(strata, seed, "fraction")
    places = np.arange(len(order))
    if dataset.task == "multilabel":
        # Multiples of the golden ratio are spread evenly over any stretch of the order, however many are taken: most
        # sets of labels are rare, and a picture of each would be too many.
        keep = order[np.argsort(places * _GOLDEN % 1, kind="stable")[: max(1, round(fraction * len(order)))]]
    else:
        counts = np.bincount(strata)
        rank = places - (np.cumsum(counts) - counts)[strata[order]]
        keep = order[rank < np.maximum(1, np.rint(fraction * counts))[strata[order]]]
    return replace(dataset, train=take(dataset.train, np.sort(keep)))


def take(split: Split, places: NDArray[np.int64]) -> Split:
    """Return the pictures of a split at some places."""
    chosen = places.tolist()
    return Split(tuple(split.files[i] for i in chosen), tuple(split.targets[i] for i in chosen))


def draw(count: int, seed: int, what: str) -> NDArray[np.float64]:
    """Return numbers in [0, 1) that depend on the seed and what they are for."""
    return np.random.Generator(np.random.Philox(key=derive_seed(seed, what))).random(count)


def _order(strata: NDArray[np.int64], seed: int, what: str) -> NDArray[np.int64]:
    """Return the places of pictures, stratum by stratum, in a random order in each."""
    return np.lexsort((draw(len(strata), seed, what), strata))


def _strata(targets: Sequence[Target], task: Task) -> NDArray[np.int64]:
    """Return for each picture the number of what it shares with others: its class, or its set of labels."""
    if task == "classify":
        return np.array(targets, np.int64)
    if task == "regress":
        return np.zeros(len(targets), np.int64)
    sets = Counter(targets)
    having = np.array(list(sets)) > 0.5
    rarity = np.argsort(np.argsort(np.array(list(sets.values())) @ having, kind="stable"))
    # By the rarest label first, which is the one that may end up in too few folds (Sechidis et al. 2011).
    keys = [tuple(sorted(rarity[row].tolist())) for row in having]
    number = {labels: place for place, (_, labels) in enumerate(sorted(zip(keys, sets, strict=True)))}
    return np.array([number[labels] for labels in targets], np.int64)


def _check_folds(strata: NDArray[np.int64], folds: int, dataset: Dataset) -> None:
    least, of_class = len(strata), ""
    if dataset.task == "classify":
        numbers, counts = np.unique(strata, return_counts=True)
        least, of_class = int(counts.min()), f" of {dataset.classes[int(numbers[counts.argmin()])]}"
    if least < folds:
        pictures = f"{amount(least, 'picture')}{of_class}"
        allowed = f"2 to {least}" if least > 2 else "2" if least == 2 else "null, for each fold needs one of each class"
        raise UserError(f"data.folds={folds}: train has {pictures}. Allowed: {allowed}.")
