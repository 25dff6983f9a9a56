"""Measure how much detail one warp preserves: `python tests/benchmarks/fusion.py DIR OUT.png`.

The same steps, with the same draws, run as one warp and one by one. Where an image is smooth, the results agree; where
it is sharp, every resampling blurs it a little more. Without arguments, on the built-in sample.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from rich.table import Table

from augment.data.dataset import ImageRef
from augment.data.images import open_image
from augment.data.sources import load_dataset
from augment.data.sources.files import Sample
from augment.drawing.style import save_figure
from augment.drawing.text import DPI
from augment.pipeline.build import render
from augment.recipe.plan import build_plan
from augment.recipe.sampler import Sampler
from augment.recipe.stage import Stage
from augment.recipe.steps import Aug, parse_steps
from augment.support.console import PlainConsole
from augment.tools._photos import find_photos
from augment.tools.preview.sheet import SheetBlock, SheetRow, Tile, draw, lay_out

Images = NDArray[np.uint8]
Mask = NDArray[np.bool_]

SIZE = 128
SEED = 0
COUNTS = (1, 2, 3, 4, 8)
_MARGIN = 32  # pixels that the figure crops at each edge


def aug_of(steps: int, *, fuse: bool) -> Aug:
    """Return a recipe of `steps` alternating rotations and warps, applied to every sample."""
    given = {f"step_{i}": {"op": ("rotate", "warp")[i % 2], "p": 1.0} for i in range(steps)}
    return Aug(size=SIZE, fuse=fuse, mean=None, std=None, plugins=(), val=parse_steps(given, "aug.val"))


def transform(files: Sequence[ImageRef], steps: int, *, fuse: bool) -> Images:
    """Return N images after the steps, (N, SIZE, SIZE, 3)."""
    return render(build_plan(aug_of(steps, fuse=fuse), "val"), files, SEED)  # val keeps the order


def compare(files: Sequence[ImageRef], folder: Path) -> Iterator[tuple[int, list[NDArray[np.float64]], float]]:
    """Compare fused steps with steps run one by one, for each of `COUNTS`.

    Args:
        files: N images of any size.
        folder: folder for resized and blurred copies.

    Yields:
        The number of steps; the mean difference of each image, (N,) in levels of 0..255, when it is blurred with sigma
        2 px and when it is not; and the mean difference of neighboring pixels step by step, as a share of that when
        fused.
    """
    smooth, sharp = _copies(files, folder / "smooth", 2), _copies(files, folder / "sharp", 0)
    for steps in COUNTS:
        inside = always_inside(steps, len(files))
        pairs = [[transform(copies, steps, fuse=fuse) for fuse in (True, False)] for copies in (smooth, sharp)]
        fused, stepped = pairs[1]
        contrast = _detail(stepped, inside) / _detail(fused, inside)
        yield steps, [difference(one, other, inside) for one, other in pairs], contrast


def always_inside(steps: int, count: int) -> Mask:
    """Return which pixels come from inside the image in every step, (count, SIZE, SIZE).

    Elsewhere results differ by design: step by step, pixels mirrored at the border are moved and mirrored again.
    """
    plan = build_plan(aug_of(steps, fuse=True), "val")
    draws = Sampler(plan, SEED).draw(0, 0, count)
    middle = (SIZE - 1) / 2
    y, x = np.mgrid[:SIZE, :SIZE] - middle
    points = np.broadcast_to(np.stack([x, y, np.ones_like(x)]).reshape(3, -1), (count, 3, SIZE * SIZE))
    inside = np.ones((count, SIZE * SIZE), dtype=bool)
    for step in reversed(plan.steps):
        points = np.linalg.inv(Stage("geometry", ((step,),)).matrix(draws, SIZE)) @ points
        inside &= (np.abs(points[:, :2]) <= middle - 1).all(axis=1)
    return inside.reshape(count, SIZE, SIZE)


def difference(one: Images, other: Images, where: Mask) -> NDArray[np.float64]:
    """Return the mean absolute difference of each image over the pixels `where`, (N,), in levels of 0..255."""
    apart = np.abs(one.astype(np.float64) - other).mean(axis=-1)
    return np.asarray((apart * where).sum(axis=(1, 2)) / where.sum(axis=(1, 2)))


def _detail(images: Images, where: Mask) -> float:
    jumps = np.abs(np.diff(images.astype(np.float64), axis=2)).mean(axis=-1)
    return float(jumps[where[:, :, 1:] & where[:, :, :-1]].mean())


def _copies(files: Sequence[ImageRef], folder: Path, sigma: float) -> list[Path]:
    """Write images as PNG files of (SIZE, SIZE), blurred by `sigma`."""
    folder.mkdir(parents=True)
    copies = []
    for number, file in enumerate(files):
        with open_image(file) as image:
            square = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        if sigma:
            square = square.filter(ImageFilter.GaussianBlur(sigma))
        copies.append(folder / f"{number:04}.png")
        square.save(copies[-1])
    return copies


def main(folder: str = "", out: str = "outputs/fusion.png") -> None:
    """Print the comparison on the images of a folder, and draw the middle one."""
    files = find_photos(Path(folder) if folder else None, lambda: load_dataset(Sample()).val.files[::30], sys.maxsize)
    table = Table(title=f"fused and step by step, {len(files)} images, {SIZE} px")
    for head in ("steps", "smooth: mean", "largest", "sharp: mean", "largest", "detail left"):
        table.add_column(head, justify="right")
    with tempfile.TemporaryDirectory() as temporary:
        for steps, differences, contrast in compare(files, Path(temporary)):
            levels = [f"{level:.2f}/255" for one in differences for level in (one.mean(), one.max())]
            table.add_row(str(steps), *levels, f"{contrast:.0%}")
        copy = _copies([files[len(files) // 2]], Path(temporary) / "one", 0)
        middle = slice(_MARGIN, -_MARGIN)
        rows = [
            SheetRow(
                tuple(Tile(transform(copy, n, fuse=fuse)[0][middle, middle], (f"{n} steps",)) for n in COUNTS), name
            )
            for name, fuse in (("fused: one warp", True), ("step by step", False))
        ]
    PlainConsole().print(table)
    save_figure(draw(lay_out(str(table.title), "", [SheetBlock("", "", tuple(rows))])), Path(out), DPI)


if __name__ == "__main__":
    main(*sys.argv[1:])
