"""Read the images and targets of the user's code, for the source `own`."""

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Subset

from augment.data.dataset import NO_VAL, Dataset, ImageRef, Split
from augment.data.image_faults import DECODER_ERRORS
from augment.data.images import TURNED, is_turned
from augment.data.own.factory import SequenceFactory, describe
from augment.data.own.prefetch import Items, as_path
from augment.data.own.random_items import check_repeatable
from augment.data.targets.boxes import BACKGROUND, BACKGROUNDS, BOXES, Boxes, joined_masks
from augment.data.targets.class_names import Label, LabeledSplit, Labels, TargetOptions, given_names, pack
from augment.data.targets.interpretation import make_dataset
from augment.data.targets.keypoints import KEYPOINTS, Keypoints, pair_points
from augment.data.targets.kind import Kind, known_kinds
from augment.data.targets.masks import MASKS, MaskFile, describe_gaps, reject_lossy
from augment.data.targets.regression import NUMBERS
from augment.data.targets.spatial import IGNORE
from augment.support.errors import UserError
from augment.support.formatting import amount

ALLOWED_TARGETS = "a class (number or name), a list of labels, a number to predict, or an array (K,) of numbers"

# A target in plain types: a class or number, some labels, or a row.
PlainTarget = Label | list[Label] | NDArray[Any]

_COMPARED = 32  # items to compare with a Dataset's `targets`. In a merged dataset, only a few may differ


def read_own(factories: Sequence[SequenceFactory], options: TargetOptions) -> Dataset:
    """Create the sequence of each split, and determine its targets, if necessary by reading every item once.

    Raises:
        UserError: the user's code fails, or returns something unusable.
    """
    # Create all sequences first, so that a missing validation split is reported before training items are read.
    splits = [Items(factory) for factory in factories]
    numbers = options.task == NUMBERS.task or bool(options.names)
    dataset = make_dataset([_read(items, numbers=numbers) for items in splits], options)
    return dataset.noting(*map(check_repeatable, splits))


def _read(items: Items, *, numbers: bool) -> LabeledSplit:
    image, target = items.pair(0)
    image_class = items.image_class(image)
    images: tuple[ImageRef, ...] = tuple(image_class(items, index) for index in range(len(items)))
    targets = _known_targets(items.sequence)
    paths: list[Path | None] = []
    if targets is None or not _match_items(targets, items, target):
        targets, paths = _read_all(items)
    if paths and None not in paths:
        images = tuple(path for path in paths if path is not None)
    name = f"{items.factory.name}[{{}}]".format  # names items by index, because a path may occur twice
    try:
        labels = _labels(targets, name, numbers=numbers)
    except UserError as error:
        raise UserError(f"{items.factory.key}: {error}") from None
    return LabeledSplit(items.factory.key, images, labels, name, dataset_class_names(items.sequence))


def _match_items(targets: Sequence[Any] | NDArray[Any], items: Items, first: object) -> bool:
    """Whether some evenly spaced items have these targets. `first` is the target of item 0."""
    for index in np.unique(np.linspace(0, len(items) - 1, _COMPARED).astype(np.int64)).tolist():
        with suppress(UserError):  # bad items are reported, or skipped, later
            if not _same_target(targets[index], items.pair(index)[1] if index else first):
                return False
    return True


def _read_all(items: Items) -> tuple[list[object], list[Path | None]]:
    """Return the targets of all items, and the paths of their images or None."""
    targets: list[object] = []
    paths: list[Path | None] = []
    if not isinstance(items.sequence, list | tuple):
        logging.getLogger(__name__).info(
            "%s has no `targets` that match its items. All %s items are read once to determine them",
            str(items.factory.name), f"{len(items):,}",  # as text, because an `ObjectName` would keep its object alive
        )  # fmt: skip
    for _, image, target in items.pairs():
        paths.append(as_path(image))
        # The next item may reuse the memory of an array or tensor. deepcopy would also copy the base of a view.
        own = np.array(target) if isinstance(target, np.ndarray) else target
        targets.append(own.clone() if isinstance(own, torch.Tensor) else own)
    return targets, paths


def _known_targets(sequence: Any) -> Sequence[Any] | NDArray[Any] | None:
    """Return the targets of all items if a Dataset stores them."""
    if isinstance(sequence, Subset):
        targets = _known_targets(sequence.dataset)
        return None if targets is None else [targets[index] for index in sequence.indices]
    if isinstance(sequence, list | tuple) or getattr(sequence, "target_transform", None) is not None:
        return None
    for name in ("targets", "labels"):  # as in torchvision's datasets
        found = getattr(sequence, name, None)
        if isinstance(found, torch.Tensor):
            found = found.detach().cpu().numpy()
        if isinstance(found, list | tuple | np.ndarray) and len(found) == len(sequence):
            return found
    return None


def dataset_class_names(sequence: Any) -> tuple[str, ...] | None:
    """Return the class names in a Dataset's `classes`, with synonyms of a class joined, or None."""
    if isinstance(sequence, Subset):
        return dataset_class_names(sequence.dataset)
    names = getattr(sequence, "classes", None)
    if not isinstance(names, list | tuple) or not names:
        return None
    try:
        joined = tuple(name if isinstance(name, str) else ", ".join(name) for name in names)
    except TypeError:  # neither a name nor a list of names
        return None
    return joined if all(joined) and len(set(joined)) == len(joined) else None


def _same_target(one: object, other: object) -> bool:
    """Whether two targets are equal, apart from float32 rounding."""
    ours, theirs = np.asarray(_plain(one)), np.asarray(_plain(other))
    if ours.dtype.kind in "biuf" and theirs.dtype.kind in "biuf" and ours.shape == theirs.shape:
        return bool(np.allclose(ours, theirs, rtol=1e-6, atol=0))
    return np.array_equal(ours, theirs)


def _labels(values: Sequence[object] | NDArray[Any], name: Callable[[int], str], *, numbers: bool) -> Labels:
    """Pack the targets of items. `numbers` states whether the settings ask for numbers to predict.

    Raises:
        UserError: a value is not a target, or targets are of several kinds.
    """
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return Labels.of_rows(values)
    plain: list[PlainTarget] = []
    for index, value in enumerate(values):
        found = _plain(value)
        if found is None:
            raise UserError(f"the target of {name(index)} is {describe(value)}. Allowed: {ALLOWED_TARGETS}.")
        plain.append(found)
    kinds = set(map(type, plain))
    packed = pack([value if isinstance(value, list) else np.atleast_1d(value).tolist() for value in plain], name)
    # A list of numbers is also a row if the numbers are to be predicted.
    predicted = numbers or (packed.values.dtype.kind == "f" and len(np.unique(packed.counts)) == 1)
    return replace(packed, rows=np.ndarray in kinds or kinds <= {int, float} or predicted)


def _plain(value: object) -> PlainTarget | None:
    """Convert a target to plain types. Return None for anything else."""
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


_ALLOWED = {
    "segment": "a mask: a path, a Pillow image of mode L or P, or an array (height, width) of labels 0 to 255",
    "detect": 'a dict with "boxes", (K, 4), and "labels", (K,), from 1, and optionally "iscrowd", "difficult", "masks"',
    "keypoints": "points, (P, 2) or (P, 3) with visibility",
}


@dataclass(frozen=True)
class ItemMask:
    """The mask of an item, or the mask joined from its objects' masks, (K, height, width). It is read when needed."""

    items: Items
    index: int
    classes: int = IGNORE
    kept: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return f"{self.items.factory.name}[{self.index}]"

    def __str__(self) -> str:
        return self.name

    def read(self) -> NDArray[np.uint8]:
        """Return the labels, (height, width)."""
        return self.items.read(self.index, self._read)

    def _read(self, image: object, target: object) -> NDArray[np.uint8]:
        if is_turned(image):
            raise self.items.error(self.index, f"is {TURNED}")
        try:
            return _mask(target, self.classes)
        except UserError as error:
            raise self.items.error(self.index, f"has {_ending(error)}.") from None


def read_spatial(
    factories: Sequence[SequenceFactory],
    options: TargetOptions,
    *,
    with_masks: bool,
    flip_pairs: Sequence[Sequence[str]] | None = None,
) -> Dataset:
    """Create the sequence of each split, and read the targets of its items. Masks are read again when needed.

    A bad target is a fault of its image, except for item 0.

    Args:
        factories: the factory of train, and of val if there is one.
        options: the task, and the names of classes or keypoints.
        with_masks: whether boxes have instance masks.
        flip_pairs: pairs of keypoints that swap in a mirrored image. Default: determined from their names.

    Raises:
        UserError: the user's code fails, or item 0 has no such target.
    """
    kind: Kind = known_kinds().get(options.task, MASKS)
    sequences = [Items(factory) for factory in factories]
    random_notices = [check_repeatable(items) for items in sequences]
    names = given_names([dataset_class_names(items.sequence) for items in sequences], options) or ()
    if kind == BOXES and names and names[0] in BACKGROUNDS:
        names = names[1:]
    read = [_read_targets(items, kind, len(names), with_masks=with_masks) for items in sequences]
    notice = ""
    if kind == KEYPOINTS:
        names = options.names or names or tuple(map(str, range(len(read[0].targets[0]))))
        kind = Keypoints(pair_points(flip_pairs, names))
    else:
        labels = set[int]().union(*(split.labels for split in read))
        if not names and kind != BOXES:
            if max(labels, default=0) < 1 and not any(split.faults for split in read):
                raise UserError(
                    f"{factories[0].key}: masks have no label except 0, so there is nothing to learn. {IGNORE} is "
                    "ignored. Return 1 and so on for objects."
                )
            notice = describe_gaps(labels, "number the classes without gaps in your code")
        names = names or tuple(str(label) for label in range(kind == BOXES, max(labels, default=-1) + 1))
    classes = names
    if kind == BOXES:
        kind = _kind_of_boxes(read, options.names, flip_pairs)
        classes = (BACKGROUND, *names)
    blank = kind.blank(len(names))
    splits = [_split_of(factory, own, kind, blank, classes) for factory, own in zip(factories, read, strict=True)]
    faults = {image: fault for own in read for image, fault in own.faults.items()}
    dataset = Dataset(classes, splits[0], splits[1] if len(splits) > 1 else NO_VAL, faults=faults)
    return dataset.noting(*random_notices, notice)


class _Targets(NamedTuple):
    """The images of a split and their targets."""

    images: list[ImageRef]
    targets: list[Any]  # one per image, None for an image with a fault
    faults: dict[ImageRef, str]
    labels: set[int]  # all labels in the targets, or only the highest label


def _split_of(factory: SequenceFactory, read: _Targets, kind: Kind, blank: Any, classes: Sequence[str]) -> Split:
    """Return a split. Images with a fault get a blank target."""
    targets = tuple(blank if target is None else target for target in read.targets)
    if fault := kind.fault(targets, len(classes)):
        raise UserError(f"{factory.key}: has the target {fault}")
    return Split(tuple(read.images), targets, kind)


def _kind_of_boxes(
    read: Sequence[_Targets], names: tuple[str, ...], flip_pairs: Sequence[Sequence[str]] | None
) -> Boxes:
    """Return the kind of objects, which may have keypoints."""
    objects = [found for split in read for found in split.targets if found is not None and len(found)]
    count = next((found.points.shape[1] for found in objects if found.points is not None), 0)
    if names and count not in (0, len(names)):
        raise UserError(f"data.targets: {amount(len(names), 'name')}. Allowed: {count}, one for each keypoint.")
    return Boxes(names, pair_points(flip_pairs, names or tuple(map(str, range(count)))))


def _read_targets(items: Items, kind: Kind, classes: int, *, with_masks: bool) -> _Targets:
    """Read the targets of all items. Masks with known classes are not read yet."""
    first, _ = items.pair(0)
    image_class = items.image_class(first)
    read = _Targets([image_class(items, index) for index in range(len(items))], [], {}, set())
    if kind == MASKS and classes and not as_path(first):
        masks = [ItemMask(items, index, classes) for index in range(len(items))]
        return read._replace(targets=masks, labels={classes - 1})
    for index, image, given in items.pairs():
        file = read.images[index] = as_path(image) or read.images[index]
        target = None
        try:
            target, labels = _target(items, index, given, kind, classes, with_masks)
            read.labels.update(labels)
            if is_turned(image):
                read.faults[file] = f"is {TURNED.rstrip('.')}"
        except UserError as error:
            if not index:
                raise items.error(index, f"has {_ending(error)}. Return {_ALLOWED[kind.task]}.") from None
            read.faults[file] = f"has {_ending(error)}"
        read.targets.append(target)
    return read


def _target(
    items: Items, index: int, given: Any, kind: Kind, classes: int, with_masks: bool
) -> tuple[Any, Collection[int]]:
    """Return the target of an item, and its labels."""
    if kind == MASKS:
        path = as_path(given)
        mask = MaskFile(path, classes=classes or IGNORE) if path else ItemMask(items, index, classes or IGNORE)
        if classes:
            return mask, {classes - 1}
        labels = mask.read() if path else _mask(given, IGNORE)
        return mask, np.flatnonzero(np.bincount(labels.ravel(), minlength=IGNORE + 1)[:IGNORE]).tolist()
    if kind == BOXES:
        if not isinstance(given, dict):
            raise UserError(f"as its target {describe(given)}.")
        # Masks are joined when they are needed.
        entries = {"image_id": index} | {key: value for key, value in given.items() if key != "masks"}
        ((found, _),) = BOXES.from_memory([entries], 1)
        if len(found) and found.labels.min() < 1:
            raise UserError(f"the label {found.labels.min()}, but labels of objects begin at 1.")
        if with_masks and len(given.get("masks", ())) != len(found):
            raise UserError(f"{len(given.get('masks', ()))} masks for {len(found)} boxes.")
        objects = replace(found, instances=ItemMask(items, index)) if with_masks else found
        return objects, {0, *found.labels.tolist()}
    points: NDArray[np.float32] = KEYPOINTS.from_memory([given], 1)[0]
    points = np.where(np.isfinite(points[:, :2]).all(axis=1, keepdims=True), points, 0)
    return tuple(map(tuple, points.tolist())), ()


def _mask(given: Any, classes: int) -> NDArray[np.uint8]:
    """Return the labels, (height, width), in an array, an image, or a dict with the masks of objects."""
    if isinstance(given, dict):
        return joined_masks(given["masks"], "masks")
    if isinstance(given, Image.Image):
        if given.mode not in ("1", "L", "P"):
            raise UserError(f"a mask of mode {given.mode}. Allowed: mode L or P, with one label per pixel.")
        try:
            reject_lossy(given, "a file")
            given = np.asarray(given, np.uint8)
        except DECODER_ERRORS as error:  # Pillow reads pixels only when they are needed
            raise UserError(f"a mask that cannot be read: {error}.") from error
    if getattr(given, "shape", ())[:-2] == (1,):  # (1, height, width)
        given = given[0]
    (runs,) = MASKS.from_memory([given], 1)
    labels: NDArray[np.uint8] = runs.whole.reshape(runs.size)
    beyond = (labels >= classes) & (labels != IGNORE)
    if beyond.any():
        raise UserError(
            f"the label {labels[beyond][0]} in its mask. Allowed: 0 to {classes - 1}, and {IGNORE} for ignored pixels."
        )
    return labels


def _ending(error: UserError) -> str:
    """Return the message of an error about a single target, without "targets" or "targets[0]", and the period."""
    return str(error).removeprefix("targets").removeprefix("[0]").lstrip(".: ").rstrip(".")
