"""Measure how closely exported transforms match validation, as a table and a figure.

Differences are given in levels of 0..255 and in normalized units, those of the model input.
"""

import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich import box
from rich.table import Table

from augment.data.dataset import ImageRef, Split
from augment.data.images import file_name, open_image, read_encoded
from augment.drawing.style import INK, TITLE, save_figure
from augment.pipeline.graph import Device
from augment.pipeline.loader import Loader
from augment.pipeline.serving.serialized import deserialize
from augment.recipe.plan import Plan
from augment.support.console import progress_bar

BATCH = 16
MAGNIFIED = 60  # factor for differences in the figure

Floats = NDArray[np.float32]

_DPI, _SMALL = 120, 9  # points


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
        max_normalized: largest absolute difference in normalized units.
        mean_normalized: mean absolute difference in normalized units.
        beyond: share of values that differ by more than one level.
        worst: the image with the largest mean difference.
    """

    form: str
    why: str
    loader: str
    images: int
    max_levels: float
    mean_levels: float
    max_normalized: float
    mean_normalized: float
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
    # For each form and image: largest and mean difference in levels, then normalized, then the share beyond a level.
    found: list[list[tuple[float, ...]]] = [[] for _ in forms]
    with progress_bar() as progress:
        task = progress.add_task(f"Comparing with the loader ({device.type})", total=len(files))
        for batch in loader:
            ours = batch.images.cpu().numpy()
            batch_files = [files[index] for index in batch.indices.tolist()]
            for form, rows in zip(forms, found, strict=True):
                for difference in np.abs(form.transform(batch_files) - ours):
                    scaled = difference * levels
                    # 1.5, not 1: interpolated values are not exactly whole levels.
                    values = scaled.max(), scaled.mean(), difference.max(), difference.mean(), (scaled > 1.5).mean()
                    rows.append(tuple(map(float, values)))
            progress.advance(task, len(batch))
    results = []
    for form, differences in zip(forms, map(np.array, found), strict=True):
        largest, means = differences.max(axis=0).tolist(), differences.mean(axis=0).tolist()
        results.append(
            Parity(
                form=form.name,
                why=form.why,
                loader=device.type,
                images=len(differences),
                max_levels=largest[0],
                mean_levels=means[1],
                max_normalized=largest[2],
                mean_normalized=means[3],
                beyond=means[4],
                worst=files[int(differences[:, 1].argmax())],
            )
        )
    return results


def parity_table(results: Sequence[Parity]) -> Table:
    """Return the table for the terminal."""
    table = Table(title="Difference from validation", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("\nform", no_wrap=True)
    table.add_column("\nloader")
    for name in ("max\n0..255", "mean\n0..255", "> 1\nlevel", "max\nnorm.", "mean\nnorm."):
        table.add_column(name, justify="right", no_wrap=True)
    for r in results:
        levels = (f"{r.max_levels:.2f}", f"{r.mean_levels:.4f}", f"{r.beyond:.1%}")
        table.add_row(r.form, r.loader, *levels, f"{r.max_normalized:.4f}", f"{r.mean_normalized:.5f}")
    return table


def draw_parity(plan: Plan, file: ImageRef, forms: Sequence[Form], device: torch.device, path: Path) -> None:
    """Draw an image as transformed by validation and by each form, above the magnified differences.

    Args:
        plan: the plan of validation.
        file: the image.
        forms: exports of the plan.
        device: where validation runs.
        path: the PNG file to write.
    """
    loader = Loader(plan, Split((file,), (0,)), batch_size=1, seed=0, device=device)
    ours = _levels(next(iter(loader)).images.cpu().numpy()[0], plan)
    theirs = [_levels(form.transform([file])[0], plan) for form in forms]

    # In inches: images are pixel exact, small ones enlarged by an integer factor, large ones reduced.
    side = min(plan.size * max(1, -(-200 // plan.size)), 480) / _DPI
    gap, head, line = 0.14, 0.62, 0.24
    width, height = gap + (side + gap) * (1 + len(forms)), head + 2 * side + line + gap
    figure = Figure(figsize=(width, height), dpi=_DPI)

    def show(column: int, row: int, levels: Floats, text: str) -> None:
        x, y = gap + column * (side + gap), height - head - side - row * (side + line)
        axes = figure.add_axes((x / width, y / height, side / width, side / height))
        axes.imshow(np.rint(levels.clip(0, 255)).astype(np.uint8), interpolation="nearest")
        axes.set_axis_off()
        axes.set_title(text, loc="left", fontsize=_SMALL, color=INK, pad=4, parse_math=False)

    show(0, 0, ours, f"validation, on the {'CPU' if device.type == 'cpu' else 'GPU'}")
    for column, (form, levels) in enumerate(zip(forms, theirs, strict=True), start=1):
        difference = np.abs(levels - ours)
        show(column, 0, levels, form.name)
        show(column, 1, MAGNIFIED * difference, f"max {difference.max():.0f}, mean {difference.mean():.3f}")
    # Fonts may lack characters of the file name.
    name = file_name(file).encode("ascii", "backslashreplace").decode()
    title = f"{name}; bottom row: difference from validation in levels of 255, shown times {MAGNIFIED}"
    figure.text(gap / width, 1 - 0.1 / height, title, va="top", fontsize=TITLE, color=INK, parse_math=False)
    save_figure(figure, path, _DPI)


def _levels(image: Floats, plan: Plan) -> Floats:
    """Convert a normalized image, (3, height, width), to (height, width, 3) in 0..255."""
    mean, std = np.array(plan.mean, np.float32), np.array(plan.std, np.float32)
    return np.asarray(255 * (image.transpose(1, 2, 0) * std + mean), np.float32)
