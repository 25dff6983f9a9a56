"""Predicted objects as COCO JSON and as CSV."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

from augment.support.formatting import table_cell
from trainer.run.folder.coco_ids import Ids
from trainer.tasks.display import FoundObject


@dataclass(frozen=True)
class FoundObjects:
    """The objects that were found in an image."""

    found: tuple[FoundObject, ...]  # the objects in pixels of the upright image, the highest score first
    size: tuple[int, int]  # width and height of that image
    names: tuple[str, ...]  # names of all classes, by label


def _ids(names: Sequence[Path | str], known: Mapping[str, Any]) -> list[Any]:
    """Return the known ids of images by the ends of their paths, or of classes; of others, numbers that none has."""
    parts = [name.parts if isinstance(name, Path) else (name,) for name in names]
    ends = [["/".join(some[start:]) for start in range(len(some))] for some in parts]
    found = [next((known[end] for end in some if end in known), None) for some in ends]
    free = count(1 + max((of for of in known.values() if isinstance(of, int)), default=0))
    return [next(free) if of is None else of for of in found]


def as_coco(images: Sequence[tuple[Path, FoundObjects]], ids: Ids | None = None) -> str:
    """Write images, categories and annotations as COCO has them; the latter have a score, too, as its results do.

    Boxes are left, top, width and height, in pixels of the upright images. Without ids, all are numbered from 1.
    """
    known, names = ids or {}, images[0][1].names
    numbered = list(zip(_ids([file for file, _ in images], known.get("images", {})), images, strict=True))
    of_label = dict(enumerate(_ids(names[1:], known.get("categories", {})), 1))
    found = [(number, of) for number, (_, objects) in numbered for of in objects.found if of.label]  # 0 is no object
    content = {
        "images": [
            {"id": number, "file_name": str(file), "width": objects.size[0], "height": objects.size[1]}
            for number, (file, objects) in numbered
        ],
        "categories": [{"id": key, "name": names[label]} for label, key in of_label.items()],
        "annotations": [
            {
                "id": key,
                "image_id": number,
                "category_id": of_label[of.label],
                "bbox": [*of.box[:2], of.width, of.height],
                "area": of.width * of.height,
                "iscrowd": 0,
                "score": of.score,
            }
            for key, (number, of) in enumerate(found, 1)
        ],
    }
    return json.dumps(content, indent=1) + "\n"


def as_rows(images: Sequence[tuple[Path, str, FoundObjects | None]]) -> str:
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
