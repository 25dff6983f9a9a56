"""Labels and numbers: how well each is told."""

from math import isnan
from typing import Any

from trainer.outputs import LabelScore, number_scores
from trainer.pictures import SCATTER, plot_outputs
from trainer.report.images import inline_picture
from trainer.report.record import Record


def outputs_of(record: Record) -> dict[str, Any]:
    """Return what the page says of labels, the worst first, and of numbers; empty where pictures have one class."""
    found: dict[str, Any] = {"task": record.task, "labels": [], "numbers": [], "scatter": ""}
    if record.outputs is None:
        return found
    if record.task == "multilabel":
        return found | {"labels": worst_labels(record)}
    if not (record.folder / SCATTER).is_file():
        plot_outputs(record.outputs, record.task, record.classes, record.folder)
    scores = number_scores(record.outputs, tuple(record.classes))
    numbers = [(s.name, f"{s.mae:.4g}", f"{s.rmse:.4g}", "" if isnan(s.r2) else f"{s.r2:.3f}") for s in scores]
    return found | {"numbers": numbers, "scatter": inline_picture(record.folder / SCATTER)}


def worst_labels(record: Record) -> list[LabelScore]:
    """Return the scores of the labels that some picture has, the worst first."""
    known = (score for score in record.label_scores if score.pictures)
    return sorted(known, key=lambda score: (score.average_precision, score.name))
