"""Render the record of a run as an HTML page."""

import re
import shlex
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from functools import partial
from hashlib import sha256
from math import isfinite, nan
from pathlib import Path
from statistics import median
from typing import Any

from augment.support.files import json_line, write_atomically
from augment.support.formatting import amount, as_bytes, duration, percent
from augment.support.nested import value_at
from augment.support.untrusted_files import read_as, read_text
from augment.support.yaml_files import MAX_YAML_BYTES
from trainer.callbacks.plots import BATCH
from trainer.figures import label_report
from trainer.figures.images import data_uri, read_png, without_background
from trainer.figures.templates import html_template
from trainer.loop.checkpoint import LAST
from trainer.report.charts import charts
from trainer.report.findings import findings
from trainer.report.run_content import REPORT_FILE, RunRecord
from trainer.run.config.schema import CONFIG_FILE, PLAN_FILE
from trainer.run.folder.summary import FINISHED, RUNNING
from trainer.tasks.metric import Column
from trainer.tasks.task import AUTO

_HERE = Path(__file__).parent
_MAX_CELLS = 100_000  # cells in the table of epochs
_MAX_PIXELS = 2**26  # maximum number of pixels of a figure. Real figures have a tenth as many
_WITHIN = (1600, 2**26)  # maximum width and height of a figure in the page

# Number formats that cannot produce long strings, because strangers may choose them.
_FORM = re.compile(r"\{:,?\.\d[fg%]\}")

RELOAD = 30  # seconds after which the page of a running fit reloads itself


def write_record(record: RunRecord) -> Path:
    """Write the page of a record into its folder. Return the file."""
    file = record.run.folder / REPORT_FILE
    write_atomically(file, render(record))
    if labels := labels_of(record):
        write_page(record.run.folder, labels, record.run.name)
    return file


def labels_of(record: RunRecord) -> label_report.LabelReport | None:
    """Return the label audit of a run that has ended, if there is one."""
    if record.run.summary.status == RUNNING:
        return None
    return record.run.attempt(label_report.REPORT_FILE, partial(read_as, label_report.LabelReport), None)


def write_page(folder: Path, report: label_report.LabelReport, name: str) -> None:
    """Write the page for checking labels into the folder of a run. It runs only its own script, and loads nothing."""
    script = html_template(_HERE, "labels.js.jinja").render()
    policy = f"script-src 'sha256-{b64encode(sha256(as_bytes(script)).digest()).decode()}'"
    shown = {"suspects": [asdict(one) for one in report.suspects], "several": report.several, "names": report.classes}
    content = json_line(shown).replace("<", "\\u003c")  # names may contain tags
    page = html_template(_HERE, "labels.html.jinja")
    text = page.render(name=name, report=report, content=content, script=script, policy=policy)
    write_atomically(folder / label_report.PAGE_FILE, text)


def render(record: RunRecord) -> str:
    """Render the page of a run. The HTML has no scripts and refers to no other files."""
    run, ending, folder = record.run, record.run.summary, record.run.folder.resolve()
    running, read = ending.status == RUNNING, partial(read_text, most=MAX_YAML_BYTES)
    resumable = not running and ending.status != FINISHED and (run.folder / LAST).is_file()
    labels = labels_of(record)
    return html_template(_HERE, "page.html.jinja").render(
        # A run without a name shows its folder and the folder above it.
        name=ending.name if ending.name not in ("", folder.name) else "/".join(folder.parts[-2:]),
        reload=RELOAD if running else 0,
        written=f"{datetime.now():%Y-%m-%d %H:%M:%S}",
        ending=ending,
        headline=_headline(record),
        test=run.test_scores,
        findings=[*findings(record), *(labels.findings if labels else ())],
        labels=labels,
        labels_page=label_report.PAGE_FILE,
        charts=charts(record),
        display=record.display,
        shown=record.best_pass,
        figure=partial(_inline, run.folder / Path(record.display.figure_file).name),
        batch=_inline(run.folder / BATCH),
        resumed=value_at(run.config, "fit.resume"),
        plan=run.attempt(PLAN_FILE, read, ""),
        config=run.attempt(CONFIG_FILE, read, ""),
        command=shlex.join(["python", "-m", "trainer", *run.overrides]),
        resume=shlex.join(["python", "-m", "trainer", f"fit.resume={run.folder}"]) if resumable else "",
        facts={
            **run.versions(),
            "seed": run.config.get("seed"),
            "images": value_at(run.config, "data.root"),
            "folder": folder,
        },
        table=_table(record),
        notes=run.notes,
    )


def _headline(record: RunRecord) -> dict[str, Any]:
    """Return the top of the page, which describes the best epoch. Unknown values are left out or None."""
    display, best, found = record.display, record.best, record.best_pass
    chosen = value_at(record.run.config, "callbacks.checkpoint.monitor") or AUTO
    monitor = display.monitor if chosen == AUTO else chosen
    key, name = f"val_{display.score}", f"validation {display.score_title.lower()}"
    show = partial(percent, digits=1) if display.share else "{:.4g}".format
    tiles = []
    if best:
        planned = f" of {record.epochs}" if record.epochs else ""
        last = record.run.rows[-1] if record.run.rows else best
        ended = nan if last["epoch"] == best["epoch"] else last.get(key, nan)
        also = f", last epoch: {show(ended)}" if isfinite(ended) else ""
        tiles.append(("best epoch", f"{int(best['epoch']) + 1}{planned}", f"by {monitor}{also}"))
    for column in display.columns:
        if column.above and column.key in best:
            title = column.title.replace("val ", "validation ")
            tiles.append((title, show(best[column.key]), "of the best epoch"))
    score = best.get(key, nan)
    return {
        "score": show(score) if isfinite(score) else None,
        "interval": found and found.interval,
        "images": amount(found.total if found else 0, "image"),
        "tiles": [*tiles, *_tiles(record)],
        "label": f"best {name}" if monitor == key else f"{name} of the best epoch",
        "name": name,
    }


def _tiles(record: RunRecord) -> Iterator[tuple[str, str, str]]:
    """Yield the tiles that do not depend on scores: time, speed, model, data and device."""
    facts = record.run.facts
    if isfinite(record.run.summary.seconds):
        notes = ["since resuming"] if value_at(record.run.config, "fit.resume") else []
        notes += [] if record.left is None else [f"about {duration(record.left)} left"]
        yield "time", duration(record.run.summary.seconds), ", ".join(notes)
    rates = [row["images_per_second"] for row in record.run.rows if isfinite(row.get("images_per_second", nan))]
    if rates:
        tail = rates[1:] or rates
        yield "training speed", f"{median(tail):,.0f} img/s", "median after epoch 1" if rates[1:] else ""
    count = f"{facts.parameters / 1e6:.2f} M" if facts.parameters >= 10**4 else f"{facts.parameters:,}"
    parameters = f"{count} trainable parameters" if facts.parameters else ""
    yield "model", facts.model or "unknown", parameters
    sizes = record.display.count
    if facts.images:
        images, samples, val = facts.images
        repeated = f" (repeated to {samples:,})" if samples > images else ""
        sizes = f"{images:,}{repeated} + {val:,} images, {sizes}"
    yield "data", facts.source or "unknown", sizes
    yield "device", facts.device or "unknown", ""


def _inline(file: Path) -> str:
    """Return a figure of the run as a data URI, see `without_background`. Empty without a figure."""
    if (image := read_png(file, _MAX_PIXELS, _WITHIN)) is None:
        return ""
    cleared = without_background(image)
    return data_uri(cleared, "JPEG" if cleared is image else "WEBP", 85)


def _table(record: RunRecord) -> dict[str, Any]:
    """Return title, head and lines of the table of epochs. A very long table has only the last epochs."""
    measured = {key for row in record.run.rows for key in row}
    columns = [column for column in record.display.columns if column.key in measured]
    lines = []
    for row in record.run.rows[-max(1, _MAX_CELLS // max(1, len(columns))) :]:
        lines.append((int(row["epoch"]) + 1, [_cell(row.get(column.key, nan), column) for column in columns]))
    shown = "All" if len(lines) == len(record.run.rows) else f"The last {len(lines):,}"
    return {"title": f"{shown} epochs", "head": [column.title for column in columns], "lines": lines}


def _cell(value: float, column: Column) -> str:
    form = column.page or column.line
    return (form if _FORM.fullmatch(form) else "{:.4g}").format(value) if isfinite(value) else "-"
