"""Measure how much image detail is preserved by fusing geometry steps into one warp.

The same steps with the same random values run as one warp and one by one. Every resampling blurs sharp edges a little
more.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from augment.cli.parser import Parser, png_file, readable_errors, writing
from augment.data.dataset import ImageRef
from augment.data.sources import load_dataset
from augment.data.sources.generated import Sample
from augment.drawing.contact_sheet import SheetBlock, SheetRow, Tile, draw, lay_out
from augment.drawing.figure_style import DPI, save_figure
from augment.params import Size
from augment.recipe.plan import build_plan
from augment.recipe.step import parse_steps
from augment.recipe.steps import Aug
from augment.support.errors import UserError
from augment.support.formatting import amount, printable
from augment.tools._photos import find_photos

SIZE = 128
SEED = 0
COUNTS = (1, 2, 3, 4, 8)
OUT = Path("outputs/fusion.png")
MAX_IMAGES = 32  # maximum number of images, because all are in memory at the same time
MARGIN = 32  # pixels at each edge that are not compared, because steps move the border into the image

_EXAMPLES = """\
  python -m augment fusion                                on the built-in sample
  python -m augment fusion --photos DIR --out fusion.png  on your own images, with the figure in a file of your choice
"""


def aug_of(steps: int, *, fuse: bool) -> Aug:
    """Return a recipe of `steps` alternating rotations and warps that applies to every sample."""
    given = {f"step_{i}": {"op": ("rotate", "warp")[i % 2], "p": 1.0} for i in range(steps)}
    return Aug(size=Size(SIZE, SIZE), fuse=fuse, mean=None, std=None, plugins=(), val=parse_steps(given, "aug.val"))


def transform(files: Sequence[ImageRef], steps: int, *, fuse: bool) -> NDArray[np.uint8]:
    """Apply the steps to N images of (SIZE, SIZE) pixels. Return them without margins, (N, height, width, 3)."""
    from augment.pipeline.graph.build import render  # DALI is slow to import

    images = render(build_plan(aug_of(steps, fuse=fuse), "val"), files, SEED)  # val does not shuffle
    return images[:, MARGIN:-MARGIN, MARGIN:-MARGIN]


def kept_detail(files: Sequence[ImageRef], steps: int) -> float:
    """Return how much detail separate steps keep, relative to fused steps.

    Detail is the mean absolute difference between horizontal neighbors.
    """
    fused, separate = (
        np.abs(np.diff(transform(files, steps, fuse=fuse).astype(float), axis=2)).mean() for fuse in (True, False)
    )
    return float(separate / fused)


def main(arguments: Sequence[str]) -> int:
    with readable_errors():
        flags, rest = _parser().split(arguments)
        if rest:
            raise UserError(f"{' '.join(rest)}: this tool takes only flags. See --help.")

        files = find_photos(flags.photos, lambda: load_dataset(Sample()).val.files[::30], MAX_IMAGES)
        title = f"fused and step by step, {amount(len(files), 'image')}, {SIZE} px"
        sys.stdout.write(f"{title}\n")
        for steps in COUNTS:
            detail = kept_detail(files, steps)
            sys.stdout.write(f"{amount(steps, 'step'):>8}: separate steps keep {detail:.0%} of the detail\n")
        file, rows = [files[len(files) // 2]], []
        for fuse, name in ((True, "fused: one warp"), (False, "step by step")):
            images = [transform(file, steps, fuse=fuse)[0] for steps in COUNTS]
            captions = [(amount(steps, "step"),) for steps in COUNTS]
            rows.append(SheetRow(tuple(map(Tile, images, captions)), name))
        with writing(f"--out {flags.out}"):
            save_figure(draw(lay_out(title, "", [SheetBlock("", "", tuple(rows))])), flags.out, DPI)
        sys.stdout.write(printable(f"{flags.out}\n"))
    return 0


def _parser() -> Parser:
    parser = Parser("augment fusion", __doc__, _EXAMPLES, arguments="")
    parser.add_argument(
        "--photos",
        type=Path,
        metavar="DIR",
        help=f"use up to {MAX_IMAGES} images in this folder, at any depth, instead of the sample",
    )
    parser.add_argument("--out", type=png_file, default=OUT, metavar="FILE.png", help=f"the figure (default: {OUT})")
    return parser
