"""Read Pascal VOC: Annotations/*.xml, JPEGImages, ImageSets, and SegmentationClass.

Format: host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc. Edges of boxes count pixels from 1, both included.
"""

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from xml.etree import ElementTree

from augment.data.formats.annotations import Annotated, AnnotatedImage
from augment.data.formats.folder import EXTENSIONS
from augment.data.formats.text_files import read_text
from augment.support.errors import UserError
from augment.support.files import read_file

# Endings of images; of two images with a name, the first one counts.
IMAGES = (".jpg", *sorted(EXTENSIONS - {".jpg"}))

# The classes of Pascal VOC, in the order of the labels of its masks, from 1.
CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip


# Some lists have 1, 0 or -1 after each name: whether an object of a class is there.
_FLAG = re.compile(r"\s+(-1|0|1|\+1)$")


def files_by_name(folder: Path, endings: Collection[str]) -> dict[str, Path]:
    """Return the files of a folder with some endings, in upper or lower case, by their names without these.

    Of several with a name, that of the first ending counts.
    """
    order = {ending: rank for rank, ending in enumerate(endings)}
    files = [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]
    files = [file for file in files if file.suffix.lower() in order]
    files.sort(key=lambda file: order[file.suffix.lower()], reverse=True)
    named = {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}
    return {name: file for name, file in named.items() if "/." not in f"/{name}"}


def list_names(file: Path, *known: Collection[str]) -> list[str]:
    """Return the names in a list of ImageSets, or all of the first that are known; names may have blanks.

    Raises:
        UserError: there is no such file, or it is empty.
    """
    if file.is_dir():
        names = sorted(known[0])
    else:
        lines = map(str.strip, read_text("data.root", file, "a name of an image per line").splitlines())
        names = [_name(line, known) for line in lines if line]
    if not names:
        raise UserError(f"data.root: {file} lists no images.")
    return names


def _name(line: str, known: Sequence[Collection[str]]) -> str:
    """Return the name in a line: all of it if a file is called so, else without a flag, or the ending of an image."""
    plain = _FLAG.sub("", line)
    forms = [line, plain, *(form[: form.rfind(".")] for form in (line, plain) if Path(form).suffix.lower() in IMAGES)]
    return next((form for form in forms if any(form in names for names in known)), plain)


def read_image(image_file: Path, file: Path, number: int) -> AnnotatedImage:
    """Return an image of a number with its objects in a file of annotations, whose labels are 0."""
    image = AnnotatedImage(image_file, str(file), image_id=number)
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
    except (OSError, ValueError, LookupError, ElementTree.ParseError) as error:  # a LookupError: the encoding
        image.blame(f"has annotations in {file} that cannot be used: {getattr(error, 'strerror', None) or error}")
    return image


def _object(found: ElementTree.Element, where: str) -> Annotated:
    edges = (found.findtext(f"bndbox/{edge}") for edge in ("xmin", "ymin", "xmax", "ymax"))
    left, top, right, bottom = (float(edge or "nan") for edge in edges)
    name, difficult = ((found.findtext(key) or "").strip() for key in ("name", "difficult"))
    if not name:
        raise ValueError("no name")
    return Annotated(
        where, (left - 1, top - 1, right, bottom), 0, difficult=difficult.lower() in ("1", "true"), name=name
    )
