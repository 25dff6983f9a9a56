"""Files of the objects that a detector finds: COCO's JSON, and CSV."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from augment.support.text import table_cell
from trainer.tasks.display import FoundObject


@dataclass(frozen=True)
class Objects:
    """The objects that were found in an image."""

    found: tuple[FoundObject, ...]  # the objects in pixels of the image as it is stored, the highest score first
    size: tuple[int, int]  # width and height of that image
    names: tuple[str, ...]  # names of all classes, by label


def as_coco(images: Sequence[tuple[Path, Objects]]) -> str:
    """Write images, categories and annotations as COCO has them; the latter have a score, too, as its results do.

    Boxes are left, top, width and height, in pixels of the images as they are stored.
    """
    numbered = list(enumerate(images, 1))
    found = [(number, of) for number, (_, objects) in numbered for of in objects.found]
    content = {
        "images": [
            {"id": number, "file_name": str(file), "width": objects.size[0], "height": objects.size[1]}
            for number, (file, objects) in numbered
        ],
        "categories": [{"id": label, "name": name} for label, name in enumerate(images[0][1].names) if label],
        "annotations": [
            {
                "id": key,
                "image_id": number,
                "category_id": of.label,
                "bbox": [*of.box[:2], of.width, of.height],
                "area": of.width * of.height,
                "iscrowd": 0,
                "score": of.score,
            }
            for key, (number, of) in enumerate(found, 1)
        ],
    }
    return json.dumps(content, indent=1) + "\n"


def as_rows(images: Sequence[tuple[Path, str, Objects | None]]) -> str:
    """Write CSV of images, each with its error: file, error, class, score, left, top, right, bottom.

    There is a line for each object, and one for an image without any.
    """
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "error", "class", "score", "left", "top", "right", "bottom"])
    for file, error, objects in images:
        cells = [
            [table_cell(of.name), f"{of.score:.6g}", *(f"{edge:.6g}" for edge in of.box)]
            for of in (objects.found if objects else ())
        ]
        writer.writerows([table_cell(file), table_cell(error), *row] for row in cells or [[""] * 6])
    return text.getvalue()
