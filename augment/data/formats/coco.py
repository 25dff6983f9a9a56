"""Read COCO's JSON: boxes, outlines and keypoints of objects.

Format: cocodataset.org/#format-data. The category with the lowest id has label 1, the next one label 2, and so on.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from augment.data.formats.annotations import AnnotatedImage, AnnotatedObject, WantedTargets
from augment.data.formats.polygons import FAR, Shape, read_polygons, read_runs
from augment.data.formats.text_files import read_text, whole_number
from augment.support.errors import UserError, nearest
from augment.support.formatting import amount

_LISTS = ("images", "annotations", "categories")

# Exceptions from reading a malformed entry.
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, OverflowError)

# The normalized id of an image or a category, see `identity_of`.
Id = int | str


@dataclass(frozen=True)
class CocoFile:
    """An annotation file.

    Attributes:
        key: the setting that names the file, for messages.
        categories: the names of the categories by their ids, in ascending order.
        points: the names of the keypoints.
        content: the parsed JSON.
    """

    key: str
    file: Path
    categories: Mapping[Id, str]
    points: tuple[str, ...]
    content: Mapping[str, Any]

    @property
    def ids(self) -> dict[str, dict[str, Id]]:
        """The ids as written in the file: image ids by file name, and category ids by category name."""
        images, categories = self.content["images"], self.content["categories"]
        return {
            "images": {str(image["file_name"]): image["id"] for image in images},
            "categories": {str(category["name"]): category["id"] for category in categories},
        }

    def error(self, text: str) -> UserError:
        return UserError(f"{self.key}={self.file}: {text}")


def identity_of(value: object) -> Id:
    """Normalize an id, so that 3, 3.0 and "3" are equal.

    Raises:
        ValueError: the value is not an id.
    """
    if isinstance(value, str) and (text := value.strip()):
        return whole_number(text.removesuffix(".0"), text)
    if isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1:
        return int(value)
    raise ValueError(f"the id {value!r:.40} is neither a whole number nor text")


def read_coco(key: str, file: Path) -> CocoFile:
    """Read a file.

    Raises:
        UserError: the file is not in COCO's format.
    """
    try:
        content = json.loads(read_text(key, file, "a COCO file, .json"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{key}={file} cannot be read: {error}.") from None
    found = CocoFile(key, file, {}, (), content if isinstance(content, dict) else {})
    for name in _LISTS:
        if not isinstance(found.content.get(name), list):
            raise found.error(f"has no list '{name}'.{nearest(name, found.content)} Required: {', '.join(_LISTS)}.")
    categories: dict[Id, str] = {}
    known: set[str] = set()  # searching the values of a dict takes minutes for 100,000 categories
    points: dict[tuple[str, ...], str] = {}
    for number, category in enumerate(content["categories"]):
        try:
            identity, name = identity_of(category["id"]), str(category["name"])
            names = tuple(map(str, category.get("keypoints", ())))
        except _MALFORMED:
            raise found.error(f"categories[{number}] is {category!r:.80}. It needs an id and a name.") from None
        if identity in categories or name in known:
            raise found.error(f"categories[{number}] repeats the id {identity} or the name '{name}'. Use each once.")
        categories[identity] = name
        known.add(name)
        if names:
            points[names] = name
    if len(points) > 1:
        shown = " and ".join(list(points.values())[:2])
        raise found.error(
            f"the categories {shown} have different keypoints. Give all categories the same keypoints, or none."
        )
    ordered = sorted(categories, key=lambda identity: (isinstance(identity, str), identity))
    named = {identity: categories[identity] for identity in ordered}
    return CocoFile(key, file, named, next(iter(points), ()), content)


def images_of(coco: CocoFile, folder: Path, wanted: WantedTargets) -> tuple[list[AnnotatedImage], str]:
    """Return the images of a file with their objects, and a notice about annotations of images that are not listed.

    A bad object is a fault of its image.

    Raises:
        UserError: an image has no file name, or repeats an id.
    """
    images = _listed_images(coco, folder)
    labels = {identity: label for label, identity in enumerate(coco.categories, 1)}
    unlisted = 0
    for number, annotation in enumerate(coco.content["annotations"]):
        try:
            owner = images[identity_of(annotation["image_id"])]
        except _MALFORMED:
            unlisted += 1
            continue
        where = f"annotations[{number}] of {coco.file.name}"
        with owner.object_at(where):
            label = labels.get(identity_of(annotation["category_id"]))
            if label is None:
                raise ValueError(f"the category {annotation['category_id']} is not listed")
            owner.objects.append(_object(annotation, where, label, owner, wanted, len(coco.points)))
    belong = amount(unlisted, "annotation belongs", "annotations belong")
    return list(images.values()), f"{coco.file}: {belong} to images that are not listed" if unlisted else ""


def _listed_images(coco: CocoFile, folder: Path) -> dict[Id, AnnotatedImage]:
    """Return the images that a file lists, by their ids and without objects."""
    images: dict[Id, AnnotatedImage] = {}
    for number, image in enumerate(coco.content["images"]):
        try:
            identity, name = identity_of(image["id"]), str(image["file_name"])
            size = (int(image["height"]), int(image["width"])) if {"height", "width"} <= image.keys() else None
            if b"\0" in os.fsencode(name):  # also raises a ValueError for half of a surrogate pair
                raise ValueError
        except _MALFORMED:
            raise coco.error(f"images[{number}] is {image!r:.80}. It needs an id and a valid file_name.") from None
        if identity in images:
            other = images[identity].file.name
            raise coco.error(f"images[{number}], {name}, repeats the id {identity} of {other}. Use each id once.")
        where = f"images[{number}] of {coco.file.name}"
        images[identity] = AnnotatedImage(folder / name, where, size)
    # Tensors hold ids as int64. If any image id does not fit, the images are numbered instead.
    ids_fit = all(isinstance(identity, int) and abs(identity) < 2**63 for identity in images)
    for number, (identity, listed) in enumerate(images.items(), 1):
        listed.image_id = int(identity) if ids_fit else number
    return images


def _object(
    annotation: Mapping[str, Any], where: str, label: int, image: AnnotatedImage, wanted: WantedTargets, count: int
) -> AnnotatedObject:
    left, top, width, height = map(float, annotation["bbox"])
    points = None
    if wanted.points and annotation.get("keypoints"):
        points = np.array(annotation["keypoints"], np.float64)
        if points.size != 3 * count or not (np.abs(points) < FAR).all():
            raise ValueError(f"{points.size} numbers as keypoints instead of {3 * count}: x, y and visibility of each")
        points = points.reshape(-1, 3)
    shape: Shape | None = None
    if wanted.shapes and (given := annotation.get("segmentation")):
        if isinstance(given, dict):
            shape, size = read_runs(given)
            if (image.size or size) != size:
                raise ValueError(f"runs of {size} pixels, but the image has {image.size}")
            image.size = size  # to compare it with the image file
        else:
            shape = read_polygons(given)
    crowd = str(annotation.get("iscrowd", 0)).lower() in ("1", "1.0", "true")
    return AnnotatedObject(where, (left, top, left + width, top + height), label, crowd, shape=shape, points=points)


def same_categories(files: Sequence[CocoFile], points: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the categories. `points` are the names of the keypoints, if they are used.

    Raises:
        UserError: the splits have different categories or keypoints.
    """
    first, last = files[0], files[-1]
    if first.categories != last.categories:
        raise last.error(
            f"its categories differ from the categories in {first.file}. Use the same ids and names in both."
        )
    if points and first.points != last.points:
        raise last.error(
            f"its keypoints differ from {', '.join(first.points)}. Use the names and order of {first.file}."
        )
    return tuple(first.categories.values())
