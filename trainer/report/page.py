"""The page of a report: a record, rendered with the template."""

import shlex
from datetime import datetime
from functools import cache
from math import isfinite, nan, sqrt
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from augment.support.files import write_atomically
from augment.support.nested import section_of
from augment.support.text import amount, duration
from trainer.callbacks.plots import BATCH
from trainer.figures.outputs import plot_outputs
from trainer.loop.checkpoint import LAST
from trainer.report.charts import charts
from trainer.report.findings import findings
from trainer.report.images import inline_image
from trainer.report.record import MISTAKES, REPORT_FILE, RunRecord
from trainer.run.config import CONFIG_FILE, PLAN_FILE
from trainer.run.environment import describe_environment
from trainer.run.summary import RUNNING
from trainer.tasks.display import FigureImage, Matrix, Section, percent
from trainer.tasks.metrics.classification import wilson_interval
from trainer.tasks.registry import monitored
from trainer.tasks.task import AUTO

RELOAD = 30  # seconds after which the page of a run in progress loads itself again


def write_record(record: RunRecord) -> Path:
    """Write the page of a record into its folder, in place of an old one only when it is complete; return the file.

    Raises:
        OSError: the file cannot be written.
        UserError: it is a link.
    """
    file = record.folder / REPORT_FILE
    write_atomically(file, render(record))
    return file


def render(record: RunRecord) -> str:
    """Return the page of a run: HTML without scripts that refers to nothing outside itself."""
    return template().render(
        name=_name(record),
        reload=RELOAD if record.ending.status == RUNNING else 0,
        written=f"{datetime.now():%Y-%m-%d %H:%M:%S}",
        ending=record.ending,
        headline=_headline(record),
        findings=findings(record),
        charts=charts(record),
        task=record.task,
        section=_section(record),
        predictions=record.samples is not None,
        mistakes=record.mistakes,
        no_mistakes=_no_mistakes(record),
        batch=inline_image(record.folder / BATCH),
        plan=record.run.text(PLAN_FILE),
        config=record.run.text(CONFIG_FILE),
        command=shlex.join(["python", "-m", "trainer", *record.run.overrides]),
        resume=_resume(record),
        facts=_facts(record),
        table=_table(record),
        notes=record.run.notes,
    )


@cache
def template() -> Template:
    """Return the template of the page; compiling it takes a while."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # names of classes and files may be anything
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "cells": _cells}
    return environment.get_template("page.html.jinja")


def _name(record: RunRecord) -> str:
    """Return the run's name; a run that has only that of its folder is shown with the folder above it."""
    folder = record.folder.resolve()
    return record.ending.name if record.ending.name not in ("", folder.name) else "/".join(folder.parts[-2:])


def _headline(record: RunRecord) -> dict[str, Any]:
    """Return the top of the page; unknown values are None or left out."""
    tiles = []
    if record.best:
        of = f" of {record.epochs}" if record.epochs else ""
        tiles.append(("best epoch", f"{int(record.best['epoch']) + 1}{of}", f"by {_monitor(record)}{_last(record)}"))
    for column in record.task.columns:
        if column.above and column.key in record.best:
            value = _shown(record, record.best[column.key])
            tiles.append((column.title.replace("val ", "validation "), value, "of the best epoch"))
    if isfinite(record.ending.seconds):
        notes = ["since resuming"] if section_of(record.run.config, "fit").get("resume") else []
        notes += [] if record.left is None else [f"about {duration(record.left)} left"]
        tiles.append(("time", duration(record.ending.seconds), ", ".join(notes)))
    rates = [row["images_per_second"] for row in record.rows if isfinite(row.get("images_per_second", nan))]
    if rates:
        tail = rates[1:] or rates
        tiles.append(("training speed", f"{median(tail):,.0f} img/s", "median after epoch 1" if rates[1:] else ""))
    facts, config = record.run.facts, record.run.config
    model, source = section_of(config, "model"), section_of(config, "data").get("source")
    parameters = f"{_count(facts.parameters)} parameters" if facts.parameters else ""
    tiles.append(("model", facts.model or str(model.get("name", model.get("kind", "unknown"))), parameters))
    tiles.append(("data", facts.source or str(source or "unknown"), _sizes(record)))
    tiles.append(("device", facts.device or "unknown", ""))
    key = f"val_{record.task.score}"
    score, interval, total = record.best.get(key), None, 0
    if record.samples is not None and (counts := record.task.right_of(record.samples)):
        right, total = counts
        score, interval = right / total, wilson_interval(right, total)
    shown = None if score is None or not isfinite(score) else _shown(record, score)
    name = f"validation {record.task.score_title.lower()}"
    label = f"best {name}" if _monitor(record) == key else f"{name} of the best epoch"
    return {
        "score": shown,
        "interval": interval,
        "images": amount(total, "image"),
        "tiles": tiles,
        "label": label,
        "name": name,
    }


def _shown(record: RunRecord, score: float) -> str:
    return percent(score, 1) if record.task.share else f"{score:.4g}"


def _monitor(record: RunRecord) -> str:
    given = section_of(section_of(record.run.config, "callbacks"), "checkpoint")
    return monitored(str(given.get("monitor", AUTO)), record.task)


def _last(record: RunRecord) -> str:
    """Return the score of the last epoch, which was not chosen by a score."""
    last = record.rows[-1] if record.rows else record.best
    score = last.get(f"val_{record.task.score}", nan)
    if last["epoch"] == record.best["epoch"] or not isfinite(score):
        return ""
    return f"; last epoch: {_shown(record, score)}"


def _sizes(record: RunRecord) -> str:
    classes = record.task.count(len(record.classes)) if record.classes else ""
    if not record.run.facts.images:
        return classes
    images, samples, val = record.run.facts.images
    repeated = f" (repeated to {samples:,})" if samples > images else ""
    return f"{images:,}{repeated} + {val:,} images, {classes}"


def _section(record: RunRecord) -> dict[str, Any]:
    """Return the blocks about single classes, and the task's figure if they show it, drawn if the run did not."""
    if record.samples is None:
        return Section()._asdict() | {"figure": ""}
    section = record.task.section(record.samples, record.classes)
    if not any(isinstance(block, FigureImage) for block in (*section.side_by_side, *section.below)):
        return section._asdict() | {"figure": ""}
    file = record.folder / record.task.figure_file
    if not file.is_file() and (figure := record.task.figure(record.samples, record.classes)):
        plot_outputs(figure, file)
    return section._asdict() | {"figure": inline_image(file)}


def _cells(matrix: Matrix) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the rows of a confusion matrix: a name, and for each cell its count, color strength and tooltip."""
    rows = []
    for i, (name, counts) in enumerate(zip(matrix.names, matrix.counts.tolist(), strict=True)):
        total = sum(counts) or 1
        # The square root keeps the rare confusions of a good model visible.
        cells = [
            {"count": count, "strength": round(sqrt(count / total), 3), "right": i == j}
            | {"tip": f"{name} predicted as {other}: {count} of {sum(counts)}"}
            for j, (count, other) in enumerate(zip(counts, matrix.names, strict=True))
        ]
        rows.append((name, cells))
    return rows


def _no_mistakes(record: RunRecord) -> str:
    """Return why no mistakes are shown; empty if nobody wanted them."""
    if record.samples is None:
        return "best.pt has no predictions of single images."
    if record.mistakes is None:
        return "They are drawn at the end of a run by callbacks.report, and this run has not kept them."
    wanted = section_of(section_of(record.run.config, "callbacks"), "report").get("mistakes", MISTAKES)
    return "None: every image is right." if wanted else ""


def _resume(record: RunRecord) -> str:
    if record.ending.status in ("finished", RUNNING) or not (record.folder / LAST).is_file():
        return ""
    return shlex.join(["python", "-m", "trainer", f"fit.resume={record.folder}"])


def _facts(record: RunRecord) -> list[tuple[str, str]]:
    """Return what one needs to run it again, besides the command."""
    config = record.run.config
    facts = {
        **describe_environment(record.run.environment),
        "seed": config.get("seed"),
        "images": section_of(config, "data").get("root"),
        "folder": record.folder.resolve(),
    }
    return [(name, str(value)) for name, value in facts.items() if value not in ("", None)]


def _table(record: RunRecord) -> dict[str, Any]:
    """Return head and lines of the table of all epochs."""
    alone = (column for metric in record.task.unit_metrics(record.classes) for column in metric.columns)
    columns = [column for column in (*record.task.columns, *alone) if any(column.key in row for row in record.rows)]
    lines = []
    for row in record.rows:
        values = [(row.get(column.key, nan), column.page or column.line) for column in columns]
        lines.append((int(row["epoch"]) + 1, [form.format(v) if isfinite(v) else "-" for v, form in values]))
    return {"head": [column.title for column in columns], "lines": lines}


def _count(number: int) -> str:
    return f"{number / 1e6:.2f} M" if number >= 10**4 else f"{number:,}"
