"""Read masks, boxes and points of a user's own code, for the `own` source."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from augment.data.dataset import NO_VAL, Dataset, ImageRef, Split
from augment.data.faults import DECODER_ERRORS
from augment.data.formats.objects import flip_pairs_of
from augment.data.own.factory import SequenceFactory, describe
from augment.data.own.items import DecodedItem, ItemImage, Items, as_path
from augment.data.own.reader import class_names
from augment.data.targets.boxes import BACKGROUND, BOXES, Boxes, joined_masks
from augment.data.targets.keypoints import KEYPOINTS, Keypoints
from augment.data.targets.kind import Kind
from augment.data.targets.masks import MASKS, MaskFile
from augment.data.targets.names import TargetOptions
from augment.data.targets.spatial import IGNORE
from augment.support.console import progress_bar
from augment.support.errors import UserError

_SHOWN_FROM = 1000  # items from which a bar is shown
_ALLOWED = {
    "segment": "a mask: a path, a Pillow image of mode L or P, or an array (height, width) of labels 0 to 255",
    "detect": 'a dict with "boxes", (K, 4), and "labels", (K,), from 1; perhaps "iscrowd", "difficult" and "masks"',
    "keypoints": "points, (P, 2) or (P, 3) with visibility",
}


@dataclass(frozen=True)
class ItemMask:
    """The mask of an item, or that of its objects from their masks, (K, height, width); read when it is needed."""

    items: Items
    index: int
    classes: int = IGNORE
    kept: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The name of the factory and the index."""
        return f"{self.items.factory.name}[{self.index}]"

    def __str__(self) -> str:
        return self.name

    def read(self) -> NDArray[np.uint8]:
        """Return the labels, (height, width)."""
        try:
            return self.items.target(self.index, lambda target: _mask(target, self.classes))
        except UserError as error:
            raise self.items.error(self.index, f"has {_plain(error)}.") from None


def read_spatial(factories: Sequence[SequenceFactory], options: TargetOptions, *, with_masks: bool) -> Dataset:
    """Make the sequences of train and val and read the targets of their items, but keep no masks.

    Args:
        factories: of train, and of val if there is one.
        options: the kind of targets, and names of classes or points.
        with_masks: whether boxes have masks of instances.

    Raises:
        UserError: the user's code fails, or item 0 has no such target; others are faults of their images.
    """
    kind: Kind = options.kind or MASKS
    made = [Items(factory) for factory in factories]
    names = options.classes or class_names(made[0].sequence) or ()
    names = names[1:] if kind == BOXES and names[:1] in ((BACKGROUND,), ("__background__",)) else names
    read = [_read(items, kind, len(names), with_masks=with_masks) for items in made]
    if kind == KEYPOINTS:
        count = len(read[0][1][0])
        names = names or tuple(map(str, range(count)))
        kind = Keypoints(flip_pairs_of(names))
    else:
        names = names or tuple(str(label) for label in range(kind == BOXES, max(highest for *_, highest in read) + 1))
    if kind == BOXES:
        kind = Boxes(options.names, flip_pairs_of(options.names))
    blank = kind.blank(len(names))
    splits = [
        Split(tuple(images), tuple(blank if target is None else target for target in targets), kind)
        for images, targets, *_ in read
    ]
    faults = {image: fault for _, _, faults, _ in read for image, fault in faults.items()}
    classes = (BACKGROUND, *names) if kind == BOXES else names
    for key, split in zip([factory.key for factory in factories], splits, strict=True):
        if fault := kind.fault(split.targets, len(classes)):
            raise UserError(f"{key}: has the target {fault}")
    return Dataset(classes, splits[0], splits[1] if len(splits) > 1 else NO_VAL, faults=faults)


def _read(
    items: Items, kind: Kind, classes: int, *, with_masks: bool
) -> tuple[list[ImageRef], list[Any], dict[ImageRef, str], int]:
    """Return the images, their targets, what is wrong with some, and the highest label."""
    first = items.pair(0)[0]
    form = DecodedItem if isinstance(items.as_image(first, 0), np.ndarray) else ItemImage
    images: list[ImageRef] = [form(items, index) for index in range(len(items))]
    if kind == MASKS and classes and not as_path(first):  # nothing needs to be known of the items
        return images, [ItemMask(items, index, classes) for index in range(len(items))], {}, classes - 1
    targets: list[Any] = []
    faults: dict[ImageRef, str] = {}
    highest = -1
    with progress_bar(quiet=len(items) <= _SHOWN_FROM) as progress:
        for index in progress.track(range(len(items)), description=f"Reading {items.factory.name}"):
            image, given = items.pair(index)
            images[index] = as_path(image) or images[index]
            try:
                found, label = _target(items, index, given, kind, classes, with_masks)
                highest = max(highest, label)
            except UserError as error:
                if not index:
                    raise items.error(index, f"has {_plain(error)}. Allowed: {_ALLOWED[kind.task]}.") from None
                found = None
                faults[images[index]] = f"has {_plain(error)}"
            targets.append(found)
    return images, targets, faults, highest


def _target(items: Items, index: int, given: Any, kind: Kind, classes: int, with_masks: bool) -> tuple[Any, int]:
    """Return the target of an item, and its highest label."""
    if kind == MASKS:
        path = as_path(given)
        mask = MaskFile(path, classes=classes or IGNORE) if path else ItemMask(items, index, classes or IGNORE)
        if classes:
            return mask, classes - 1
        labels = mask.read() if path else _mask(given, IGNORE)
        return mask, int(labels[labels != IGNORE].astype(np.int64).max(initial=-1))
    if kind == BOXES:
        if not isinstance(given, dict):
            raise UserError(f"for a target {describe(given)}.")
        # Masks are joined when they are needed.
        ((found, _),) = BOXES.given([{"image_id": index} | {key: given[key] for key in given if key != "masks"}], 1)
        if len(found) and found.labels.min() < 1:
            raise UserError(f"the label {found.labels.min()}, where 0 is the background.")
        if with_masks and len(given.get("masks", ())) != len(found):
            raise UserError(f"{len(given.get('masks', ()))} masks for {len(found)} boxes.")
        made = replace(found, instances=ItemMask(items, index)) if with_masks else found
        return made, int(found.labels.max(initial=0))
    points: NDArray[np.float32] = KEYPOINTS.given([given], 1)[0]
    points = np.where(np.isfinite(points[:, :2]).all(axis=1, keepdims=True), points, 0)
    return tuple(map(tuple, points.tolist())), -1


def _mask(given: Any, classes: int) -> NDArray[np.uint8]:
    """Return labels, (height, width), of an array, an image, or a dict with the masks of objects."""
    if isinstance(given, dict):
        return joined_masks(given["masks"], "masks")
    if isinstance(given, Image.Image):
        if given.mode not in ("1", "L", "P"):
            raise UserError(f"a mask of mode {given.mode}. Allowed: one label a pixel, mode L or P.")
        try:
            given = np.asarray(given, np.uint8)
        except DECODER_ERRORS as error:  # Pillow reads a file when its pixels are needed
            raise UserError(f"a mask that cannot be read: {error}.") from error
    (runs,) = MASKS.given([given[0] if getattr(given, "shape", ())[:-2] == (1,) else given], 1)
    labels: NDArray[np.uint8] = runs.whole.reshape(runs.size)
    beyond = (labels >= classes) & (labels != IGNORE)
    if beyond.any():
        raise UserError(
            f"the label {labels[beyond][0]} in its mask. Allowed: 0 to {classes - 1}, and {IGNORE} for none."
        )
    return labels


def _plain(error: UserError) -> str:
    """Return an error about the only one of some targets, as the end of a sentence."""
    return str(error).removeprefix("targets[0]").lstrip(".: ").rstrip(".")
