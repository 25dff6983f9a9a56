"""Small runs, and what is compared of those that have ended."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from photos import draw_photo
from PIL import Image
from rich.console import Console

from augment.cli.compose import compose
from trainer.callbacks.recorder import MetricsRow
from trainer.run.config.schema import Config, parse_config
from trainer.run.folder.reader import RunFolder

QUIET = Console(quiet=True)

# Overrides that leave out what takes long.
BARE = ("callbacks.plots=null", "callbacks.report=null", "callbacks.progress_bar=null")


def draw_classes(root: Path, names: Sequence[str] = ("ant", "bee"), count: int = 3, val: int | None = None) -> Path:
    """Draw so many images of each class, for training and (as many, if nothing else is given) for validation."""
    for split, images in (("train", count), ("val", count if val is None else val)):
        for name in names:
            (root / split / name).mkdir(parents=True)
            for seed in range(images):
                Image.fromarray(draw_photo(24, 24, seed)).save(root / split / name / f"{seed}.png")
    return root


# The least that a configuration has to say.
LEAST: dict[str, Any] = {"data": {"source": "sample"}, "model": {"kind": "cnn"}}


def config_of(**sections: Any) -> Config:
    """Return the least configuration with some sections."""
    return parse_config(LEAST | sections)


def small_config(photos: Path, *overrides: str) -> Config:
    """Return the configuration of a run on such images, in batches of two."""
    small = ["data=folder", f"data.root={photos}", "aug.size=16", "fit.batch_size=2", "fit.device=cpu", "fit.threads=1"]
    return parse_config(compose([*small, *overrides]))


def timeless(row: MetricsRow) -> MetricsRow:
    """Return the values of an epoch that are the same in every run of the same seed."""
    times = ("seconds", "images_per_second", "waiting", "gpu_memory_mib")
    return {key: value for key, value in row.items() if key not in times}


def read_metrics(run: Path) -> list[MetricsRow]:
    """Return the metrics in the folder of a run, a row for each epoch."""
    return RunFolder(run).rows


def rows_of(run: Path) -> list[MetricsRow]:
    """Return the metrics in the folder of a run, see `timeless`."""
    return list(map(timeless, read_metrics(run)))
