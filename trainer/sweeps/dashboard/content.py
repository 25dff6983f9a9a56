"""Collect the data of the dashboard as plain values.

Values are rounded and clipped, because run folders may come from strangers.
"""

import math
import os
from base64 import b64decode
from collections.abc import Hashable, Sequence
from datetime import datetime
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from PIL import Image

from augment.support.errors import UserError
from augment.support.formatting import as_bytes, clip
from augment.support.nested import grouped, section_of
from augment.support.untrusted_files import explained_damage, read_object
from trainer.callbacks.plots import BATCH, MISTAKES, REPORT
from trainer.figures.images import data_uri, read_png, without_background
from trainer.run.folder.reader import RunFolder
from trainer.run.folder.run_names import job_sort_key
from trainer.run.folder.summary import FINISHED
from trainer.sweeps.comparison import compare_runs
from trainer.sweeps.dashboard.settings import KEY, VALUE, Settings, groups, importance
from trainer.sweeps.run_groups import comparable, value_of
from trainer.tasks.metric import SHARE, MetricsRow
from trainer.tasks.registry import known_tasks, range_of, smaller_is_better

MOST_RUNS = 5_000
_MAX_METRICS = 24
_MAX_COMPARED = 40  # configurations of a sweep
_MAX_TEXT = 1_000  # characters of an error
_MAX_TAGS, _MAX_FACTS = 20, 40
_CURVE_BYTES, _POINT_BYTES = 1_800_000, 7
_MAX_POINTS, _FEWEST_POINTS = 200, 8  # of a curve
_AXES = ("steps", "seconds", "images")  # alternatives to epochs on the x axis of curves

Epochs = tuple[int, ...]


def collect(runs: Sequence[RunFolder], folder: Path, base: Path) -> dict[str, Any]:
    """Return the data of the page about the last `MOST_RUNS` runs in a folder. Links are relative to `base`."""
    omitted, runs = max(0, len(runs) - MOST_RUNS), runs[-MOST_RUNS:]
    sweeps = grouped((run.sweep, i) for i, run in enumerate(runs) if run.sweep is not None)
    numbers = {sweep: number for number, sweep in enumerate(sweeps)}
    settings, metrics = Settings(runs), _metrics(runs)
    group_names, group_of = groups(runs)
    environments, environment_of = _environments(runs)
    images, images_of = _embed(runs, settings, base)
    alike = comparable(runs)
    points = _points(runs, metrics)
    epochs: dict[Epochs, int] = {}
    rows = []
    for i, run in enumerate(runs):
        progress = _progress(run)
        rows.append({
            **_about(run, folder),
            "report": href(run.folder / REPORT, base),
            "sweep": -1 if run.sweep is None else numbers[run.sweep],
            "group": group_of[i][0],
            "replicate": group_of[i][1],
            "monitor": metrics.index(run.score),
            "comparable": alike[i],
            "last": [rounded(run.last.get(key)) for key in metrics],
            "best": [rounded(run.summary.best.get(key)) for key in metrics],
            "curves": [_curve(run.rows, key, points, epochs) for key in metrics],
            "axes": [_curve(progress, key, points, epochs) for key in _AXES],
            "order": run.job["order"] if run.job else i,
            "environment": environment_of[i],
            "images": images_of[i],
        })  # fmt: skip
    return {
        "title": clip(folder.resolve().name, KEY),
        "made": datetime.now().strftime("%Y-%m-%d %H:%M:%S"),
        "omitted": omitted,
        "runs": rows,
        "sweeps": [_sweep(sweep, jobs, runs, settings, folder) for sweep, jobs in sweeps.items()],
        "groups": group_names,
        "params": settings.plain(),
        "metrics": list(map(_metric, metrics)),
        "epochs": list(epochs),
        "environments": environments,
        "images": images,
    }


def _about(run: RunFolder, folder: Path) -> dict[str, Any]:
    """Return the values of a run that do not depend on other runs."""
    part = "job" if run.job else ""
    if run.candidate:
        part = "trial" if run.trial else "finalist"
    return {
        "name": clip(run.name, KEY),
        "status": run.status,
        "tags": [clip(tag, KEY) for tag in run.summary.tags[:_MAX_TAGS]],
        "error": clip(run.summary.error, _MAX_TEXT),
        "stopped": clip(run.summary.stopped, _MAX_TEXT),
        "notes": clip("\n".join(f"{file}: {why}" for file, why in run.notes.items()), _MAX_TEXT),
        "epochs": len(run.rows),
        "planned": run.summary.planned,
        "seconds": rounded(run.summary.seconds) or None,
        "started": run.started,
        "path": clip(os.path.relpath(run.folder, folder), _MAX_TEXT),
        "part": part,
        "data": clip(Path(value_of(run, "data.root")).name or value_of(run, "data.source"), KEY),
    }


def _metric(key: str) -> dict[str, Any]:
    smaller = smaller_is_better(key)
    return {"key": key, "smaller": smaller, "share": range_of(key) == SHARE and not smaller}


def _environments(runs: Sequence[RunFolder]) -> tuple[list[dict[str, str]], list[int]]:
    """Return the distinct environments, with versions and devices, and for each run the index of its environment."""
    known: dict[tuple[tuple[str, str], ...], int] = {}
    positions = []
    for run in runs:
        facts = [*run.versions(digits=12).items()][:_MAX_FACTS]
        clipped = tuple((clip(name, KEY), clip(text, VALUE)) for name, text in facts)
        positions.append(known.setdefault(clipped, len(known)))
    return [dict(items) for items in known], positions


def rounded(value: object, digits: int = 5) -> float | int | None:
    """Round a number to some significant digits. NaN, infinity and other values become None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 10**digits else short


def _sweep(
    sweep: Path, own: Sequence[int], runs: Sequence[RunFolder], settings: Settings, folder: Path
) -> dict[str, Any]:
    """Return the data of a sweep. `own` contains the positions of its jobs in `runs`."""
    name = os.path.relpath(sweep, folder)
    jobs = [i for i in own if runs[i].status == FINISHED]
    score = next((runs[i].score for i in jobs), "")
    jobs = [i for i in jobs if runs[i].score == score and math.isfinite(runs[i].last.get(score, math.nan))]
    # In a search, only trials count, because later jobs repeat a few of them with different seeds.
    jobs = [i for i in jobs if runs[i].trial] or jobs
    scores = [runs[i].last[score] for i in jobs]
    return {
        "name": clip(folder.resolve().name if name == "." else name, KEY),
        "path": clip(name, _MAX_TEXT),
        "importance": importance(settings.jobs(jobs), scores),
        "verdict": _verdict([runs[i] for i in own]),
    }


def _verdict(runs: Sequence[RunFolder]) -> dict[str, Any] | None:
    """Return the verdicts that `python -m trainer compare` prints for a sweep. None without a comparison."""
    comparison, _ = compare_runs(runs)
    if comparison is None or len(comparison.rows) < 2:
        return None
    title, (head, *rows) = comparison.table()
    lines = comparison.lines()
    if len(lines) > _MAX_COMPARED:
        lines = [*lines[:_MAX_COMPARED], f"To see {len(lines) - _MAX_COMPARED:,} more: python -m trainer compare"]
    shown = [[clip(cell, VALUE) for cell in row] for row in rows[:_MAX_COMPARED]]
    return {"title": title, "lines": [clip(line, _MAX_TEXT) for line in lines], "head": head, "rows": shown}


def _best_first(runs: Sequence[RunFolder]) -> list[int]:
    """Return the positions of runs: the best of each sweep and of the single runs, then the second best, and so on."""
    of_sweep = grouped((run.sweep, (job_sort_key(run.score, run), i)) for i, run in enumerate(runs))
    ranked = []
    for members in of_sweep.values():
        ranked += [(better, i) for better, (_, i) in enumerate(sorted(members))]  # `better`: the number of better runs
    return [i for _, i in sorted(ranked)]


def _metrics(runs: Sequence[RunFolder]) -> list[str]:
    """Return the keys of all metrics, the scores first. Long keys are left out, because no real run has them."""
    scores = dict.fromkeys(run.score for run in runs)
    known = [column.key for task in known_tasks().values() for column in task.columns]
    rows = [row for run in runs for row in (run.last, *run.rows[:1])]
    found = {key for row in rows for key in row if len(key) <= KEY} - {"epoch"}
    keys = dict.fromkeys([*scores, *(key for key in known if key in found), *sorted(found)])
    return list(keys)[: max(_MAX_METRICS, len(scores))]


def _points(runs: Sequence[RunFolder], metrics: Sequence[str]) -> int:
    """Return how many points a curve may have, so that the page stays small."""
    curves = sum(len(run.rows) > _FEWEST_POINTS for run in runs) * (len(metrics) + len(_AXES))
    return max(_FEWEST_POINTS, min(_MAX_POINTS, _CURVE_BYTES // _POINT_BYTES // max(1, curves)))


def _progress(run: RunFolder) -> list[MetricsRow]:
    """Return the total batches, training seconds and images of a run after each epoch."""
    rows: list[MetricsRow] = []
    batches, per_epoch = run.facts.batches, run.facts.images[1] if run.facts.images else math.nan
    size, stages = (section_of(run.config, "fit").get(name) for name in ("batch_size", "stages"))
    # Images per batch, for epochs that end early. Stages have their own batch sizes.
    most = size if not stages and isinstance(size, int) and 0 < size < 2**31 else math.inf
    done, seconds, images = 0.0, 0.0, 0.0
    for row in run.rows:
        epoch = row.get("epoch", math.nan)
        count = batches[int(epoch)] if 0 <= epoch < len(batches) else math.nan
        done += count
        seconds += row.get("seconds", math.nan)
        images += min(per_epoch, most * count)
        rows.append({"epoch": epoch, "steps": done, "seconds": seconds, "images": images})
    return rows


def _curve(found: Sequence[MetricsRow], key: str, points: int, epochs: dict[Epochs, int]) -> list[Any] | None:
    """Return a curve with a limited number of points, always including the last one.

    Args:
        found: the rows of a run.
        key: the key of the values.
        points: the largest number of points.
        epochs: the distinct sequences of epochs of all curves so far, with their positions. Epochs start at 1.

    Returns:
        The position of the curve's epochs, and its values. None without values.
    """
    rows = [row for row in found if math.isfinite(row.get(key, math.nan)) and math.isfinite(row.get("epoch", math.nan))]
    if not rows:
        return None
    kept = np.linspace(0, len(rows) - 1, min(points, len(rows))).round().astype(int)
    at = tuple(int(rows[i]["epoch"]) + 1 for i in kept)
    return [epochs.setdefault(at, len(epochs)), [rounded(rows[i][key], 4) for i in kept]]


FIGURES = tuple(dict.fromkeys(task.figure_file for task in known_tasks().values() if task.figure_file))
_WIDTH, _QUALITY = 480, 70
# Maximum bytes of all batches, figures and mistakes. Further images become links.
_MAX_BYTES = (1_200_000, 400_000, 400_000)
_MIN_BYTES = 10_000  # each image counts as at least this many bytes, because reading it takes a tenth of a second
_MAX_PIXELS, _MAX_FILE = 2**23, 2**24  # limits of a file, the second in bytes. Real files are smaller
_FULL_SIZE = (2**24, 2**24)  # an image is read without scaling
_MAX_WORK = 2**36  # pixels times bytes of a mistake. A small progressive JPEG can hold thousands of scans
_COLUMNS, _MISTAKES, _SIDE = 4, 8, 120  # columns and number of mistakes in one image, and their side in pixels


def _embed(
    runs: Sequence[RunFolder], settings: Settings, base: Path
) -> tuple[list[dict[str, Any]], dict[int, list[int]]]:
    """Return the images of runs, and for each run the positions of its batch, figure and mistakes among them.

    Runs with the same recipe share the image of a batch. The position of a missing image is -1. An image is a data URI
    with its width and height, and the address of its file relative to `base`. The URI is empty if the page is full.
    """
    images: list[dict[str, Any]] = []
    known: dict[Hashable, int] = {}
    used = [0, 0, 0]

    def position(kind: int, file: Path, key: Hashable) -> int:
        if (kind, key) not in known:
            if not href(file, base):
                return -1
            known[kind, key] = len(images)
            status = file.stat()
            room = used[kind] < _MAX_BYTES[kind] and status.st_size <= _MAX_FILE
            uri, width, height = _embedded(file, status.st_mtime_ns) if room else ("", 0, 0)
            used[kind] += max(len(uri), _MIN_BYTES)
            shown = file.with_name(REPORT) if file.name == MISTAKES else file  # the report shows all mistakes
            images.append({"source": uri, "width": width, "height": height, "file": href(shown, base)})
        return known[kind, key]

    positions = {}
    for i in _best_first(runs):  # the page may have room only for the images of some runs
        folder = runs[i].folder
        figure = next((name for name in FIGURES if (folder / name).is_file()), "")
        keys = (settings.recipe(i) or folder, folder, folder)
        names = (BATCH, figure, MISTAKES)
        positions[i] = [position(kind, folder / name, keys[kind]) for kind, name in enumerate(names)]
    return images, positions


@lru_cache(maxsize=1024)
def _embedded(file: Path, changed: int) -> tuple[str, int, int]:
    """Return a small version of an image as a data URI with its width and height. The URI is empty if unreadable.

    `changed`, the time of the last change, is part of the cache key.
    """
    image = _sheet(file) if file.name == MISTAKES else read_png(file, _MAX_PIXELS, _FULL_SIZE)
    if image is None:
        return "", 0, 0
    small = without_background(image)
    small.thumbnail((_WIDTH, 2 * _WIDTH), Image.Resampling.LANCZOS)
    return data_uri(small, "WEBP", _QUALITY), small.width, small.height


def _sheet(file: Path) -> Image.Image | None:
    """Return an image of the first mistakes. None without mistakes, or if the file is damaged."""
    try:
        with explained_damage(file):
            data = [b64decode(mistake["uri"].partition("base64,")[2]) for mistake in read_object(file)["images"]]
            data = list(filter(None, data[:_MISTAKES]))
            images = [Image.open(BytesIO(jpeg), formats=["JPEG"]) for jpeg in data]
            if any(im.width * im.height * len(jpeg) > _MAX_WORK for im, jpeg in zip(images, data, strict=True)):
                return None
            rows = -(-len(images) // _COLUMNS)
            sheet = Image.new("RGB", (min(len(images), _COLUMNS) * _SIDE, rows * _SIDE), "gray")
            for i, image in enumerate(images):
                image.thumbnail((_SIDE, _SIDE))
                sheet.paste(image, (i % _COLUMNS * _SIDE, i // _COLUMNS * _SIDE))
    except (OSError, UserError, Image.DecompressionBombError):
        return None
    return sheet if images else None


def href(file: Path, base: Path) -> str:
    """Return the address of a file relative to a folder. Empty if the file is missing or a symbolic link."""
    if file.is_symlink() or not file.is_file():
        return ""
    # With a leading ./, browsers read a name such as "javascript:..." as a file name.
    return "./" + quote(as_bytes(Path(os.path.relpath(file.absolute(), base.absolute())).as_posix()))
