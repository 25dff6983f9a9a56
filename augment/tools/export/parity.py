"""Measure how closely exported transforms match validation, in levels of 0..255."""

import runpy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich import box
from rich.table import Table

from augment.data.dataset import ImageRef, Split
from augment.data.images import name_of, open_image, read_encoded
from augment.pipeline.graph import Device, Placement
from augment.pipeline.loader import Loader
from augment.pipeline.reading import Order
from augment.pipeline.serving.serialized import deserialize
from augment.recipe.plan import Plan
from augment.support.console import progress_bar

BATCH = 16

Floats = NDArray[np.float32]


# Turns N files, at most `BATCH`, into (N, 3, size, size), normalized.
Transform = Callable[[Sequence[ImageRef]], Floats]


@dataclass(frozen=True)
class Parity:
    """The difference of an export from validation.

    Attributes:
        form: name of its file.
        loader: where validation ran, cpu or cuda.
        images: number of images compared.
        max_levels: largest absolute difference in levels of 0..255.
        mean_levels: mean absolute difference in levels of 0..255.
        beyond: share of values that differ by more than one level.
        worst: name of the image with the largest mean difference.
    """

    form: str
    loader: str
    images: int
    max_levels: float
    mean_levels: float
    beyond: float
    worst: str


def load_dali(file: Path, device: Device) -> Transform:
    """Load a serialized pipeline as a server does, with DALI only."""
    run = deserialize(file.read_bytes(), device, BATCH)
    return lambda files: run([read_encoded(file) for file in files])


def load_python(file: Path) -> Transform:
    """Load a Python file that defines `transform(image)`."""
    function = runpy.run_path(str(file))["transform"]

    def transform(files: Sequence[ImageRef]) -> Floats:
        arrays = []
        for file in files:
            with open_image(file) as image:
                arrays.append(np.asarray(function(image), np.float32))
        return np.stack(arrays)

    return transform


def parity(plan: Plan, files: Sequence[ImageRef], forms: Mapping[str, Transform], device: torch.device) -> list[Parity]:
    """Compare exports with the validation loader, image by image.

    Args:
        plan: the plan of validation.
        files: images to compare on, at least one; all can be decoded.
        forms: exports of the plan, by the names of their files.
        device: where the loader runs.
    """
    loader = Loader(plan, Split(tuple(files), (0,) * len(files)), Order(BATCH, 0), Placement().on(device, 2))
    levels = 255 * np.array(plan.std, np.float32)[:, None, None]
    # For each image: the largest difference, the mean one, and the share beyond a level.
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in forms}
    with progress_bar() as progress:
        task = progress.add_task(f"Comparing with the loader ({device.type})", total=len(files))
        for batch in loader:
            ours, batch_files = batch.images.cpu().numpy(), [files[index] for index in batch.indices.tolist()]
            for name, transform in forms.items():
                for off in levels * np.abs(transform(batch_files) - ours):
                    # 1.5, not 1: interpolated values are not exactly whole levels.
                    found[name].append((float(off.max()), float(off.mean()), float((off > 1.5).mean())))
            progress.advance(task, len(batch))
    results = []
    for name, rows in found.items():
        off = np.array(rows)
        _, mean, beyond = off.mean(axis=0).tolist()
        worst = name_of(files[int(off[:, 1].argmax())])
        results.append(Parity(name, device.type, len(off), float(off[:, 0].max()), mean, beyond, worst))
    return results


def parity_table(results: Sequence[Parity]) -> Table:
    """Return the table for the terminal."""
    table = Table(title="Difference from validation", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("form", no_wrap=True)
    table.add_column("loader")
    for name in ("max, of 255", "mean", "> 1 level"):
        table.add_column(name, justify="right", no_wrap=True)
    for r in results:
        table.add_row(r.form, r.loader, f"{r.max_levels:.2f}", f"{r.mean_levels:.4f}", f"{r.beyond:.1%}")
    return table
