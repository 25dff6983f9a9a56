"""Measure how closely exported transforms match validation, in levels of 0..255."""

import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich import box
from rich.table import Table

from augment.data.dataset import ImageRef, Split
from augment.data.images import open_image, read_encoded
from augment.pipeline.graph import Device
from augment.pipeline.loader import Loader
from augment.pipeline.serving.serialized import deserialize
from augment.recipe.plan import Plan
from augment.support.console import progress_bar

BATCH = 16

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Form:
    """A loaded export.

    Attributes:
        name: name of its file.
        why: why it may differ from validation, as a phrase.
        transform: turns N files, at most `BATCH`, into (N, 3, size, size), normalized.
    """

    name: str
    why: str
    transform: Callable[[Sequence[ImageRef]], Floats]


@dataclass(frozen=True)
class Parity:
    """The difference of a form from validation.

    Attributes:
        form: name of the form.
        why: see `Form`.
        loader: where validation ran, cpu or cuda.
        images: number of images compared.
        max_levels: largest absolute difference in levels of 0..255.
        mean_levels: mean absolute difference in levels of 0..255.
        beyond: share of values that differ by more than one level.
        worst: the image with the largest mean difference.
    """

    form: str
    why: str
    loader: str
    images: int
    max_levels: float
    mean_levels: float
    beyond: float
    worst: ImageRef


def dali_form(file: Path, device: Device) -> Form:
    """Load a serialized pipeline as a server does, with DALI only."""
    run = deserialize(file.read_bytes(), device, BATCH)
    why = "the operators of validation; CPU and GPU decode JPEG differently"
    return Form(file.name, why, lambda files: run([read_encoded(file) for file in files]))


def pillow_form(file: Path, why: str) -> Form:
    """Load a Python file that defines `transform(image)`."""
    function = runpy.run_path(str(file))["transform"]

    def transform(files: Sequence[ImageRef]) -> Floats:
        arrays = []
        for file in files:
            with open_image(file) as image:
                arrays.append(np.asarray(function(image), np.float32))
        return np.stack(arrays)

    return Form(file.name, why, transform)


def parity(plan: Plan, files: Sequence[ImageRef], forms: Sequence[Form], device: torch.device) -> list[Parity]:
    """Compare exported forms with the validation loader, image by image.

    Args:
        plan: the plan of validation.
        files: images to compare on, at least one; all can be decoded.
        forms: exports of the plan.
        device: where the loader runs.
    """
    loader = Loader(plan, Split(tuple(files), (0,) * len(files)), batch_size=BATCH, seed=0, device=device)
    levels = 255 * np.array(plan.std, np.float32)[:, None, None]
    # For each form and image: the largest difference, the mean one, and the share beyond a level.
    found: list[list[tuple[float, ...]]] = [[] for _ in forms]
    with progress_bar() as progress:
        task = progress.add_task(f"Comparing with the loader ({device.type})", total=len(files))
        for batch in loader:
            ours = batch.images.cpu().numpy()
            batch_files = [files[index] for index in batch.indices.tolist()]
            for form, rows in zip(forms, found, strict=True):
                for off in levels * np.abs(form.transform(batch_files) - ours):
                    # 1.5, not 1: interpolated values are not exactly whole levels.
                    rows.append((float(off.max()), float(off.mean()), float((off > 1.5).mean())))
            progress.advance(task, len(batch))
    results = []
    for form, differences in zip(forms, map(np.array, found), strict=True):
        mean, beyond = differences[:, 1:].mean(axis=0).tolist()
        worst = files[int(differences[:, 1].argmax())]
        most = float(differences[:, 0].max())
        results.append(Parity(form.name, form.why, device.type, len(differences), most, mean, beyond, worst))
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
