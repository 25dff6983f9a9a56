"""How far an exported transform is from what validation feeds the model: measured on pictures, as a table and a figure.

Differences are given in levels, 0..255, and in normalized units, which are what the model sees.
"""

import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from nvidia.dali.pipeline import Pipeline
from rich import box
from rich.table import Table

from augment.dataset import Picture, Split
from augment.figures import INK, TITLE, save_figure
from augment.graph import Device
from augment.loader import Loader
from augment.pipeline import ENCODED
from augment.plan import Plan
from augment.progress import progress_bar
from augment.stored import file_name, open_picture, read_encoded

BATCH = 16
MAGNIFIED = 60
"""What differences are multiplied by in the figure."""

Floats = NDArray[np.float32]

_DPI, _SMALL = 120, 9  # points


@dataclass(frozen=True)
class Form:
    """An exported transform, loaded.

    Attributes:
        name: of its file.
        why: why it may differ from validation, a phrase.
        transform: from at most `BATCH` files to (N, 3, size, size), normalized.
    """

    name: str
    why: str
    transform: Callable[[Sequence[Picture]], Floats]


@dataclass(frozen=True)
class Parity:
    """The difference of a form from validation.

    Attributes:
        form: name of the form.
        why: as in `Form`.
        loader: where validation ran, cpu or cuda.
        pictures: how many were compared.
        max_levels: the largest difference of a value, in 0..255.
        mean_levels: the mean of all absolute differences, in 0..255.
        max_normalized: as max_levels, in normalized units.
        mean_normalized: as mean_levels, in normalized units.
        beyond: share of the values that are more than one level apart.
        worst: the picture with the largest mean difference.
    """

    form: str
    why: str
    loader: str
    pictures: int
    max_levels: float
    mean_levels: float
    max_normalized: float
    mean_normalized: float
    beyond: float
    worst: Picture


# The size of a picture travels from the GPU to the CPU, which DALI's older executor refuses; a file does not say which.
GPU_EXECUTOR = {"exec_dynamic": True, "exec_pipelined": True, "exec_async": True}


def dali_form(file: Path, device: Device) -> Form:
    """Load a serialized pipeline, as a server does: by DALI alone."""
    where: dict[str, Any] = {"device_id": 0, **GPU_EXECUTOR} if device == "gpu" else {}
    pipeline = Pipeline.deserialize(filename=str(file), batch_size=BATCH, prefetch_queue_depth=1, **where)

    def transform(files: Sequence[Picture]) -> Floats:
        (output,) = pipeline.run(**{ENCODED: [np.frombuffer(read_encoded(file), np.uint8) for file in files]})
        return np.array(output.as_cpu().as_tensor(), np.float32)

    return Form(file.name, "the operators of validation; CPU and GPU decode JPEG differently", transform)


def pillow_form(file: Path, why: str) -> Form:
    """Load a file of Python source with a function `transform(image)`."""
    function = runpy.run_path(str(file))["transform"]

    def transform(files: Sequence[Picture]) -> Floats:
        arrays = []
        for file in files:
            with open_picture(file) as image:
                arrays.append(np.asarray(function(image), np.float32))
        return np.stack(arrays)

    return Form(file.name, why, transform)


def parity(plan: Plan, files: Sequence[Picture], forms: Sequence[Form], device: torch.device) -> list[Parity]:
    """Compare exported forms with the validation loader, picture by picture.

    Args:
        plan: the transform.
        files: pictures that can be decoded, at least one.
        forms: exports of that plan.
        device: where the loader runs.
    """
    loader = Loader(plan, Split(tuple(files), (0,) * len(files)), batch_size=BATCH, seed=0, device=device)
    levels = 255 * np.array(plan.std, np.float32)[:, None, None]
    # For each form and picture: largest and mean difference in levels, then normalized, and the share beyond a level.
    found: list[list[tuple[float, ...]]] = [[] for _ in forms]
    with progress_bar() as progress:
        task = progress.add_task(f"Comparing with the loader ({device.type})", total=len(files))
        for batch in loader:
            ours = batch.images.cpu().numpy()
            batch_files = [files[index] for index in batch.indices.tolist()]
            for form, rows in zip(forms, found, strict=True):
                for difference in np.abs(form.transform(batch_files) - ours):
                    scaled = difference * levels
                    # Half a level more: values in between are no whole levels, by a hair.
                    values = scaled.max(), scaled.mean(), difference.max(), difference.mean(), (scaled > 1.5).mean()
                    rows.append(tuple(map(float, values)))
            progress.advance(task, len(batch))
    return [_summary(form, np.array(rows), files, device) for form, rows in zip(forms, found, strict=True)]


def _summary(form: Form, rows: NDArray[np.float64], files: Sequence[Picture], device: torch.device) -> Parity:
    (max_levels, _, max_normalized, *_), means = rows.max(axis=0), rows.mean(axis=0)
    return Parity(
        form=form.name,
        why=form.why,
        loader=device.type,
        pictures=len(rows),
        max_levels=float(max_levels),
        mean_levels=float(means[1]),
        max_normalized=float(max_normalized),
        mean_normalized=float(means[3]),
        beyond=float(means[4]),
        worst=files[int(rows[:, 1].argmax())],
    )


def parity_table(results: Sequence[Parity]) -> Table:
    """Return the results as a table for the terminal."""
    table = Table(title="Difference from validation", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("\nform", no_wrap=True)
    table.add_column("\nloader")
    for name in ("max\n0..255", "mean\n0..255", "> 1\nlevel", "max\nnorm.", "mean\nnorm."):
        table.add_column(name, justify="right", no_wrap=True)
    for r in results:
        levels = (f"{r.max_levels:.2f}", f"{r.mean_levels:.4f}", f"{r.beyond:.1%}")
        table.add_row(r.form, r.loader, *levels, f"{r.max_normalized:.4f}", f"{r.mean_normalized:.5f}")
    return table


def draw_parity(plan: Plan, file: Picture, forms: Sequence[Form], device: torch.device, path: Path) -> None:
    """Draw a picture as validation and each form make it, over its difference from validation, magnified.

    Args:
        plan: the transform.
        file: the picture.
        forms: exports of that plan.
        device: where validation runs.
        path: the PNG to write.
    """
    loader = Loader(plan, Split((file,), (0,)), batch_size=1, seed=0, device=device)
    ours = _levels(next(iter(loader)).images.cpu().numpy()[0], plan)
    theirs = [_levels(form.transform([file])[0], plan) for form in forms]

    # Inches: pictures at one pixel of the figure a pixel, small ones enlarged by a whole factor, large ones reduced.
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

    show(0, 0, ours, f"validation, {device.type}")
    for column, (form, levels) in enumerate(zip(forms, theirs, strict=True), start=1):
        difference = np.abs(levels - ours)
        show(column, 0, levels, form.name)
        show(column, 1, MAGNIFIED * difference, f"max {difference.max():.0f}, mean {difference.mean():.3f}")
    # The fonts at hand may lack what a file is named with.
    name = file_name(file).encode("ascii", "backslashreplace").decode()
    title = f"{name}, and below each form its difference times {MAGNIFIED}"
    figure.text(gap / width, 1 - 0.1 / height, title, va="top", fontsize=TITLE, color=INK, parse_math=False)
    save_figure(figure, path, _DPI)


def _levels(image: Floats, plan: Plan) -> Floats:
    """Return (height, width, 3) in 0..255 of (3, height, width), normalized."""
    mean, std = np.array(plan.mean, np.float32), np.array(plan.std, np.float32)
    return np.asarray(255 * (image.transpose(1, 2, 0) * std + mean), np.float32)
