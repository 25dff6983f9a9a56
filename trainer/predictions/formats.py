"""Predictions as JSON and CSV."""

import csv
import json
from collections.abc import Sequence
from io import StringIO
from typing import Any

from augment.support.formatting import table_cell
from trainer.predictions.objects import as_coco, as_rows
from trainer.predictions.predict import Prediction
from trainer.run.folder.coco_ids import Ids


def as_json(predictions: Sequence[Prediction], ids: Ids | None = None) -> str:
    """Write predictions as JSON, `[{"file": ..., "classes": [{"class": ..., "probability": ...}]}]`.

    Where numbers are predicted it is `[{"file": ..., "numbers": {name: ...}}]`; where masks are, classes have shares of
    the pixels, and "mask" is their file; of objects, see `as_coco`.
    """
    if objects := [(prediction.file, prediction.objects) for prediction in predictions if prediction.objects]:
        return as_coco(objects, ids)
    rows: list[dict[str, Any]] = []
    for prediction in predictions:
        key, mask = ("share", {"mask": str(prediction.mask)}) if prediction.mask else ("probability", {})
        classes = [{"class": name, key: share} for name, share in prediction.classes]
        found = {"numbers": dict(prediction.numbers)} if prediction.numbers else {**mask, "classes": classes}
        rows.append({"file": str(prediction.file)} | ({"error": prediction.error} if prediction.error else found))
    return json.dumps(rows, indent=2) + "\n"


def as_csv(predictions: Sequence[Prediction]) -> str:
    """Write predictions as CSV: file, error, class_1, probability_1, class_2, ...; or file, error and the numbers.

    Of masks it is file, error, class_1, share_1, ...; of objects, see `as_rows`.

    Names that a spreadsheet would run as formulas get an apostrophe, see `augment.support.formatting.table_cell`.
    """
    if any(prediction.objects for prediction in predictions):
        return as_rows([(prediction.file, prediction.error, prediction.objects) for prediction in predictions])
    rows = [_cells(prediction) for prediction in predictions]
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "error", *max(rows, key=len)])
    for prediction, cells in zip(predictions, rows, strict=True):
        writer.writerow([table_cell(prediction.file), table_cell(prediction.error), *cells.values()])
    return text.getvalue()


def _cells(prediction: Prediction) -> dict[str, str]:
    """Return the cells of a prediction by the names of their columns."""
    share = "share" if prediction.mask else "probability"
    cells: dict[str, str] = {}
    for rank, (name, value) in enumerate(prediction.classes, 1):
        cells |= {f"class_{rank}": table_cell(name), f"{share}_{rank}": f"{value:.6g}"}
    return cells | {table_cell(name): f"{value:.6g}" for name, value in prediction.numbers}
