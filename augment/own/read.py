"""The pictures and targets of a user's own code, for the `own` source."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.check import require_readable
from augment.dataset import Dataset, Picture, Split, Task
from augment.errors import UserError
from augment.own.items import DecodedItem, ItemPicture, Items
from augment.own.named import Named
from augment.own.pixels import as_path
from augment.own.targets import OwnTargets, class_names, known_targets, same_target, understand_own
from augment.progress import progress_bar
from augment.sources.registry import DATA_DIR
from augment.targets.emptied import note_emptied

logger = logging.getLogger(__name__)

_COMPARED = 4  # items that are read to see whether a Dataset's targets are theirs
_SHOWN_FROM = 1000  # items from which on a bar is shown


def read_own(
    train: Named,
    val: Named,
    *,
    task: Task | None,
    classes: tuple[str, ...] | None,
    offset: int,
    targets: Sequence[str],
    skip_bad: bool,
    checked: bool = True,
) -> Dataset:
    """Make both sequences, and learn their targets: those known beforehand, or else by reading every item once.

    Args:
        train: what makes the sequence to learn from.
        val: what makes that to be scored on.
        task: what the targets are; None: told from them.
        classes: names of the classes; None: those that the sequences come with, else the labels themselves.
        offset: number of the first class.
        targets: names of the numbers to predict, or of labels.
        skip_bad: leave out pictures that cannot be decoded; all are read for that.
        checked: refuse, or leave out, files and what lies in memory that cannot be decoded; false: list it.

    Raises:
        UserError: the user's code fails, or gives what cannot be used.
    """
    # Both first: what is missing shall not be found out after train was read.
    both = [Items(named) for named in (train, val)]
    (train_pictures, train_targets), (val_pictures, val_targets) = map(_read, both)
    found = understand_own(train_targets, val_targets, task=task, classes=classes, offset=offset, targets=targets)
    dataset = found.of(train_pictures, val_pictures)
    if not checked:
        return dataset
    check = partial(_check, skip_bad=skip_bad)
    learned, scored = check(dataset.train, "train", both[0]), check(dataset.val, "val", both[1])
    return note_emptied(dataset, replace(dataset, train=learned, val=scored))


def _read(items: Items) -> tuple[tuple[Picture, ...], OwnTargets]:
    """Return the pictures and their targets."""
    picture, target = items.pair(0)
    kind = DecodedItem if items.given_of(picture, 0).decoded else ItemPicture
    pictures: tuple[Picture, ...] = tuple(kind(items, index) for index in range(len(items)))
    targets = known_targets(items.sequence)
    paths: list[Path | None] = []
    if targets is None or not same_target(targets[0], target) or not _same_elsewhere(items, targets):
        targets, paths = _read_all(items)
    if paths and None not in paths:
        pictures = tuple(path for path in paths if path is not None)

    def name(place: int) -> str:
        return f"{items.named.name}[{place}]"  # also of a path: it may occur twice

    return pictures, OwnTargets(items.named.key, targets, name, class_names(items.sequence))


def _same_elsewhere(items: Items, targets: Sequence[Any] | NDArray[Any]) -> bool:
    """Whether more targets than the first are those of the items: of two classes, every other one is so by chance."""
    for place in np.unique(np.linspace(0, len(items) - 1, _COMPARED).astype(np.int64))[1:].tolist():
        with suppress(UserError):  # what cannot be read is said, or skipped, where it is
            if not same_target(targets[place], items.pair(place)[1]):
                return False
    return True


def _read_all(items: Items) -> tuple[list[object], list[Path | None]]:
    """Return the targets of all items, and their pictures where these are paths."""
    targets: list[object] = []
    paths: list[Path | None] = []
    if not isinstance(items.sequence, list | tuple):
        logger.info(
            "%s has no `targets` that are those of its items: all %s items are read once, to learn them",
            items.named.name,
            f"{len(items):,}",
        )
    with progress_bar(quiet=len(items) <= _SHOWN_FROM) as progress:
        bar = progress.add_task(f"Reading {items.named.name}", total=len(items))
        for index in range(len(items)):
            picture, target = items.pair(index)
            paths.append(as_path(picture))
            targets.append(target)
            progress.advance(bar)
    return targets, paths


def _check(split: Split, name: str, items: Items, *, skip_bad: bool) -> Split:
    """Check files and what lies in memory; a Dataset's pictures are looked at when they are read, or to skip them."""
    files = isinstance(split.files[0], Path)
    if not (files or skip_bad or isinstance(items.sequence, list | tuple)):
        return split
    digest = blake2b(f"{Path.cwd()} {items.named}".encode(), digest_size=6).hexdigest()
    cache = Path(DATA_DIR) / f"checked-{digest}.json" if files else None
    return require_readable(split, name, skip_bad=skip_bad, cache=cache)
