"""Predictions as JSON, COCO JSON and CSV."""

import csv
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

from augment.support.formatting import table_cell
from trainer.run.folder.facts import Ids
from trainer.tasks.display import Prediction


def as_json(predictions: Sequence[Prediction], ids: Ids | None = None) -> str:
    """Write predictions as JSON, `[{"file": ..., "classes": [{"class": ..., "probability": ...}]}]`.

    A regression or keypoint model gives `[{"file": ..., "numbers": {name: ...}}]`. In segmentation, "mask" is the file
    of the mask, and classes have a "share" of the pixels. For detection, see `as_coco`.
    """
    if any(prediction.objects for prediction in predictions):
        return as_coco(predictions, ids)
    return json.dumps([_json_row(prediction) for prediction in predictions], indent=2) + "\n"


def _json_row(prediction: Prediction) -> dict[str, Any]:
    row: dict[str, Any] = {"file": str(prediction.file)}
    if prediction.error:
        return row | {"error": prediction.error}
    if prediction.numbers:
        return row | {"numbers": dict(prediction.numbers)}
    key = "probability"
    if prediction.mask:
        key, row["mask"] = "share", str(prediction.mask)
    return row | {"classes": [{"class": name, key: share} for name, share in prediction.classes]}


def as_coco(predictions: Sequence[Prediction], ids: Ids | None = None) -> str:
    """Write objects as a COCO dataset whose annotations also have a score, like COCO's results.

    Boxes are left, top, width and height, in pixels of the upright images. Masks are run-length encoded. Without ids,
    images and categories are numbered from 1.
    """
    objects_by_file = [(prediction.file, prediction.objects) for prediction in predictions if prediction.objects]
    known, names = ids or {}, objects_by_file[0][1].names
    images = _ids([file for file, _ in objects_by_file], known.get("images", {}))
    categories = dict(enumerate(_ids(names[1:], known.get("categories", {})), 1))
    content: dict[str, list[dict[str, Any]]] = {"images": [], "categories": [], "annotations": []}
    for label, category in categories.items():
        content["categories"].append({"id": category, "name": names[label]})
    for image, (file, objects) in zip(images, objects_by_file, strict=True):
        width, height = objects.size
        content["images"].append({"id": image, "file_name": str(file), "width": width, "height": height})
        for one in objects.found:
            if one.label:  # 0 is the background
                annotation = {
                    "id": len(content["annotations"]) + 1,
                    "image_id": image,
                    "category_id": categories[one.label],
                    "bbox": [*one.box[:2], one.width, one.height],
                    "area": one.width * one.height,
                    "iscrowd": 0,
                    "score": one.score,
                }
                if (mask := one.mask) is not None:
                    annotation |= {"segmentation": one.runs, "area": int(mask.sum())}
                content["annotations"].append(annotation)
    return json.dumps(content, indent=1) + "\n"


def _ids(names: Sequence[Path | str], known: Mapping[str, Any]) -> list[Any]:
    """Return the known id of each image or class, or a new number.

    The known ids of images are listed by path. Such a path may be only the last part of the image's path. If several
    images end in the same path, all of them get new numbers, because it is unknown which one is listed.
    """
    unused = count(1 + max((id for id in known.values() if isinstance(id, int)), default=0))
    listed = []
    for name in names:
        parts = name.parts if isinstance(name, Path) else (name,)
        ends = ("/".join(parts[start:]) for start in range(len(parts)))
        listed.append(next((end for end in ends if end in known), ""))
    uses = Counter(dict(zip(names, listed, strict=True)).values())  # an image may be given twice
    return [known[end] if end in known and uses[end] == 1 else next(unused) for end in listed]


def as_csv(predictions: Sequence[Prediction]) -> str:
    """Write predictions as CSV: file, error, class_1, probability_1, class_2, ... or file, error and the numbers.

    Masks have share_1 instead of probability_1. Each object has its own line: file, error, class, score, left, top,
    right, bottom. An apostrophe precedes names that a spreadsheet would run as formulas.
    """
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if any(prediction.objects for prediction in predictions):
        writer.writerow(["file", "error", "class", "score", "left", "top", "right", "bottom"])
        rows = [(prediction, _object_rows(prediction)) for prediction in predictions]
    else:
        cells_by_column = [_cells(prediction) for prediction in predictions]
        writer.writerow(["file", "error", *max(cells_by_column, key=len)])
        rows = [(prediction, [cells.values()]) for prediction, cells in zip(predictions, cells_by_column, strict=True)]
    for prediction, rows_of_prediction in rows:
        first = table_cell(prediction.file), table_cell(prediction.error)
        writer.writerows([*first, *cells] for cells in rows_of_prediction)
    return text.getvalue()


def _object_rows(prediction: Prediction) -> list[Iterable[str]]:
    """Return the cells of each object, or a row of empty cells for an image without objects."""
    rows: list[Iterable[str]] = []
    for found in prediction.objects.found if prediction.objects else ():
        rows.append([table_cell(found.name), f"{found.score:.6g}", *(f"{edge:.6g}" for edge in found.box)])
    return rows or [[""] * 6]


def _cells(prediction: Prediction) -> dict[str, str]:
    """Return the cells of a prediction by the names of their columns."""
    share = "share" if prediction.mask else "probability"
    cells: dict[str, str] = {}
    for rank, (name, value) in enumerate(prediction.classes, 1):
        cells |= {f"class_{rank}": table_cell(name), f"{share}_{rank}": f"{value:.6g}"}
    return cells | {table_cell(name): f"{value:.6g}" for name, value in prediction.numbers}
