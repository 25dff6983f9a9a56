"""`python -m augment.fusion [DIR]`: what composing the geometry steps is worth, in a table and a picture.

The same steps, with the same draws, are carried out as one warp and one after the other. Where a picture is smooth the
two agree; where it is sharp, every resampling blurs it a little more.
"""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from rich.console import Console
from rich.table import Table

from augment.command import readable_errors, writing
from augment.config import Aug, parse_steps
from augment.dataset import Picture
from augment.errors import UserError
from augment.folder import find_pictures
from augment.pipeline import build_pipeline
from augment.plan import build_plan
from augment.sampler import Sampler
from augment.sources import Sample, load_dataset
from augment.stage import step_matrix
from augment.stored import open_picture
from augment.wording import amount

Pictures = NDArray[np.uint8]
Mask = NDArray[np.bool_]

SIZE = 128
SEED = 0
COUNTS = (1, 2, 3, 4, 8)
# Pixels that the figure leaves out at each edge.
_MARGIN = 32


@dataclass(frozen=True)
class Row:
    """How far fused and step by step are apart.

    Attributes:
        steps: number of geometry steps.
        smooth: mean difference on blurred pictures (sigma 2 px), for each picture, in 0..255.
        sharp: the same on the pictures as they are.
        contrast: mean step from pixel to pixel that is left, over that of the fused picture.
    """

    steps: int
    smooth: NDArray[np.float64]
    sharp: NDArray[np.float64]
    contrast: float


def aug_of(steps: int, *, fuse: bool, size: int = SIZE) -> Aug:
    """Return a recipe of so many rotations and warps, in turns, on every sample."""
    given = {f"step_{i}": {"op": ("rotate", "warp")[i % 2], "p": 1.0} for i in range(steps)}
    return Aug(size=size, fuse=fuse, mean=None, std=None, plugins=(), val=parse_steps(given, "aug.val"))


def transform(files: Sequence[Picture], steps: int, *, fuse: bool) -> Pictures:
    """Return (N, SIZE, SIZE, 3) pictures after the steps."""
    plan = build_plan(aug_of(steps, fuse=fuse), "val")  # which keeps the order
    pipeline = build_pipeline(plan, files, batch_size=len(files), seed=SEED, raw=True)
    images, _ = pipeline.run()
    return np.array(images.as_tensor())


def compare(files: Sequence[Picture], folder: Path) -> list[Row]:
    """Compare fused and step by step on pictures.

    Args:
        files: pictures of any size.
        folder: where the resized and the blurred copies go.
    """
    sharp, smooth = _copies(files, folder / "sharp", 0), _copies(files, folder / "smooth", 2)
    return [_row(steps, sharp, smooth) for steps in COUNTS]


def _row(steps: int, sharp: Sequence[Picture], smooth: Sequence[Picture]) -> Row:
    inside = inside_all_along(steps, len(sharp))
    (fused, stepped), (smooth_fused, smooth_stepped) = (
        [transform(files, steps, fuse=fuse) for fuse in (True, False)] for files in (sharp, smooth)
    )
    return Row(
        steps,
        difference(smooth_fused, smooth_stepped, inside),
        difference(fused, stepped, inside),
        _detail(stepped, inside) / _detail(fused, inside),
    )


def inside_all_along(steps: int, count: int) -> Mask:
    """Return (N, SIZE, SIZE) whether a pixel came from inside the picture in every step.

    Elsewhere the two ways differ by nature: step by step, what was mirrored at the border is moved and mirrored again.
    """
    plan = build_plan(aug_of(steps, fuse=True), "val")
    draws = Sampler(plan, SEED).draw(0, 0, count)
    middle = (SIZE - 1) / 2
    y, x = np.mgrid[:SIZE, :SIZE] - middle
    points = np.broadcast_to(np.stack([x, y, np.ones_like(x)]).reshape(3, -1), (count, 3, SIZE * SIZE))
    inside = np.ones((count, SIZE * SIZE), dtype=bool)
    for step in reversed(plan.steps):
        points = np.linalg.inv(step_matrix(step, draws[step.key], SIZE)) @ points
        inside &= (np.abs(points[:, :2]) <= middle - 1).all(axis=1)
    return inside.reshape(count, SIZE, SIZE)


def difference(one: Pictures, other: Pictures, where: Mask) -> NDArray[np.float64]:
    """Return the mean absolute difference of each picture, (N,) in 0..255, over the pixels `where`."""
    apart = np.abs(one.astype(np.float64) - other).mean(axis=-1)
    return np.asarray((apart * where).sum(axis=(1, 2)) / where.sum(axis=(1, 2)))


def _detail(pictures: Pictures, where: Mask) -> float:
    jumps = np.abs(np.diff(pictures.astype(np.float64), axis=2)).mean(axis=-1)
    return float(jumps[where[:, :, 1:] & where[:, :, :-1]].mean())


def _copies(files: Sequence[Picture], folder: Path, sigma: float) -> list[Path]:
    """Write the pictures as PNG of (SIZE, SIZE), blurred."""
    folder.mkdir(parents=True)
    copies = []
    for number, file in enumerate(files):
        with open_picture(file) as image:
            square = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        if sigma:
            square = square.filter(ImageFilter.GaussianBlur(sigma))
        copies.append(folder / f"{number:04}.png")
        square.save(copies[-1])
    return copies


def figure(file: Picture, folder: Path) -> Figure:
    """Show one picture after each number of steps: fused above, step by step below, the middle magnified."""
    (copy,) = _copies([file], folder / "one", 0)
    columns = [(amount(n, "step"), [transform([copy], n, fuse=f)[0] for f in (True, False)]) for n in COUNTS]
    drawn = Figure(figsize=(2.2 * len(columns), 4.9), dpi=100, layout="constrained")
    axes = drawn.subplots(2, len(columns))
    for column, (title, pictures) in enumerate(columns):
        for row, picture in enumerate(pictures):
            axis = axes[row, column]
            axis.imshow(picture[_MARGIN:-_MARGIN, _MARGIN:-_MARGIN], interpolation="nearest")
            axis.set(xticks=[], yticks=[])
        axes[0, column].set_title(title)
    for row, name in enumerate(("fused: one warp", "step by step")):
        axes[row, 0].set_ylabel(name)
    return drawn


_ALLOWED = "a folder of pictures, or nothing for the sample"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    with readable_errors():
        return _main(list(sys.argv[1:] if arguments is None else arguments))


def _main(given: list[str]) -> int:
    if len(given) > 1 or any(token.startswith("-") for token in given):
        raise UserError(f"{' '.join(given)}: not allowed here. Allowed: {_ALLOWED}.")
    console = Console()
    files: Sequence[Picture] = find_pictures(Path(given[0])) if given else load_dataset(Sample()).val.files[::30]
    if not files:
        raise UserError(f"{given[0]}: holds no pictures. Allowed: {_ALLOWED}.")
    with tempfile.TemporaryDirectory() as temporary:
        table = Table(
            title=f"fused against step by step, {len(files)} pictures, {SIZE} px",
            title_justify="left",
        )
        for title in ("steps", "smooth: mean", "largest", "sharp: mean", "largest", "detail left"):
            table.add_column(title, justify="right")
        for row in compare(files, Path(temporary)):
            numbers = (row.smooth.mean(), row.smooth.max(), row.sharp.mean(), row.sharp.max())
            table.add_row(str(row.steps), *(f"{n:.2f}/255" for n in numbers), f"{row.contrast:.0%}")
        console.print(table)
        out = Path("outputs/fusion.png")
        with writing(str(out)):
            out.parent.mkdir(exist_ok=True)
            figure(files[len(files) // 2], Path(temporary)).savefig(out)
    console.print(str(out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
