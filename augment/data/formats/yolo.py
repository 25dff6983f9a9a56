"""Read YOLO datasets: `data.yaml`, folders of images, and folders of labels with a `.txt` file for each image.

A line describes an object: its class, then the center, width and height of its box, or at least three points of its
outline. All numbers are shares of the width and height of the upright image. Format: docs.ultralytics.com/datasets.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.data.formats.annotations import AnnotatedImage, AnnotatedObject, Header, read_headers
from augment.data.formats.folder import find_images
from augment.data.formats.polygons import read_polygons
from augment.data.formats.text_files import read_text
from augment.support.errors import UserError, nearest
from augment.support.files import near_file, read_file
from augment.support.formatting import amount
from augment.support.yaml_files import read_yaml

_BEYOND = 0.01  # share of a side by which rounded coordinates may be outside the image


def read_yolo(file: Path) -> tuple[Mapping[str, Any], Mapping[int, str]]:
    """Return the content of a `data.yaml`, and its class names by their numbers, in ascending order.

    Raises:
        UserError: the file is missing or malformed.
    """
    if not file.is_file():
        raise UserError(
            f"data.root: the file {file} does not exist.{near_file(file)} Use a data.yaml with the keys "
            "train, val and names, or its folder."
        )
    values, texts = read_yaml(file), read_yaml(file, as_text=True)
    content: dict[str, Any] = {}
    if isinstance(values, dict) and isinstance(texts, dict):
        # Names and paths are text, even if they look like numbers. Keys without a value are left out.
        content = {key: text for key, text in texts.items() if values.get(key, text) is not None}
    given: Any = content.get("names")
    try:
        found = dict(enumerate(given)) if isinstance(given, list) else {int(key): given[key] for key in given}
        names = {number: found[number].strip() for number in sorted(found)}
    except (TypeError, ValueError, AttributeError):
        names = {}
    if not all(names.values()) or not names:
        raise UserError(
            f"data.root={file} has no 'names'. Allowed: a list of names, or a mapping from numbers to names."
        )
    if len(names) < len(given) or len(set(names.values())) < len(names):
        raise UserError(f"data.root={file} has the same class twice. List each class once.")
    if "kpt_shape" in content:
        raise UserError(f"data.root={file} has keypoints (kpt_shape), which are not supported here. Use data=coco.")
    return content, names


def images_of(
    yaml: Path, content: Mapping[str, Any], names: Mapping[int, str], split: str
) -> tuple[list[AnnotatedImage], str]:
    """Return the images of a split with their objects, and a notice if some have no label file.

    Raises:
        UserError: `data.yaml` does not name the split, its images are missing, or no image has a label file.
    """
    files = _list_images(yaml, content, split)
    headers = read_headers(files)
    labels = {number: label for label, number in enumerate(names, 1)}
    images, bare = [], 0
    for number, file in enumerate(files, 1):
        source = _labels_of(file)
        image = AnnotatedImage(file, str(source), image_id=number)
        images.append(image)
        if not source.exists():
            bare += 1
        elif header := headers.get(file):  # the check reports images without a header
            _read_labels(image, source, header, labels)
    if bare == len(files):
        raise UserError(
            f"data.root={yaml}: no image of {split} has a label file. Add files such as {_labels_of(files[0])}."
        )
    what = f"{bare} of {amount(len(files), f'{split} image')} have no label file and count as images without objects"
    return images, f"{yaml}: {what}" if bare else ""


def _list_images(yaml: Path, content: Mapping[str, Any], split: str) -> list[Path]:
    given = content.get(split) or (content.get("valid") if split == "val" else None)
    if not given:
        raise UserError(f"data.root={yaml} has no '{split}'.{nearest(split, map(str, content))}")
    files: list[Path] = []
    seen: set[Path] = set()
    for name in map(str, given if isinstance(given, list) else [given]):
        # Names are relative to `path` in data.yaml, or to the folder of data.yaml if the dataset was moved. Roboflow
        # writes "../train/images" instead of "train/images".
        folder = yaml.parent
        tried = [folder / str(content.get("path") or "") / name, folder / name, folder / name.removeprefix("../")]
        found = next((path for path in tried if path.exists()), tried[0])
        if (real := found.resolve() if found.exists() else found) in seen:
            raise UserError(f"data.root={yaml}: {split} lists {found} twice. List it once.")
        seen.add(real)
        if found.is_dir():
            files += find_images(found)
        elif found.suffix == ".txt" and found.is_file():
            lines = read_text("data.root", found, "one image path per line").splitlines()
            files += [found.parent / line.strip() for line in lines if line.strip()]
        else:
            why = "is not a .txt list." if found.exists() else f"does not exist.{near_file(found)}"
            raise UserError(f"data.root={yaml}: {split}: {found} {why} Use a folder of images, or a .txt list.")
    if not files:
        raise UserError(f"data.root={yaml}: {split}: {given} lists no images. Add images, or change the path.")
    return files


def _labels_of(image: Path) -> Path:
    """Return the label file of an image: the last folder "images" becomes "labels". Default: next to the image."""
    head, middle, tail = f"/{image}".rpartition("/images/")  # a relative path may begin with "images"
    return Path(f"{head}/labels/{tail}"[1:] if middle else image).with_suffix(".txt")


def _read_labels(image: AnnotatedImage, source: Path, header: Header, labels: Mapping[int, int]) -> None:
    """Add the objects of a label file to its image. A bad object is a fault of the image."""
    height, width = header.upright_size
    try:
        lines = read_file(source).decode("utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        return image.record_fault(f"has labels that cannot be read: {error}")
    image.size = header.upright_size
    for number, line in enumerate(lines, 1):
        where = f"line {number} of {source}"
        with image.object_at(where):
            if words := line.split():
                given = float(words[0])  # some programs write 1.0
                label = labels.get(int(given)) if given.is_integer() else None
                if label is None:
                    raise ValueError(f"the class {words[0]} has no name")
                image.objects.append(_object(np.array(words[1:], np.float64), label, where, (width, height)))
    return None


def _object(numbers: NDArray[np.float64], label: int, where: str, size: tuple[int, int]) -> AnnotatedObject:
    is_box = len(numbers) == 4
    if not is_box and (len(numbers) < 6 or len(numbers) % 2):
        raise ValueError(f"{amount(len(numbers), 'number')} instead of 4, 6, 8 and so on")
    # Numbers far from 0 to 1 are pixels, or belong to another image.
    if not np.isfinite(numbers).all() or numbers.min() < -_BEYOND or numbers.max() > 1 + _BEYOND:
        shares = [float(f"{share:.6g}") for share in numbers[:4]]
        raise ValueError(f"{shares} instead of fractions of the image size, 0 to 1")
    if not is_box:
        corners = (numbers.reshape(-1, 2) * size).clip(0, size)
        box = (*corners.min(axis=0).tolist(), *corners.max(axis=0).tolist())
        return AnnotatedObject(where, box, label, shape=read_polygons([corners.ravel()]))
    x, y, w, h = (numbers * np.array([*size, *size])).tolist()
    return AnnotatedObject(where, (x - w / 2, y - h / 2, x + w / 2, y + h / 2), label)
