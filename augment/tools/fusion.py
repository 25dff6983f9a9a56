"""Measure how much image detail is preserved by fusing geometry steps into one warp.

The same steps with the same random values run as one warp and one by one. The results agree in smooth areas. Every
resampling blurs sharp edges a little more.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from augment.cli.parser import Parser, png_file, readable_errors, writing
from augment.data.dataset import ImageRef
from augment.data.images import open_image
from augment.data.sources import load_dataset
from augment.data.sources.generated import Sample
from augment.drawing.contact_sheet import SheetBlock, SheetRow, Tile, draw, lay_out
from augment.drawing.figure_style import DPI
from augment.params import Size
from augment.recipe.plan import build_plan
from augment.recipe.sampler import Sampler
from augment.recipe.stage import Stage
from augment.recipe.step import parse_steps
from augment.recipe.steps import Aug
from augment.support.errors import UserError
from augment.support.formatting import amount, printable
from augment.tools._photos import find_photos

Images = NDArray[np.uint8]
Mask = NDArray[np.bool_]

SIZE = 128
SEED = 0
COUNTS = (1, 2, 3, 4, 8)
OUT = Path("outputs/fusion.png")
_MARGIN = 32  # pixels that the figure crops at each edge

_EXAMPLES = """\
  python -m augment fusion                                on the built-in sample
  python -m augment fusion --photos DIR --out fusion.png  on your own images, with the figure in a file of your choice
"""


def aug_of(steps: int, *, fuse: bool) -> Aug:
    """Return a recipe of `steps` alternating rotations and warps that applies to every sample."""
    given = {f"step_{i}": {"op": ("rotate", "warp")[i % 2], "p": 1.0} for i in range(steps)}
    return Aug(size=Size(SIZE, SIZE), fuse=fuse, mean=None, std=None, plugins=(), val=parse_steps(given, "aug.val"))


def transform(files: Sequence[ImageRef], steps: int, *, fuse: bool) -> Images:
    """Return N images after the steps, (N, SIZE, SIZE, 3)."""
    from augment.pipeline.graph.build import render  # DALI is slow to import

    return render(build_plan(aug_of(steps, fuse=fuse), "val"), files, SEED)  # val does not shuffle


def compare(files: Sequence[ImageRef], folder: Path) -> Iterator[tuple[int, NDArray[np.float64], float]]:
    """Compare fused steps with separate steps, for each number of steps in `COUNTS`.

    Args:
        files: N images.
        folder: a folder for copies of the images.

    Yields:
        The number of steps, the mean difference of each image, (N,) in levels of 0..255, and the detail ratio. The
        ratio compares the mean differences of neighboring pixels: separate steps divided by fused steps.
    """
    copies = _copies(files, folder)
    for steps in COUNTS:
        inside = always_inside(steps, len(files))
        fused, stepped = (transform(copies, steps, fuse=fuse) for fuse in (True, False))
        yield steps, difference(fused, stepped, inside), _detail(stepped, inside) / _detail(fused, inside)


def always_inside(steps: int, count: int) -> Mask:
    """Return which pixels come from inside the image in every step, (count, SIZE, SIZE).

    Other pixels differ by design, because separate steps mirror the pixels at the border repeatedly.
    """
    plan = build_plan(aug_of(steps, fuse=True), "val")
    draws = Sampler(plan, SEED).draw(0, 0, count)
    middle = (SIZE - 1) / 2
    y, x = np.mgrid[:SIZE, :SIZE] - middle
    points = np.broadcast_to(np.stack([x, y, np.ones_like(x)]).reshape(3, -1), (count, 3, SIZE * SIZE))
    inside = np.ones((count, SIZE * SIZE), dtype=bool)
    for step in reversed(plan.steps):
        points = np.linalg.inv(Stage("geometry", ((step,),)).matrix(draws, plan.size)) @ points
        inside &= (np.abs(points[:, :2]) <= middle - 1).all(axis=1)
    return inside.reshape(count, SIZE, SIZE)


def difference(one: Images, other: Images, where: Mask) -> NDArray[np.float64]:
    """Return the mean absolute difference of each image, (N,), over the pixels `where`, in levels of 0..255."""
    apart = np.abs(one.astype(np.float64) - other).mean(axis=-1)
    return np.asarray((apart * where).sum(axis=(1, 2)) / where.sum(axis=(1, 2)))


def _detail(images: Images, where: Mask) -> float:
    jumps = np.abs(np.diff(images.astype(np.float64), axis=2)).mean(axis=-1)
    return float(jumps[where[:, :, 1:] & where[:, :, :-1]].mean())


def _copies(files: Sequence[ImageRef], folder: Path) -> list[Path]:
    """Write images as PNG files of (SIZE, SIZE)."""
    copies = []
    for number, file in enumerate(files):
        copies.append(folder / f"{number:04}.png")
        with open_image(file) as image:
            image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR).save(copies[-1])
    return copies


def main(arguments: Sequence[str]) -> int:
    with readable_errors():
        flags, rest = _parser().split(arguments)
        if rest:
            raise UserError(f"{' '.join(rest)}: this tool takes only flags. See --help.")
        from augment.drawing.figure_style import save_figure  # Matplotlib is slow to import

        files = find_photos(flags.photos, lambda: load_dataset(Sample()).val.files[::30], sys.maxsize)
        title = f"fused and step by step, {amount(len(files), 'image')}, {SIZE} px"
        sys.stdout.write(f"{title}\n")
        with tempfile.TemporaryDirectory() as folder:
            for steps, apart, contrast in compare(files, Path(folder)):
                sys.stdout.write(
                    f"{amount(steps, 'step'):>8}: mean difference {apart.mean():.2f}/255, "
                    f"largest {apart.max():.2f}/255, separate steps keep {contrast:.0%} of the detail\n"
                )
            copy, middle = _copies([files[len(files) // 2]], Path(folder)), slice(_MARGIN, -_MARGIN)
            rows = []
            for fuse, name in ((True, "fused: one warp"), (False, "step by step")):
                images = [transform(copy, steps, fuse=fuse)[0][middle, middle] for steps in COUNTS]
                captions = [(amount(steps, "step"),) for steps in COUNTS]
                rows.append(SheetRow(tuple(map(Tile, images, captions)), name))
        with writing(f"--out {flags.out}"):
            save_figure(draw(lay_out(title, "", [SheetBlock("", "", tuple(rows))])), flags.out, DPI)
        sys.stdout.write(printable(f"{flags.out}\n"))
    return 0


def _parser() -> Parser:
    parser = Parser("augment fusion", __doc__, _EXAMPLES, arguments="")
    parser.add_argument(
        "--photos", type=Path, metavar="DIR", help="use the images in this folder, at any depth, instead of the sample"
    )
    parser.add_argument("--out", type=png_file, default=OUT, metavar="FILE.png", help=f"the figure (default: {OUT})")
    return parser
