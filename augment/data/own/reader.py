"""Read the images and targets of a user's own code, for the `own` source."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Subset

from augment.data.dataset import Dataset, ImageRef
from augment.data.own.factory import SequenceFactory, copied, describe
from augment.data.own.items import DecodedItem, ItemImage, Items, as_path
from augment.data.targets.interpretation import make_dataset
from augment.data.targets.names import Label, LabeledSplit, Labels, TargetOptions, pack
from augment.data.targets.numbers import NUMBERS
from augment.support.console import progress_bar
from augment.support.errors import UserError

logger = logging.getLogger(__name__)

ALLOWED = "a class (number or name), a list of labels, a number to predict, or an array (K,) of numbers"

# Attributes that hold the targets of all items, as torchvision's data sets have them.
_ATTRIBUTES = ("targets", "labels")

# A target in plain types: a class or number, some labels, or a row.
Plain = Label | list[Label] | NDArray[Any]

_COMPARED = 32  # items that are read to see whether a Dataset's targets are theirs; few may differ, as of merged ones
_SHOWN_FROM = 1000  # items from which a bar is shown


def read_own(factories: Sequence[SequenceFactory], options: TargetOptions) -> Dataset:
    """Make the sequences of train and val and determine their targets, if necessary by reading every item once.

    Raises:
        UserError: the user's code fails, or returns something unusable.
    """
    # All first: that val is missing should be reported before train is read.
    made = [Items(factory) for factory in factories]
    numbers = options.kind == NUMBERS or bool(options.names)
    return make_dataset([_read(items, numbers=numbers) for items in made], options)


def _read(items: Items, *, numbers: bool) -> LabeledSplit:
    """Return the images with their labels."""
    image, target = items.pair(0)
    kind = DecodedItem if isinstance(items.as_image(image, 0), np.ndarray) else ItemImage
    images: tuple[ImageRef, ...] = tuple(kind(items, index) for index in range(len(items)))
    targets = _known_targets(items.sequence)
    paths: list[Path | None] = []
    if targets is None or not _match_items(targets, items, target):
        targets, paths = _read_all(items)
    if paths and None not in paths:
        images = tuple(path for path in paths if path is not None)
    name = f"{items.factory.name}[{{}}]".format  # also of a path: it may occur twice
    try:
        labels = _labels(targets, name, numbers=numbers)
    except UserError as error:
        raise UserError(f"{items.factory.key}: {error}") from None
    return LabeledSplit(items.factory.key, images, labels, name, class_names(items.sequence))


def _match_items(targets: Sequence[Any] | NDArray[Any], items: Items, first: object) -> bool:
    """Whether targets equal those of some items, spread over all."""
    for index in np.unique(np.linspace(0, len(items) - 1, _COMPARED).astype(np.int64)).tolist():
        with suppress(UserError):  # unreadable items are reported, or skipped, later
            if not _same_target(targets[index], items.pair(index)[1] if index else first):
                return False
    return True


def _read_all(items: Items) -> tuple[list[object], list[Path | None]]:
    """Return the targets of all items, and their images where these are paths."""
    targets: list[object] = []
    paths: list[Path | None] = []
    if not isinstance(items.sequence, list | tuple):
        logger.info(
            "%s has no `targets` that match its items: all %s items are read once, to determine them",
            str(items.factory.name), f"{len(items):,}",  # text alone: the name of an object holds it
        )  # fmt: skip
    with progress_bar(quiet=len(items) <= _SHOWN_FROM) as progress:
        for index in progress.track(range(len(items)), description=f"Reading {items.factory.name}"):
            image, target = items.pair(index)
            paths.append(as_path(image))
            targets.append(copied(target))
    return targets, paths


def _known_targets(sequence: Any) -> Sequence[Any] | NDArray[Any] | None:
    """Return the targets of all items if a Dataset stores them, so that no item needs to be read."""
    if isinstance(sequence, Subset):
        whole = _known_targets(sequence.dataset)
        return None if whole is None else [whole[index] for index in sequence.indices]
    if isinstance(sequence, list | tuple) or getattr(sequence, "target_transform", None) is not None:
        return None
    for name in _ATTRIBUTES:
        found = getattr(sequence, name, None)
        if isinstance(found, torch.Tensor):
            found = found.detach().cpu().numpy()
        if isinstance(found, list | tuple | np.ndarray) and len(found) == len(sequence):
            return found
    return None


def class_names(sequence: Any) -> tuple[str, ...] | None:
    """Return the class names in a Dataset's `classes`, synonyms of a class joined; None if it has none."""
    if isinstance(sequence, Subset):
        return class_names(sequence.dataset)
    names = getattr(sequence, "classes", None)
    if not isinstance(names, list | tuple) or not names:
        return None
    try:
        joined = tuple(name if isinstance(name, str) else ", ".join(name) for name in names)
    except TypeError:  # not a name, nor some
        return None
    return joined if all(joined) and len(set(joined)) == len(joined) else None


def _same_target(one: object, other: object) -> bool:
    """Whether two targets are the same, numbers except for the rounding of float32."""
    ours, theirs = np.asarray(_plain(one)), np.asarray(_plain(other))
    if ours.dtype.kind in "biuf" and theirs.dtype.kind in "biuf" and ours.shape == theirs.shape:
        return bool(np.allclose(ours, theirs, rtol=1e-6, atol=0))
    return np.array_equal(ours, theirs)


def _labels(values: Sequence[object] | NDArray[Any], name: Callable[[int], str], *, numbers: bool) -> Labels:
    """Return the targets of a user's items as labels; `numbers`: whether the settings ask for numbers to predict.

    Raises:
        UserError: one is not a target, or they are of several kinds; the message names it and says why.
    """
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return Labels.of_rows(values)
    plain: list[Plain] = []
    for index, value in enumerate(values):
        found = _plain(value)
        if found is None:
            raise UserError(f"the target of {name(index)} is {describe(value)}. Allowed: {ALLOWED}.")
        plain.append(found)
    kinds = set(map(type, plain))
    if kinds <= {int, float}:
        return Labels.of_rows(np.array(plain))
    if np.ndarray in kinds:
        forms = [(type(value), np.shape(value)) for value in plain]
        if odd := next((index for index, form in enumerate(forms) if form != forms[0]), None):
            raise UserError(
                f"the target of {name(odd)} is of another kind, {describe(plain[odd])}, than that of "
                f"{name(0)}, {describe(plain[0])}. Allowed: arrays (K,) of one length."
            )
        return Labels.of_rows(np.array(plain))
    labels = [value if isinstance(value, list) else [value] for value in plain if not isinstance(value, np.ndarray)]
    fractions = any(isinstance(label, float) for some in labels for label in some)
    text = next((index for index, some in enumerate(labels) if any(isinstance(label, str) for label in some)), None)
    if numbers and text is not None:
        raise UserError(f"{name(text)} has the target {labels[text]}. Allowed: as many numbers each.")
    if (numbers or fractions) and text is None and len(set(map(len, labels))) == 1 and labels[0]:
        return Labels.of_rows(np.array(labels))
    return pack(labels, name)


def _plain(value: object) -> Plain | None:
    """Return a target in plain types; None if it is not one."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, np.ndarray):
        return value if value.ndim == 1 and value.dtype.kind in "biuf" and len(value) else None
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)
    if isinstance(value, list | tuple):
        labels = [_plain(label) for label in value]
        if all(isinstance(label, int | float | str) for label in labels):
            return [label for label in labels if isinstance(label, int | float | str)]
    return None
