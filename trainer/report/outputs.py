"""Labels and numbers: how well each is told."""

from typing import Any

from trainer.outputs import LabelScore, number_errors
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
    errors = number_errors(record.outputs)
    if not (record.folder / SCATTER).is_file():
        plot_outputs(record.outputs, record.task, record.classes, record.folder)
    numbers = [(name, f"{mae:.4g}", f"{rmse:.4g}") for name, (mae, rmse) in zip(record.classes, errors, strict=True)]
    return found | {"numbers": numbers, "scatter": inline_picture(record.folder / SCATTER)}


def worst_labels(record: Record) -> list[LabelScore]:
    """Return the scores of the labels that some picture has, the worst first."""
    known = (score for score in record.label_scores if score.pictures)
    return sorted(known, key=lambda score: (score.average_precision, score.name))
