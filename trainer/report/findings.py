"""What the figures of a run say, in plain sentences: each rule looks at the data and has something to say or not."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from augment.wording import amount
from trainer.metrics import wilson_interval
from trainer.outputs import number_scores
from trainer.plots import column
from trainer.report.classes import class_scores
from trainer.report.outputs import worst_labels
from trainer.report.record import Record
from trainer.tasks import Row, smaller_is_better

_MOMENTUM = 0.1  # share of each batch in the running statistics of a batch norm, PyTorch's and timm's default


@dataclass(frozen=True)
class Finding:
    """A sentence, and whether it is a warning or just a note."""

    text: str
    warning: bool = False


def findings(record: Record) -> list[Finding]:
    """Return what there is to say about a run, warnings first."""
    found = [
        finding
        for rule in (
            _end,
            _data,
            _no_number,
            _guessing,
            _naming_the_mean,
            _few_batches,
            _overfitting,
            _still_improving,
            _gap,
            _waiting,
            _slow,
            _worst_class,
            _worst_label,
        )
        for finding in rule(record)
    ]
    return sorted(found, key=lambda finding: not finding.warning)


def percent(share: float, digits: int = 0) -> str:
    """Write a share as percent; none that is below 1 becomes 100 %."""
    if share < 1 and round(100 * share, digits) == 100:
        return f"{100 - 10.0**-digits:.{digits}f} %" if digits else "above 99 %"
    return f"{100 * share:.{digits}f} %"


def _end(record: Record) -> Iterator[Finding]:
    done, ending = len(record.rows), record.ending
    of = f" of {record.epochs}" if record.epochs else ""
    epochs = f"{done}{of} epoch{'s' if (record.epochs or done) != 1 else ''}"
    if ending.status == "failed":
        yield Finding(f"The run failed after {epochs}: {ending.error or 'it did not say why'}", warning=True)
    elif ending.status == "interrupted":
        yield Finding(f"The run was interrupted after {epochs}; fit.resume goes on with it.", warning=True)
    elif ending.status == "not ended":
        yield Finding(f"The run has not said how it ended: {epochs} are recorded so far.", warning=True)
    elif record.epochs and done < record.epochs:
        why = f": {ending.stopped}" if ending.stopped else ""
        yield Finding(f"The run ended early, after {epochs}{why}.")


def _data(record: Record) -> Iterator[Finding]:
    for text in record.warnings:
        yield Finding(text if text.endswith(".") else f"{text}.", warning=True)


def _no_number(record: Record) -> Iterator[Finding]:
    for key, name in (("train_loss", "training"), ("val_loss", "validation")):
        epochs = [row for row in record.rows if key in row and not math.isfinite(row[key])]
        if epochs:
            yield Finding(f"The {name} loss is no number in epoch {_epoch(epochs[0])}.", warning=True)


def _guessing(record: Record) -> Iterator[Finding]:
    if record.confusion is None or len(record.classes) < 2:
        return
    total = int(record.confusion.sum())
    # Whoever always names the largest class is right as often as this.
    chance = float(record.confusion.sum(axis=1).max()) / total
    if wilson_interval(int(np.trace(record.confusion)), total)[0] <= chance:
        yield Finding(
            f"The best accuracy cannot be told from naming the largest class every time ({percent(chance)}).",
            warning=True,
        )


def _naming_the_mean(record: Record) -> Iterator[Finding]:
    if record.task != "regress" or record.outputs is None:
        return
    for score in number_scores(record.outputs, tuple(record.classes)):
        if score.r2 <= 0:
            yield Finding(
                f"{score.name} is told no better than by naming its mean for every picture (R² {score.r2:.2f}).",
                warning=True,
            )


def _few_batches(record: Record) -> Iterator[Finding]:
    pretrained = record.config is not None and record.config.resolved["model"].get("pretrained")
    left = (1 - _MOMENTUM) ** (record.normed or 0)
    if record.normed and left >= 0.01 and not pretrained:
        yield Finding(
            f"The best epoch comes after {record.normed} training batches, when the running statistics of batch norm, "
            f"which validation goes by, are still {percent(left)} of what they began as, so training looks better. "
            "More epochs or smaller batches make more of them.",
            warning=True,
        )


def _overfitting(record: Record) -> Iterator[Finding]:
    if found := _overfits(record.rows):
        lowest, last = found
        yield Finding(
            f"Training loss still falls and validation loss has risen since epoch {_epoch(lowest)} "
            f"({lowest['val_loss']:.3g} to {last['val_loss']:.3g}): overfitting. More augmentation, "
            "more weight decay or fewer epochs may help.",
            warning=True,
        )


def _overfits(rows: Sequence[Row]) -> tuple[Row, Row] | None:
    """Return the row of the lowest validation loss and the last one, if training loss has fallen in between."""
    finite = [r for r in rows if all(math.isfinite(r.get(key, math.nan)) for key in ("train_loss", "val_loss"))]
    if len(finite) < 4:
        return None
    lowest = min(finite, key=lambda row: row["val_loss"])
    # The end is a median, as single epochs jump about.
    since = finite[finite.index(lowest) + 1 :]
    if len(since) < max(2, len(finite) // 10):
        return None
    end = median(row["val_loss"] for row in since[-3:])
    falls = since[-1]["train_loss"] < lowest["train_loss"]
    return (lowest, since[-1]) if falls and end > 1.05 * lowest["val_loss"] else None


def _still_improving(record: Record) -> Iterator[Finding]:
    key = f"val_{record.judging.quantity}"
    score = column([row for row in record.rows if key in row], key) * (-1 if smaller_is_better(key) else 1)
    if record.ending.status != "finished" or len(score) < 3 or np.isnan(score).any() or _overfits(record.rows):
        return
    if score[-1] > score[:-1].max():
        which = "lowest" if smaller_is_better(key) else "highest"
        title = record.judging.title.lower()
        yield Finding(f"Validation {title} was {which} in the last epoch: more epochs may bring more.")


def _gap(record: Record) -> Iterator[Finding]:
    train, val = (record.best.get(f"{split}_accuracy", math.nan) for split in ("train", "val"))
    if train - val > 0.1 and not _overfits(record.rows):
        points = f"{100 * (train - val):.0f} points"
        yield Finding(f"In the best epoch, accuracy is {points} higher in training than in validation.")


def _waiting(record: Record) -> Iterator[Finding]:
    # The first epoch warms up.
    shares = [row["waiting"] for row in record.rows[1:] or record.rows if math.isfinite(row.get("waiting", math.nan))]
    if not shares:
        return
    share = median(shares)
    who = "GPU" if record.environment.get("gpus") and _device(record) != "cpu" else "model"
    if share >= 0.1:
        yield Finding(
            f"The {who} waited {percent(share)} of the training time for data: more fit.threads, aug.cache or smaller "
            "files may help.",
            warning=True,
        )
    else:
        yield Finding(f"The {who} waited {percent(share)} of the training time for data.")


def _device(record: Record) -> str:
    return record.config.fit.device if record.config else "auto"


def _slow(record: Record) -> Iterator[Finding]:
    rates = column(record.rows, "images_per_second")[1:]
    if len(rates) < 3 or np.isnan(rates).any():
        return
    slowest, usual = int(rates.argmin()), float(np.median(rates))
    if rates[slowest] < usual / 2:
        yield Finding(
            f"Epoch {_epoch(record.rows[slowest + 1])} ran at {rates[slowest]:,.0f} img/s, where {usual:,.0f} are "
            "usual: the machine may have been busy with something else."
        )


def _worst_class(record: Record) -> Iterator[Finding]:
    scores = [] if record.confusion is None else class_scores(record.confusion, record.classes)
    if len(scores) < 2:
        return
    worst = scores[0]
    if worst.right == worst.total:
        yield Finding("Every validation picture is right.")
        return
    times = "once" if worst.times == 1 else f"{worst.times} times"
    yield Finding(
        f"Worst class: {worst.name} at {percent(worst.accuracy)} ({worst.right} of {worst.total}), "
        f"most often taken for {worst.taken_for} ({times})."
    )


def _worst_label(record: Record) -> Iterator[Finding]:
    labels = worst_labels(record)
    if len(labels) > 1:
        worst = labels[0]
        pictures = amount(worst.pictures, "picture")
        yield Finding(f"Worst label: {worst.name}, average precision {percent(worst.average_precision)} ({pictures}).")
    absent = len(record.classes) - len(labels)
    if labels and absent:
        yield Finding(
            f"{absent} of {len(record.classes)} labels are on no validation picture and do not count.", warning=True
        )


def _epoch(row: Row) -> int:
    return int(row["epoch"]) + 1
