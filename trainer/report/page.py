"""The page: what a record holds, in the order that serves its reader, put into the template."""

import shlex
from collections.abc import Mapping
from functools import cache
from math import isfinite, sqrt
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from augment.files import write_whole
from trainer.checkpoint import LAST
from trainer.confusion_plot import plot_confusion
from trainer.metrics import wilson_interval
from trainer.pictures import BATCH, CONFUSION
from trainer.report import REPORT_FILE, Ending, Report
from trainer.report.charts import charts
from trainer.report.classes import class_scores, most_confused
from trainer.report.findings import findings, percent
from trainer.report.images import UnfitError, inline_picture, mistakes
from trainer.report.outputs import outputs_of
from trainer.report.record import Record, read_record
from trainer.run import CONFIG_FILE, PLAN_FILE
from trainer.tasks import AUTO, Row, monitored

# Classes up to which the confusion matrix has room beside the bars; beyond, the most confused pairs are listed there,
# and it stands below, up to so many classes as a table and then as a picture.
_BESIDE, MATRIX, PAIRS = 12, 20, 20

# Classes that are shown before the rest is folded away.
_BARS = 30

_COLUMNS = {
    "train_loss": ("train loss", "{:.4f}"),
    "train_accuracy": ("train acc", "{:.2%}"),
    "val_loss": ("val loss", "{:.4f}"),
    "val_accuracy": ("val acc", "{:.2%}"),
    "val_map": ("val mAP", "{:.2%}"),
    "train_mae": ("train mae", "{:.4g}"),
    "val_mae": ("val mae", "{:.4g}"),
    "val_rmse": ("val rmse", "{:.4g}"),
    "val_r2": ("val R²", "{:.3f}"),
    "lr": ("lr", "{:.2g}"),
    "images_per_second": ("img/s", "{:,.0f}"),
    "waiting": ("waiting", "{:.0%}"),
    "gpu_memory_mib": ("GPU MiB", "{:,.0f}"),
    "seconds": ("seconds", "{:.1f}"),
}


def write_report(folder: Path, ending: Ending | None = None) -> Path:
    """Write the report of a run into its folder; whoever reads it meanwhile sees the old one.

    Args:
        folder: of the run.
        ending: how it ended, if summary.json does not say so yet.

    Returns:
        The file.

    Raises:
        OSError: it cannot be written.
    """
    file = folder / REPORT_FILE
    write_whole(file, render(read_record(folder, ending)))
    return file


def render(record: Record) -> str:
    """Return the page of a run: one file of HTML without scripts, which refers to nothing outside of itself."""
    return _template().render(
        name=_name(record.folder),
        ending=record.ending,
        headline=_headline(record),
        findings=findings(record),
        charts=charts(record),
        **_classes(record),
        **outputs_of(record),
        **_mistakes(record),
        batch=inline_picture(record.folder / BATCH),
        plan=record.texts.get(PLAN_FILE, ""),
        config=record.texts.get(CONFIG_FILE, ""),
        command=shlex.join(["python", "-m", "trainer", *record.overrides]),
        resume=_resume(record),
        facts=_facts(record),
        table=_table(record.rows),
        notes=record.notes,
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # names of classes and files are anything
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = percent
    return environment.get_template("page.html.jinja")


def _name(folder: Path) -> str:
    folder = folder.resolve()
    return f"{folder.parent.name}/{folder.name}"


def _headline(record: Record) -> dict[str, Any]:
    """Return what stands at the top; a value that nobody knows is None or left out."""
    tiles = []
    if record.best:
        of = f" of {record.epochs}" if record.epochs else ""
        tiles.append(("best epoch", f"{int(record.best['epoch']) + 1}{of}", f"by {_monitor(record)}{_last(record)}"))
    if record.ending.seconds is not None:
        resumed = record.config is not None and record.config.fit.resume
        tiles.append(("time", _duration(record.ending.seconds), "since it was resumed" if resumed else ""))
    rates = [row["images_per_second"] for row in record.rows if isfinite(row.get("images_per_second", float("nan")))]
    if rates:
        tail = rates[1:] or rates
        tiles.append(("training speed", f"{median(tail):,.0f} img/s", "median after epoch 1" if rates[1:] else ""))
    parameters = "" if record.parameters is None else f"{_count(record.parameters)} parameters"
    tiles.append(("model", _model(record), parameters))
    tiles.append(("data", _source(record), _sizes(record)))
    tiles.append(("device", _device(record), ""))
    key = f"val_{record.judging.quantity}"
    score, interval, total = record.best.get(key), None, 0
    if record.confusion is not None:
        right, total = int(np.trace(record.confusion)), int(record.confusion.sum())
        score, interval = right / total, wilson_interval(right, total)
    shown = None if score is None or not isfinite(score) else _shown(record, score)
    name = f"validation {record.judging.title.lower()}"
    label = f"best {name}" if _monitor(record) == key else f"{name} of the best epoch"
    return {"score": shown, "interval": interval, "total": total, "tiles": tiles, "label": label, "name": name}


def _shown(record: Record, score: float) -> str:
    return percent(score, 1) if record.judging.share else f"{score:.4g}"


def _monitor(record: Record) -> str:
    given = record.config.resolved["callbacks"].get("checkpoint") if record.config else None
    return monitored(str(given["monitor"]) if given else AUTO, record.task)


def _last(record: Record) -> str:
    """Say what the last epoch scored, which nothing was chosen by."""
    last = record.rows[-1] if record.rows else record.best
    score = last.get(f"val_{record.judging.quantity}", float("nan"))
    if last["epoch"] == record.best["epoch"] or not isfinite(score):
        return ""
    return f"; last epoch: {_shown(record, score)}"


def _model(record: Record) -> str:
    if record.config is None:
        return "unknown"
    settings = record.config.resolved["model"]
    return str(settings.get("name", settings["kind"]))


def _source(record: Record) -> str:
    if record.config is None:
        return "unknown"
    return ", ".join(filter(None, (record.config.resolved["data"]["source"], record.config.data.part)))


def _sizes(record: Record) -> str:
    classes = record.judging.counted(len(record.classes)) if record.classes else ""
    if record.dataset is None:
        return classes
    train, val = record.dataset.train, record.dataset.val
    samples = f" (repeated to {len(train):,})" if train.repeated else ""
    return f"{train.pictures:,}{samples} + {len(val):,} pictures, {classes}"


def _device(record: Record) -> str:
    gpus = record.environment.get("gpus") or []
    cpu = not gpus or (record.config is not None and record.config.fit.device == "cpu")
    return "CPU" if cpu else str(gpus[0])


def _classes(record: Record) -> dict[str, Any]:
    if record.confusion is None:
        return {"scores": [], "folded": [], "matrix": [], "pairs": [], "confusion_picture": "", "classes": ()}
    confusion, classes = record.confusion, record.classes
    scores = class_scores(confusion, classes)
    small = len(classes) <= MATRIX
    bars = len(scores) if len(scores) <= _BARS else _BARS
    return {
        "scores": scores[:bars],
        "folded": scores[bars:],
        "classes": classes,
        "matrix": _matrix(record) if small else [],
        "pairs": [] if len(classes) <= _BESIDE else most_confused(confusion, classes, PAIRS),
        "confusion_picture": "" if small else _confusion_picture(record),
    }


def _matrix(record: Record) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the rows of the table: a name, and for each cell its count, its color's strength and what it says."""
    assert record.confusion is not None
    rows = []
    for i, (name, counts) in enumerate(zip(record.classes, record.confusion.tolist(), strict=True)):
        total = sum(counts) or 1
        # The square root keeps the rare confusions of a good model visible.
        cells = [
            {"count": count, "strength": round(sqrt(count / total), 3), "right": i == j}
            | {"tip": f"{name} taken for {other}: {count} of {sum(counts)}"}
            for j, (count, other) in enumerate(zip(counts, record.classes, strict=True))
        ]
        rows.append((name, cells))
    return rows


def _confusion_picture(record: Record) -> str:
    file = record.folder / CONFUSION
    if not file.is_file():
        assert record.confusion is not None
        plot_confusion(record.confusion, record.classes, file)
    return inline_picture(file, widest=1400)


def _mistakes(record: Record) -> dict[str, Any]:
    settings = record.config.resolved["callbacks"].get("report") if record.config else None
    count = Report().mistakes if settings is None else settings["mistakes"]
    try:
        wrong = mistakes(record, count)
    except UnfitError as error:
        return {"mistakes": [], "no_mistakes": str(error)}
    return {"mistakes": wrong, "no_mistakes": "" if wrong or not count else "There is none: every picture is right."}


def _resume(record: Record) -> str:
    if record.ending.status == "finished" or not (record.folder / LAST).is_file():
        return ""
    return shlex.join(["python", "-m", "trainer", f"fit.resume={record.folder}"])


def _facts(record: Record) -> list[tuple[str, str]]:
    """Return what is needed to run it again, besides the command."""
    facts = []
    if git := record.environment.get("git"):
        changed = ", with changes that were not committed" if git.get("modified") else ""
        facts.append(("git revision", f"{git.get('revision')}{changed}"))
    if record.config is not None:
        facts.append(("seed", str(record.config.seed)))
    if python := record.environment.get("python"):
        facts.append(("Python", str(python)))
    packages: Mapping[str, str | None] = record.environment.get("packages") or {}
    facts += [(package, version) for package, version in packages.items() if version]
    facts.append(("GPU", ", ".join(record.environment.get("gpus") or []) or "none"))
    if record.config is not None and (root := record.config.resolved["data"].get("root")):
        facts.append(("pictures", str(root)))
    facts.append(("folder", str(record.folder.resolve())))
    return facts


def _table(rows: list[Row]) -> dict[str, Any]:
    """Return head and lines of the table of all epochs."""
    keys = [key for key in _COLUMNS if any(key in row for row in rows)]
    lines = []
    for row in rows:
        cells = [_COLUMNS[key][1].format(row[key]) if isfinite(row.get(key, float("nan"))) else "-" for key in keys]
        lines.append((int(row["epoch"]) + 1, cells))
    return {"head": [_COLUMNS[key][0] for key in keys], "lines": lines}


def _duration(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def _count(number: int) -> str:
    return f"{number / 1e6:.2f} M" if number >= 10**4 else f"{number:,}"
