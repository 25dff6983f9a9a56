"""Read Pascal VOC: Annotations/*.xml, JPEGImages, ImageSets, and SegmentationClass.

Format: host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc. Edges of boxes count pixels from 1, both included.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from augment.data.formats.folder import EXTENSIONS
from augment.data.formats.masks import Pairs
from augment.data.formats.objects import Annotated, AnnotatedImage
from augment.data.formats.texts import read_text
from augment.support.errors import UserError
from augment.support.files import require_file

# The classes of Pascal VOC, in the order of the labels of its masks, from 1.
CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip

_MOST = 2**24  # bytes of a file


@dataclass(frozen=True)
class VocFolders:
    """The folders of a data set."""

    root: Path
    images: str = "JPEGImages"
    annotations: str = "Annotations"


def list_names(folders: VocFolders, kind: str, split: str | None) -> list[str]:
    """Return the names in ImageSets/<kind>/<split>.txt; without a split, those of all annotations.

    Raises:
        UserError: there is no such file, or it is empty.
    """
    if split is None:
        file = folders.root / folders.annotations
        names = sorted(found.stem for found in file.glob("*.xml"))
    else:
        file = folders.root / "ImageSets" / kind / f"{split}.txt"
        lines = read_text("data.root", file, "a name of an image per line").splitlines()
        names = [line.split()[0] for line in lines if line.strip()]  # some lists have 1 or -1 after the name
    if not names:
        raise UserError(f"data.root: {file} lists no images.")
    return names


def find_masks(folders: VocFolders, names: Sequence[str]) -> Pairs:
    """Return the images of some names with their masks."""
    found = Pairs(folders.root / "SegmentationClass", [])
    for name in names:
        image, mask = _image(folders, name), found.where / f"{name}.png"
        found.files.append(image)
        if mask.exists():
            found.masks[image] = mask
        else:
            found.faults[image] = f"has no mask: there is no {mask}"
    return found


def _image(folders: VocFolders, name: str) -> Path:
    """Return the image of a name, mostly a JPEG."""
    found = [folders.root / folders.images / f"{name}{ending}" for ending in (".jpg", *sorted(EXTENSIONS))]
    return next((file for file in found if file.exists()), found[0])


def read_image(folders: VocFolders, number: int, name: str) -> AnnotatedImage:
    """Return the image of a number and a name with its objects, whose labels are 0."""
    file = folders.root / folders.annotations / f"{name}.xml"
    image = AnnotatedImage(_image(folders, name), str(file), image_id=number)
    try:
        content = require_file(file).read_bytes()
        if len(content) > _MOST:
            raise ValueError(f"{len(content):,} bytes, more than {_MOST:,}")
        if b"\0" in content or re.search(rb"<!\s*(DOCTYPE|ENTITY)", content, re.IGNORECASE):
            raise ValueError("declarations of entities, or UTF-16, which are not allowed")
        tree = ElementTree.fromstring(content)
        size = [int(tree.findtext(f"size/{side}") or 0) for side in ("height", "width")]
        image.size = (size[0], size[1]) if all(size) else None  # some programs write 0
        for index, found in enumerate(tree.findall("object"), 1):
            image.objects.append(_object(found, f"object {index} of {file}"))
    except FileNotFoundError:
        image.blame(f"has no {file}")
    except (OSError, ValueError, ElementTree.ParseError) as error:
        image.blame(f"has annotations in {file} that cannot be used: {getattr(error, 'strerror', None) or error}")
    return image


def _object(found: ElementTree.Element, where: str) -> Annotated:
    edges = [found.findtext(f"bndbox/{edge}") for edge in ("xmin", "ymin", "xmax", "ymax")]
    try:
        left, top, right, bottom = (float(edge or "") for edge in edges)
    except ValueError:
        raise ValueError(f"{where} has the edges {edges}") from None
    name, difficult = ((found.findtext(key) or "").strip() for key in ("name", "difficult"))
    if not name:
        raise ValueError(f"{where} has no name")
    return Annotated(where, (left - 1, top - 1, right, bottom), 0, difficult=difficult == "1", name=name)
