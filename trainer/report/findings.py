"""Findings about a run, as sentences."""

import math
from collections.abc import Iterator, Sequence
from statistics import median

import numpy as np

from augment.support.formatting import percent, plural
from trainer.loop.checkpoint import LAST
from trainer.report.charts import column
from trainer.report.run_content import RunRecord
from trainer.run.folder.facts import FACTS_FILE
from trainer.run.folder.summary import FAILED, FINISHED, INTERRUPTED, KILLED, RUNNING
from trainer.tasks.display import Finding
from trainer.tasks.metric import MetricsRow

_LOSSES = {"train_loss": "training", "val_loss": "validation"}
_EXPLODED = 10  # a loss above this, and above this multiple of the lowest loss, is too high for stable training


def findings(record: RunRecord) -> list[Finding]:
    """Return all findings about a run. Warnings come first."""
    task_findings = () if record.best_pass is None else record.best_pass.findings
    found = [*_run_findings(record), *task_findings, *_learning_findings(record), *_speed_findings(record)]
    return sorted(found, key=lambda finding: not finding.warning)


def _run_findings(record: RunRecord) -> Iterator[Finding]:
    """Yield findings about the end of the run, its data and its losses."""
    done, ending = len(record.run.rows), record.run.summary
    planned = f" of {record.epochs}" if record.epochs else ""
    epochs = f"{done}{planned} {plural(record.epochs or done, 'epoch')}"
    resumable = ending.status == INTERRUPTED or (record.run.folder / LAST).is_file()
    resume = " Continue it with fit.resume." if resumable else ""
    if ending.status == FAILED:
        yield Finding(f"The run failed after {epochs}: {ending.error or 'the reason was not recorded'}", warning=True)
    elif ending.status in (INTERRUPTED, KILLED):
        yield Finding(f"The run was {ending.status} after {epochs}.{resume}", warning=True)
    elif ending.status != RUNNING and record.epochs and done < record.epochs:
        why = f": {ending.stopped}" if ending.stopped else ""
        yield Finding(f"The run ended early, after {epochs}{why}.")
    if not record.run.facts.task:
        yield Finding(
            f"{FACTS_FILE} is missing, so the schedules, the device and the sizes of data and model are unknown."
        )
    for text in record.run.facts.warnings:
        yield Finding(text if text.endswith(".") else f"{text}.", warning=True)
    for key, name in _LOSSES.items():
        bad = [row for row in record.run.rows if key in row and not math.isfinite(row[key])]
        if bad:
            yield Finding(f"The {name} loss is not finite in epoch {_number(bad[0])}.", warning=True)


def _learning_findings(record: RunRecord) -> Iterator[Finding]:
    """Yield findings about overfitting and underfitting."""
    display = record.display
    finite = [
        (row[key], _number(row), name)
        for row in record.run.rows
        for key, name in _LOSSES.items()
        if math.isfinite(row.get(key, math.nan))
    ]
    worst, epoch, name = max(finite, default=(0.0, 0, ""))
    if display.share and finite and worst > _EXPLODED * max(1, min(finite)[0]):
        yield Finding(
            f"The {name} loss was {worst:.3g} in epoch {epoch}, so training was unstable. Try a smaller fit.lr, or "
            "callbacks.grad_clip.max_norm=1.",
            warning=True,
        )
    key, title, smaller = f"val_{display.score}", display.score_title.lower(), display.smaller
    if found := _overfits(record.run.rows):
        lowest, last = found
        yield Finding(
            f"Training loss still falls, but validation loss has risen since epoch {_number(lowest)} "
            f"({lowest['val_loss']:.3g} to {last['val_loss']:.3g}): overfitting. Try more augmentation, more weight "
            "decay or fewer epochs.",
            warning=True,
        )
        return
    score = column([row for row in record.run.rows if key in row], key) * (-1 if smaller else 1)
    known = record.run.summary.status == FINISHED and len(score) >= 3 and np.isfinite(score).all()
    if known and score[-1] > score[:-1].max():
        which = "lowest" if smaller else "highest"
        yield Finding(f"Validation {title} was {which} in the last epoch, so more epochs may help.")
    last = next((row for row in reversed(record.run.rows) if key in row), record.best)
    train, val = (last.get(f"{split}_{display.score}", math.nan) for split in ("train", "val"))
    if display.share and train - val > 0.1:
        yield Finding(
            f"In epoch {_number(last)}, {title} is {100 * (train - val):.0f} points higher in training than in "
            "validation, a sign of overfitting. More augmentation or weight decay may help."
        )


def _overfits(rows: Sequence[MetricsRow]) -> tuple[MetricsRow, MetricsRow] | None:
    """Return the rows of the lowest and the last validation loss, or None without overfitting.

    With overfitting, validation loss has risen since its lowest value, and training loss has fallen.
    """
    finite = [r for r in rows if all(math.isfinite(r.get(key, math.nan)) for key in ("train_loss", "val_loss"))]
    if len(finite) < 4:
        return None
    lowest = min(finite, key=lambda row: row["val_loss"])
    # Single epochs are noisy, so a median must also be higher.
    since = finite[finite.index(lowest) + 1 :]
    if len(since) < max(2, len(finite) // 10):
        return None
    end = min(median(row["val_loss"] for row in since[-3:]), since[-1]["val_loss"])
    falls = since[-1]["train_loss"] < lowest["train_loss"]
    return (lowest, since[-1]) if falls and end > 1.05 * lowest["val_loss"] else None


def _speed_findings(record: RunRecord) -> Iterator[Finding]:
    """Yield a finding about the time spent waiting for data, without the first epoch, which is slow."""
    rows = record.run.rows[1:] or record.run.rows
    shares = [row["waiting"] for row in rows if math.isfinite(row.get("waiting", math.nan))]
    if shares:
        share = median(shares)
        hint = " Try more fit.threads or smaller files." if share >= 0.1 else ""
        waited = f"The model waited {percent(share)} of the training time for data.{hint}"
        yield Finding(waited, warning=bool(hint))


def _number(row: MetricsRow) -> int:
    return int(row["epoch"]) + 1
