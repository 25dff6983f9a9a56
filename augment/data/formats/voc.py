"""Read Pascal VOC: `Annotations/*.xml`, JPEGImages, ImageSets and SegmentationClass.

Format: host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc. A box states its first and last pixels, counted from 1.
"""

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from xml.etree import ElementTree

from augment.data.formats.annotations import AnnotatedImage, AnnotatedObject
from augment.data.formats.folder import EXTENSIONS
from augment.data.formats.text_files import read_text
from augment.support.errors import UserError
from augment.support.files import read_file

# Extensions of images. If two images have the same name, the earlier extension counts.
IMAGES = (".jpg", *sorted(EXTENSIONS - {".jpg"}))

# The classes of Pascal VOC, in the order of its mask labels, from 1.
CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip

# What messages about a missing or unreadable list allow.
_LIST = "one image name per line. Without lists, set data.train=null data.val_fraction=0.2"

# Some lists have 1, 0 or -1 after each name, which states whether the image shows a class.
_FLAG = re.compile(r"\s+(-1|0|1|\+1)$")


def files_by_name(folder: Path, extensions: Collection[str]) -> dict[str, Path]:
    """Return the files below a folder with the given extensions, by their paths without extension.

    If several files have the same path, the earlier extension counts. Extensions may be in upper or lower case.
    """
    order = {extension: rank for rank, extension in enumerate(extensions)}
    files = [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]
    files = [file for file in files if file.suffix.lower() in order]
    files.sort(key=lambda file: order[file.suffix.lower()], reverse=True)
    named = {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}
    return {name: file for name, file in named.items() if "/." not in f"/{name}"}


def list_names(file: Path, *known: Collection[str]) -> list[str]:
    """Return the image names in a list of ImageSets. If `file` is a folder, return all names in `known[0]`.

    Raises:
        UserError: the file is missing or empty.
    """
    if file.is_dir():
        names = sorted(known[0])
    else:
        lines = map(str.strip, read_text("data.root", file, _LIST).splitlines())
        names = [_name(line, known) for line in lines if line]
    if not names:
        raise UserError(f"data.root: {file} lists no images.")
    return names


def _name(line: str, known: Sequence[Collection[str]]) -> str:
    """Return the image name in a line, without a flag or an extension, unless they are part of a known name."""
    plain = _FLAG.sub("", line)
    stems = [name[: name.rfind(".")] for name in (line, plain) if Path(name).suffix.lower() in IMAGES]
    return next((name for name in (line, plain, *stems) if any(name in names for names in known)), plain)


def read_image(image_file: Path, file: Path, number: int) -> AnnotatedImage:
    """Return an image with the objects of an annotation file. Their labels are 0, because only names are known."""
    image = AnnotatedImage(image_file, str(file), image_id=number)
    try:
        content = read_file(file)
        if b"\0" in content or re.search(rb"<!\s*(DOCTYPE|ENTITY)", content, re.IGNORECASE):
            raise ValueError("entity declarations and UTF-16 are not supported")
        tree = ElementTree.fromstring(content)
        size = [int(tree.findtext(f"size/{side}") or 0) for side in ("height", "width")]
        image.size = (size[0], size[1]) if all(size) else None  # some programs write 0
        for index, found in enumerate(tree.findall("object"), 1):
            with image.object_at(where := f"object {index} of {file}"):
                image.objects.append(_object(found, where))
    except FileNotFoundError:
        image.record_fault(f"has no {file}")
    except (OSError, ValueError, LookupError, ElementTree.ParseError) as error:  # LookupError: an unknown encoding
        image.record_fault(f"has unusable annotations in {file}: {getattr(error, 'strerror', None) or error}")
    return image


def _object(found: ElementTree.Element, where: str) -> AnnotatedObject:
    edges = (found.findtext(f"bndbox/{edge}") for edge in ("xmin", "ymin", "xmax", "ymax"))
    left, top, right, bottom = (float(edge or "nan") for edge in edges)
    name, difficult = ((found.findtext(key) or "").strip() for key in ("name", "difficult"))
    if not name:
        raise ValueError("no name")
    return AnnotatedObject(
        where, (left - 1, top - 1, right, bottom), 0, difficult=difficult.lower() in ("1", "true"), name=name
    )
