"""Read YOLO's data sets: data.yaml, and beside the folders of images, those of labels, a .txt for each image.

A line is an object: its class and either the center, width and height of its box, or three points or more of its
outline, all in shares of the width and height of the image as it is shown. Format: docs.ultralytics.com/datasets.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.data.formats.folder import find_images
from augment.data.formats.objects import Annotated, AnnotatedImage, Header, read_headers
from augment.data.formats.regions import read_polygons
from augment.data.formats.texts import read_text
from augment.support.errors import UserError, suggest
from augment.support.files import near_file
from augment.support.text import amount
from augment.support.yaml_files import read_yaml

_BEYOND = 0.01  # of a side, by which rounded coordinates may be outside


@dataclass(frozen=True)
class YoloFile:
    """A data.yaml."""

    file: Path
    content: Mapping[str, Any]
    names: Mapping[int, str]

    def error(self, text: str) -> UserError:
        """Return an error about the file."""
        return UserError(f"data.root={self.file}: {text}")


def read_yolo(file: Path) -> YoloFile:
    """Read a data.yaml.

    Raises:
        UserError: it is none.
    """
    if not file.is_file():
        raise UserError(f"data.root: there is no file {file}.{near_file(file)} Allowed: a data.yaml, or its folder.")
    content = read_yaml(file)
    found = YoloFile(file, content if isinstance(content, dict) else {}, {})
    given = found.content.get("names")
    names = dict(enumerate(given)) if isinstance(given, list) else given
    if not isinstance(names, dict) or not names or not all(isinstance(number, int) for number in names):
        raise found.error("has no 'names'. Allowed: a list of names, or a mapping from numbers to names.")
    names = {number: str(names[number]) for number in sorted(names)}
    if len(set(names.values())) < len(names):
        raise found.error("has a name of a class twice. Allowed: once.")
    if "kpt_shape" in found.content:
        raise found.error(
            "has kpt_shape: points of objects are not read. Allowed: boxes or outlines; data=coco has points."
        )
    return YoloFile(file, found.content, names)


def images_of(yolo: YoloFile, split: str) -> tuple[list[AnnotatedImage], str]:
    """Return the images of a split with their objects, and a notice if some have no file of labels.

    Raises:
        UserError: the split is not in data.yaml, its images are not there, or none has labels.
    """
    files = _list_images(yolo, split)
    headers = read_headers(files)
    labels = {number: label for label, number in enumerate(yolo.names, 1)}
    images, bare = [], 0
    for number, file in enumerate(files, 1):
        source = _labels_of(file)
        image = AnnotatedImage(file, str(source), image_id=number)
        images.append(image)
        if not source.exists():
            bare += 1
        elif header := headers.get(file):  # others cannot be read, which the check reports
            _read_labels(image, source, header, labels)
    if bare == len(files):
        raise yolo.error(f"no image of {split} has labels, such as {_labels_of(files[0])}.")
    what = f"{bare} of {amount(len(files), f'{split} image')} have no file of labels, so no objects"
    return images, f"{yolo.file}: {what}" if bare else ""


def _list_images(yolo: YoloFile, split: str) -> list[Path]:
    given = yolo.content.get(split) or (yolo.content.get("valid") if split == "val" else None)
    if not given:
        raise yolo.error(f"has no '{split}'.{suggest(split, map(str, yolo.content)).partition(' Allowed')[0]}")
    files: list[Path] = []
    for name in map(str, given if isinstance(given, list) else [given]):
        # Relative to `path` in data.yaml, or to its folder, which may have been moved; Roboflow writes
        # "../train/images" where it should be "train/images".
        folder = yolo.file.parent
        tried = [folder / str(yolo.content.get("path") or "") / name, folder / name, folder / name.removeprefix("../")]
        found = next((path for path in tried if path.exists()), tried[0])
        if found.is_dir():
            files += find_images(found)
        elif found.suffix == ".txt" and found.is_file():
            lines = read_text("data.root", found, "a path of an image per line").splitlines()
            files += [found.parent / line.strip() for line in lines if line.strip()]
        else:
            raise yolo.error(
                f"{split}: there is no {found}.{near_file(found)} Allowed: a folder of images, or a .txt list."
            )
    if not files:
        raise yolo.error(f"{split}: there are no images in {given}.")
    return files


def _labels_of(image: Path) -> Path:
    """Return the file of labels: that in "labels" in place of the last "images" in the path, or beside the image."""
    head, middle, tail = str(image).rpartition("/images/")
    return Path(f"{head}/labels/{tail}" if middle else image).with_suffix(".txt")


def _read_labels(image: AnnotatedImage, source: Path, header: Header, labels: Mapping[int, int]) -> None:
    """Add the objects of a file of labels to its image; what is wrong with one is a fault of the image."""
    height, width = header.shown
    try:
        lines = source.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        return image.blame(f"has labels that cannot be read: {error}")
    image.size = header.shown
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        where = f"line {number} of {source}"
        try:
            numbers = np.array(words[1:], np.float64) if len(words) > 1 else np.empty(0)
            label = labels.get(int(words[0]))
            if label is None:
                raise ValueError(f"the class {words[0]}, which has no name")
            image.objects.append(_object(numbers, label, where, (width, height)))
        except ValueError as error:
            return image.blame(f"has a bad object, {where}: {error}")
    return None


def _object(numbers: NDArray[np.float64], label: int, where: str, size: tuple[int, int]) -> Annotated:
    is_box = len(numbers) == 4
    if not is_box and (len(numbers) < 6 or len(numbers) % 2):
        raise ValueError(f"{amount(len(numbers), 'number')} where 4 are allowed, or 6 or more, an even number")
    # An outline that is far outside is in pixels, or of another image.
    if not np.isfinite(numbers).all() or numbers.min() < -_BEYOND or numbers.max() > 1 + _BEYOND:
        shares = [float(f"{share:.6g}") for share in numbers[:4]]
        raise ValueError(f"{shares}, where shares of the image, 0 to 1, are allowed")
    if not is_box:
        corners = (numbers.reshape(-1, 2) * size).clip(0, size)
        box = (*corners.min(axis=0).tolist(), *corners.max(axis=0).tolist())
        return Annotated(where, box, label, shape=read_polygons([corners.ravel()]))
    x, y, w, h = (numbers * np.array([*size, *size])).tolist()
    return Annotated(where, (x - w / 2, y - h / 2, x + w / 2, y + h / 2), label)
