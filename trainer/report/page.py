"""The page of a report: a record, rendered with the template."""

import shlex
from collections.abc import Iterator
from datetime import datetime
from functools import cache, partial
from math import isfinite, nan
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from augment.support.files import write_atomically
from augment.support.nested import section_of
from augment.support.text import amount, duration
from trainer.callbacks.plots import BATCH
from trainer.figures.images import data_uri, read_png, without_background
from trainer.figures.outputs import plot_outputs
from trainer.loop.checkpoint import LAST
from trainer.report.charts import charts
from trainer.report.findings import findings
from trainer.report.record import MISTAKES, REPORT_FILE, RunRecord
from trainer.run.config import CONFIG_FILE, PLAN_FILE
from trainer.run.summary import FINISHED, RUNNING
from trainer.tasks.display import FigureImage, Section, percent
from trainer.tasks.metrics.classification import wilson_interval
from trainer.tasks.registry import monitored
from trainer.tasks.task import AUTO

_MOST_PIXELS, _WITHIN = 2**26, (1600, 2**26)  # of a figure; those of a run have a tenth of the pixels

RELOAD = 30  # seconds after which the page of a run in progress loads itself again


def write_record(record: RunRecord) -> Path:
    """Write the page of a record into its folder, in place of an old one only when it is complete; return the file."""
    file = record.run.folder / REPORT_FILE
    write_atomically(file, render(record))
    return file


def render(record: RunRecord) -> str:
    """Return the page of a run: HTML without scripts that refers to nothing outside itself."""
    run, ending, folder = record.run, record.ending, record.run.folder.resolve()
    running = ending.status == RUNNING
    resumable = not running and ending.status != FINISHED and (run.folder / LAST).is_file()
    callbacks = section_of(run.config, "callbacks")
    return template().render(
        # A run that has only the name of its folder is shown with the folder above it.
        name=ending.name if ending.name not in ("", folder.name) else "/".join(folder.parts[-2:]),
        reload=RELOAD if running else 0,
        written=f"{datetime.now():%Y-%m-%d %H:%M:%S}",
        ending=ending,
        headline=_headline(
            record, monitored(str(section_of(callbacks, "checkpoint").get("monitor", AUTO)), record.task)
        ),
        findings=findings(record),
        charts=charts(record),
        task=record.task,
        section=_section(record),
        predictions=record.samples is not None,
        mistakes=record.mistakes,
        mistakes_wanted=section_of(callbacks, "report").get("mistakes", MISTAKES),
        batch=_inline(run.folder / BATCH, clear=True),
        plan=run.text(PLAN_FILE),
        config=run.text(CONFIG_FILE),
        command=shlex.join(["python", "-m", "trainer", *run.overrides]),
        resume=shlex.join(["python", "-m", "trainer", f"fit.resume={run.folder}"]) if resumable else "",
        facts=_facts(record),
        table=_table(record),
        notes=run.notes,
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
    environment.filters["percent"] = percent
    return environment.get_template("page.html.jinja")


def _headline(record: RunRecord, monitor: str) -> dict[str, Any]:
    """Return the top of the page, with the best epoch by what was monitored; unknown values are None or left out."""
    task, best = record.task, record.best
    key, name = f"val_{task.score}", f"validation {task.score_title.lower()}"
    show = partial(percent, digits=1) if task.share else "{:.4g}".format
    tiles = []
    if best:
        of = f" of {record.epochs}" if record.epochs else ""
        last = record.rows[-1] if record.rows else best
        ended = nan if last["epoch"] == best["epoch"] else last.get(key, nan)
        also = f"; last epoch: {show(ended)}" if isfinite(ended) else ""  # which was not chosen by a score
        tiles.append(("best epoch", f"{int(best['epoch']) + 1}{of}", f"by {monitor}{also}"))
    for column in task.columns:
        if column.above and column.key in best:
            title = column.title.replace("val ", "validation ")
            tiles.append((title, show(best[column.key]), "of the best epoch"))
    score, interval, total = best.get(key), None, 0
    if record.samples is not None and (counts := task.right_of(record.samples)):
        right, total = counts
        score, interval = right / total, wilson_interval(right, total)
    return {
        "score": None if score is None or not isfinite(score) else show(score),
        "interval": interval,
        "images": amount(total, "image"),
        "tiles": [*tiles, *_tiles(record)],
        "label": f"best {name}" if monitor == key else f"{name} of the best epoch",
        "name": name,
    }


def _tiles(record: RunRecord) -> Iterator[tuple[str, str, str]]:
    """Yield what does not depend on scores: time, speed, model, data, device."""
    facts, config = record.run.facts, record.run.config
    if isfinite(record.ending.seconds):
        notes = ["since resuming"] if section_of(config, "fit").get("resume") else []
        notes += [] if record.left is None else [f"about {duration(record.left)} left"]
        yield "time", duration(record.ending.seconds), ", ".join(notes)
    rates = [row["images_per_second"] for row in record.rows if isfinite(row.get("images_per_second", nan))]
    if rates:
        tail = rates[1:] or rates
        yield "training speed", f"{median(tail):,.0f} img/s", "median after epoch 1" if rates[1:] else ""
    model, source = section_of(config, "model"), section_of(config, "data").get("source")
    count = f"{facts.parameters / 1e6:.2f} M" if facts.parameters >= 10**4 else f"{facts.parameters:,}"
    parameters = f"{count} parameters" if facts.parameters else ""
    yield "model", facts.model or str(model.get("name", model.get("kind", "unknown"))), parameters
    sizes = record.task.count(len(record.classes)) if record.classes else ""
    if facts.images:
        images, samples, val = facts.images
        repeated = f" (repeated to {samples:,})" if samples > images else ""
        sizes = f"{images:,}{repeated} + {val:,} images, {sizes}"
    yield "data", facts.source or str(source or "unknown"), sizes
    yield "device", facts.device or "unknown", ""


def _section(record: RunRecord) -> dict[str, Any]:
    """Return the blocks about single classes, and the task's figure if they show it, drawn if the run did not."""
    if record.samples is None:
        return Section()._asdict() | {"figure": ""}
    section = record.task.section(record.samples, record.classes)
    if not any(isinstance(block, FigureImage) for block in (*section.side_by_side, *section.below)):
        return section._asdict() | {"figure": ""}
    file = record.run.folder / record.task.figure_file
    if not file.is_file() and (figure := record.task.figure(record.samples, record.classes)):
        plot_outputs(figure, file)
    return section._asdict() | {"figure": _inline(file)}


def _inline(file: Path, *, clear: bool = False) -> str:
    """Return a figure of the run as a data URI, `clear` around its images if it says where they are; empty if none."""
    image = read_png(file, _MOST_PIXELS, _WITHIN)
    if image is None:
        return ""
    cleared = without_background(image) if clear else image
    return data_uri(cleared, "JPEG" if cleared is image else "WEBP", 85)


def _facts(record: RunRecord) -> list[tuple[str, str]]:
    """Return what one needs to run it again, besides the command."""
    config = record.run.config
    facts = {
        **record.run.versions(),
        "seed": config.get("seed"),
        "images": section_of(config, "data").get("root"),
        "folder": record.run.folder.resolve(),
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
