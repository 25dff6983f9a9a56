"""Read Pascal VOC: Annotations/*.xml, JPEGImages, ImageSets, and SegmentationClass.

Format: host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc. Edges of boxes count pixels from 1, both included.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from augment.data.formats.folder import EXTENSIONS
from augment.data.formats.masks import Pairs
from augment.data.formats.objects import Annotated, AnnotatedImage
from augment.data.formats.texts import read_text
from augment.support.errors import UserError
from augment.support.files import read_file

# The classes of Pascal VOC, in the order of the labels of its masks, from 1.
CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip


def list_names(file: Path) -> list[str]:
    """Return the names in a list of ImageSets, or of all annotations in a folder.

    Raises:
        UserError: there is no such file, or it is empty.
    """
    if file.is_dir():
        names = sorted(found.stem for found in file.glob("*.xml"))
    else:
        lines = read_text("data.root", file, "a name of an image per line").splitlines()
        names = [line.split()[0] for line in lines if line.strip()]  # some lists have 1 or -1 after the name
    if not names:
        raise UserError(f"data.root: {file} lists no images.")
    return names


def find_masks(images: Path, masks: Path, names: Sequence[str]) -> Pairs:
    """Return the images of some names with their masks."""
    found = ((_image(images, name), masks / f"{name}.png") for name in names)
    return {image: mask if mask.exists() else f"has no mask: there is no {mask}" for image, mask in found}


def _image(folder: Path, name: str) -> Path:
    found = [folder / f"{name}{ending}" for ending in (".jpg", *sorted(EXTENSIONS))]
    return next((file for file in found if file.exists()), found[0])


def read_image(images: Path, annotations: Path, number: int, name: str) -> AnnotatedImage:
    """Return the image of a number and a name with its objects, whose labels are 0."""
    file = annotations / f"{name}.xml"
    image = AnnotatedImage(_image(images, name), str(file), image_id=number)
    try:
        content = read_file(file)
        if b"\0" in content or re.search(rb"<!\s*(DOCTYPE|ENTITY)", content, re.IGNORECASE):
            raise ValueError("declarations of entities, or UTF-16, which are not allowed")
        tree = ElementTree.fromstring(content)
        size = [int(tree.findtext(f"size/{side}") or 0) for side in ("height", "width")]
        image.size = (size[0], size[1]) if all(size) else None  # some programs write 0
        for index, found in enumerate(tree.findall("object"), 1):
            with image.object_at(where := f"object {index} of {file}"):
                image.objects.append(_object(found, where))
    except FileNotFoundError:
        image.blame(f"has no {file}")
    except (OSError, ValueError, ElementTree.ParseError) as error:
        image.blame(f"has annotations in {file} that cannot be used: {getattr(error, 'strerror', None) or error}")
    return image


def _object(found: ElementTree.Element, where: str) -> Annotated:
    edges = (found.findtext(f"bndbox/{edge}") for edge in ("xmin", "ymin", "xmax", "ymax"))
    left, top, right, bottom = (float(edge or "nan") for edge in edges)
    name, difficult = ((found.findtext(key) or "").strip() for key in ("name", "difficult"))
    if not name:
        raise ValueError("no name")
    return Annotated(where, (left - 1, top - 1, right, bottom), 0, difficult=difficult == "1", name=name)
