"""Images with annotations, written as tests need them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from photos import draw_photo
from PIL import Image

from augment.data.dataset import Dataset
from augment.data.images import turn_back
from augment.data.sources import LOADED, load_dataset, parse_data


def photo(file: Path, width: int, height: int, *, orientation: int = 1) -> Path:
    """Write a JPEG of its own, with an EXIF orientation."""
    file.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[0x0112] = orientation
    # The picture must not depend on the numbers of temporary folders, which change from one run of pytest to the next.
    folder, *rest = file.parts[-3:]
    seed = sum("/".join([folder.rstrip("0123456789"), *rest]).encode())
    Image.fromarray(draw_photo(width, height, seed)).save(file, quality=90, exif=exif)
    return file


def turned(folder: Path) -> list[Path]:
    """Write one gray image as PNG eight times, stored by each of the EXIF orientations."""
    gray, files = np.asarray(Image.fromarray(draw_photo(48, 36, 1)).convert("L")), []
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        files.append(folder / f"{orientation}.png")
        Image.fromarray(turn_back(gray, orientation)).save(files[-1], exif=exif)
    return files


def mask(file: Path, labels: Any) -> Path:
    """Write labels, (height, width), or colors, as PNG."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(labels, np.uint8)).save(file)
    return file


def coco(file: str, sizes: Sequence[tuple[int, int]], annotations: Sequence[dict[str, Any]], **others: Any) -> str:
    """Write images 0.jpg, 1.jpg ... of (width, height) in the folder of a file, and the file; ids count from 10."""
    folder = Path(file).parent
    images = []
    for number, (width, height) in enumerate(sizes):
        photo(folder / f"{number}.jpg", width, height)
        images.append({"id": number + 10, "file_name": f"{number}.jpg", "width": width, "height": height})
    found = [{"id": number, "image_id": 10, "category_id": 3} | given for number, given in enumerate(annotations)]
    categories = [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}]
    content = {"images": images, "annotations": found, "categories": categories} | others
    Path(file).write_text(json.dumps(content))
    return file


def load(source: str, **settings: Any) -> Dataset:
    """Load a data set."""
    LOADED.clear()
    return load_dataset(parse_data({"source": source, **settings}))
