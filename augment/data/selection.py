"""Selection of images: validation and test splits, cross-validation folds, a fraction of train, balanced classes.

With groups, all frames of a video or all images of a patient are in one split.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from augment.data.corrections import corrected
from augment.data.dataset import Dataset, Split
from augment.data.formats.folder import CUT_VAL
from augment.data.images import image_keys, known_of, take_images
from augment.support.errors import UserError
from augment.support.formatting import amount
from augment.support.seeds import derive_seed

if TYPE_CHECKING:
    from augment.data.sources.registry import Source


def join_groups(copies: Sequence[Any], groups: Sequence[Any]) -> NDArray[np.int64]:
    """Return new group numbers, (N,). Images that are copies of each other or share a group get the same number."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    numbers = [numbered(values) for values in (copies, groups)]
    size = len(numbers[0]) + len(numbers[1])
    links = coo_array((np.ones(len(copies)), (numbers[0], len(copies) + numbers[1])), shape=(size, size))
    found: NDArray[np.int64] = connected_components(links, directed=False)[1][numbers[0]]
    return np.unique(found, return_inverse=True)[1]


def distribute_groups(
    groups: NDArray[np.int64], strata: NDArray[np.int64], shares: Sequence[float], draw: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Assign whole groups to parts, so that each part gets about the same share of every stratum.

    Groups are assigned from the largest to the smallest. Each goes to the part where it increases the squared deviation
    from the expected counts the least. With one stratum, this is scikit-learn's GroupKFold.

    Args:
        groups: (N,) numbers of the groups, from 0.
        strata: (N,) numbers of the strata, from 0.
        shares: the shares of the parts, with a sum of 1.
        draw: (G,) random numbers in [0, 1), which order groups of equal size.

    Returns:
        The part of each image, (N,).
    """
    totals = np.append(np.bincount(strata), len(strata)).astype(float)
    filled, part = np.zeros((len(shares), len(totals))), np.empty(len(draw), np.int64)
    # Each group has a row per stratum, and a last row for all its images.
    columns, everything = len(totals), np.full_like(strata, len(totals) - 1)
    rows, numbers = np.unique(np.tile(groups, 2) * columns + np.append(strata, everything), return_counts=True)
    begins = np.searchsorted(rows, np.arange(len(draw) + 1) * columns).tolist()
    strata_of = rows % columns
    for number in np.lexsort((draw, -np.bincount(groups))).tolist():
        own = slice(begins[number], begins[number + 1])
        kinds, counts = strata_of[own], numbers[own]
        excess = ((2 * filled[:, kinds] + counts) * counts / totals[kinds]).sum(axis=1) / shares
        part[number] = excess.argmin()
        filled[part[number], kinds] += counts
    return part[groups]


def numbered(values: Sequence[Any]) -> NDArray[np.int64]:
    """Number the values by their first occurrence, (N,)."""
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return np.fromiter((numbers[value] for value in values), np.int64, len(values))


def take_fold(
    dataset: Dataset, *, folds: int, fold: int, seed: int, groups: Sequence[Hashable] | None = None
) -> Dataset:
    """Return a round of cross-validation over the train split: one fold becomes val, the others train.

    Fold sizes differ by at most one, both overall and within each class, if the copies of an image count once. With
    several labels per image, the images with the same rarest label are distributed evenly. The copies in
    `Dataset.copies` stay in one fold. The dataset's own val is not used.

    Args:
        dataset: the dataset.
        folds: number of folds.
        fold: the fold that becomes val, from 0.
        seed: the seed of the draw.
        groups: the group of each train image. Each group stays in one fold. Folds then have similar sizes, both overall
            and within each class.

    Raises:
        UserError: there are fewer images of a class, or fewer groups, than folds.
    """
    if groups is not None:
        return _cut(dataset, _parts(dataset, groups, [1 / folds] * folds, seed, f"folds={folds}") == fold)
    group, strata = _groups(dataset)
    least, of_class = len(strata), ""
    if dataset.kind.cuts_each:
        numbers, counts = np.unique(strata, return_counts=True)
        least, of_class = int(counts.min()), f" of {dataset.classes[int(numbers[counts.argmin()])]}"
    if least < folds:
        fix = f"Use at most {least} folds" if least > 1 else "Add images, or remove data.folds"
        raise UserError(f"data.folds={folds}: train has only {amount(least, 'image')}{of_class}. {fix}.")
    part = np.empty(len(strata), np.int64)
    part[_order(strata, seed, "folds")] = np.arange(len(strata)) % folds
    return _cut(dataset, (part == fold)[group])


def take_val(
    dataset: Dataset,
    *,
    fraction: float,
    seed: int,
    groups: Sequence[Hashable] | None = None,
    name: str = "val",
    rest: float = 1.0,
) -> Dataset:
    """Return the dataset with a fraction of its train split as val, and the rest as train.

    The fraction of each class is rounded, but a class with several images has at least one in each split. With several
    labels per image, the fraction is about the same for all images with the same rarest label. The copies in
    `Dataset.copies` stay in one split. The dataset's own val is not used.

    Args:
        dataset: the dataset.
        fraction: the fraction.
        seed: the seed of the draw.
        groups: the group of each train image. Each group stays in one split, so the fraction is only approximate.
        name: val or test. Each has its own draw.
        rest: the share of all images that train holds. The fraction refers to all images.

    Raises:
        UserError: there are too few images or groups.
    """
    key, fraction = f"{name}_fraction={fraction:g}", fraction / rest
    if groups is not None:
        shares, draw = [1 - fraction, fraction], "groups" if name == "val" else "test groups"
        return _cut(dataset, _parts(dataset, groups, shares, seed, key, draw) == 1)
    group, strata = _groups(dataset)
    if dataset.kind.cuts_each:
        counts = np.bincount(strata)
        share = np.clip(np.rint(fraction * counts), 1, np.maximum(counts - 1, 0)) * (counts > 1)
        scored = rank_within(strata, seed, name) < share[strata]
    else:
        # Spread val evenly over the strata. Many of them have a single image.
        numbers = np.arange(len(strata) + 1)
        scored = np.zeros(len(strata), np.bool_)
        scored[_order(strata, seed, name)] = np.diff(np.floor(numbers * fraction + 0.5)) > 0
    if not scored.any() or scored.all():
        fix = "Add images, so that a class has at least two" if dataset.kind.cuts_each else "Add images"
        numeric = dataset.kind.cuts_each and all(map(str.isdecimal, dataset.classes))
        hint = " To predict numbers, set data.task=regress." if numeric else ""
        raise UserError(f"data.{key} leaves a split empty. {fix}, or change the fraction.{hint}")
    return _cut(dataset, scored[group])


def cut_val(source: Source, dataset: Dataset) -> Dataset:
    """Cut the test split and val from a source's train split. Then correct the labels of train.

    With this order, the same images are scored with and without corrections.
    """
    return corrected(_cut_splits(source, dataset), source.labels, dataset)


def _cut_splits(source: Source, dataset: Dataset) -> Dataset:
    """Cut the test split and val from a source's train split.

    The test split is drawn from all images, so it is the same for all folds and all values of `val_fraction`. Its
    images are dropped, unless `Source.with_test` asked for them. Then they become val.
    """
    seed, groups, rest = source.split_seed, None, 1.0
    if source.group is not None:
        if not source.cuts_val and source.test_fraction is None:
            raise UserError(
                f"data.group={source.group} has no effect, because the validation split is not cut from train. Add "
                f"{CUT_VAL}."
            )
        groups = source.groups(dataset.train.files)
    if source.test_fraction is not None:
        with_test = take_val(dataset, fraction=source.test_fraction, seed=seed, groups=groups, name="test")
        if source.split_names[1] == "test":
            return with_test
        dataset, rest = replace(dataset, train=with_test.train), 1 - source.test_fraction
        groups = None if groups is None else source.groups(dataset.train.files)
    if source.folds is not None and source.fold is not None:
        return take_fold(dataset, folds=source.folds, fold=source.fold, seed=seed, groups=groups)
    if source.val_fraction is not None:
        return take_val(dataset, fraction=source.val_fraction, seed=seed, groups=groups, rest=rest)
    return dataset


def _parts(
    dataset: Dataset, groups: Sequence[Hashable], shares: Sequence[float], seed: int, key: str, draw: str = "groups"
) -> NDArray[np.int64]:
    """Return the part of each train image, (N,). Images of a group, and copies of an image, are in one part."""
    kind = dataset.kind
    group = join_groups(_copy_keys(dataset), groups)
    strata = kind.strata(dataset.train.targets) if kind.cuts_each else np.zeros(len(dataset.train), np.int64)
    count = len(np.unique(group))
    part = distribute_groups(group, strata, shares, _draw(count, seed, draw)) if count else group
    if len(np.unique(part)) < len(shares):
        raise UserError(
            f"data.{key}: data.group forms only {amount(count, 'group')}, too few for {len(shares)} parts. Use "
            "smaller groups, fewer folds, or a larger fraction."
        )
    return part


def _groups(dataset: Dataset) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Group the train images that must stay in one split.

    Returns:
        The group of each image, (N,), and the stratum of each group's first image, (G,).
    """
    group = numbered(_copy_keys(dataset))
    first = np.unique(group, return_index=True)[1].tolist()
    return group, dataset.kind.strata([dataset.train.targets[index] for index in first])


def _copy_keys(dataset: Dataset) -> list[Any]:
    """Return keys that are equal for repeated train images and for the copies in `Dataset.copies`."""
    same = image_keys(dataset.train.files)
    for index, group in known_of(dataset.train.files, dataset.copies).items():
        same[index] = group
    return same


def _cut(dataset: Dataset, scored: NDArray[np.bool_]) -> Dataset:
    """Return the dataset with the train images that are `scored`, (N,), as val."""
    train, val = (take(dataset.train, np.flatnonzero(which)) for which in (~scored, scored))
    return replace(dataset, train=train, val=replace(val, foreign=()))


def take_fraction(dataset: Dataset, *, fraction: float, seed: int) -> Dataset:
    """Return the dataset with a fraction of its train split. A larger fraction contains every smaller one.

    A class keeps its rounded fraction, and at least one image. With several labels per image, each set of labels keeps
    about its fraction. For regression, the choice is random.
    """
    strata = dataset.kind.strata(dataset.train.targets)
    if dataset.kind.many_strata:
        # Multiples of the golden ratio are evenly spread positions in the order, for any number of images. Keeping at
        # least one image of each set of labels would keep too many.
        spread = np.argsort(np.arange(len(strata)) * ((5**0.5 - 1) / 2) % 1, kind="stable")
        keep = np.sort(_order(strata, seed, "fraction")[spread[: max(1, round(fraction * len(strata)))]])
    else:
        share = np.maximum(1, np.rint(fraction * np.bincount(strata)))
        keep = np.flatnonzero(rank_within(strata, seed, "fraction") < share[strata])
    return replace(dataset, train=take(dataset.train, keep))


def take(split: Split, indices: NDArray[np.int64]) -> Split:
    """Return a split with only the images at some indices."""
    targets = tuple(split.targets[index] for index in indices.tolist())
    return replace(split, files=take_images(split.files, indices), targets=targets, repeated=0)


def take_some(split: Split, count: int, seed: int) -> Split:
    """Return a split with `count` randomly chosen images, in order, or with all images if there are fewer."""
    if count >= len(split):
        return split
    return take(split, np.sort(np.argsort(_draw(len(split), seed, "some"))[:count]))


def rank_within(strata: NDArray[np.int64], seed: int, what: str) -> NDArray[np.int64]:
    """Return the position of each image within its stratum, in a random order."""
    order, counts = _order(strata, seed, what), np.bincount(strata)
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order)) - (np.cumsum(counts) - counts)[strata[order]]
    return ranks


def _draw(count: int, seed: int, what: str) -> NDArray[np.float64]:
    """Return random numbers in [0, 1) that depend on the seed and their purpose."""
    return np.random.Generator(np.random.Philox(key=derive_seed(seed, what))).random(count)


def _order(strata: NDArray[np.int64], seed: int, what: str) -> NDArray[np.int64]:
    """Return the indices of images, stratum by stratum, in random order within each stratum."""
    return np.lexsort((_draw(len(strata), seed, what), strata))


def balanced(dataset: Dataset, how: str, seed: int) -> Dataset:
    """Balance the classes of train as `how`, the value of data.balance, specifies."""
    if how == "weights":
        weights = dataset.kind.loss_weights(dataset.train.targets, len(dataset.classes))
        return replace(dataset, train=replace(dataset.train, weights=tuple(weights.tolist())))
    return oversample(dataset, seed) if how == "oversample" else dataset


def oversample(dataset: Dataset, seed: int) -> Dataset:
    """Repeat training images until every class has as many samples as the largest class.

    The repeat counts within a class differ by at most one. The seed decides which images get one more. Repetitions
    follow all images, so that images keep their indices. Classes without images stay empty.
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
    """Describe the effect of balancing in a sentence. Empty for "none"."""
    train = dataset.train
    if how == "oversample":
        return f"balance: {train.images:,} training images, {len(train):,} samples per epoch, the same number per class"
    if how == "none":
        return ""
    weighted = sorted((w, name) for w, name in zip(train.weights, dataset.classes, strict=True) if w)
    low, high = (f"{w:.3g} ({dataset.kind.noun} {name})" for w, name in (weighted[0], weighted[-1]))
    return f"balance: weights in the training loss are from {low} to {high}. Validation is not weighted"
