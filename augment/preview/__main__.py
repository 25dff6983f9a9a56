"""`python -m augment.preview`: a picture of what a recipe does, step by step and as a whole, or of what ops do."""

import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress

from augment.command import Parser, one_of, png_file, readable_errors, writing
from augment.compose import Recipe, compose_recipe, key_of, parse
from augment.config import Aug, SplitName
from augment.dataset import Picture, Split
from augment.errors import UserError, suggest
from augment.progress import progress_bar
from augment.registry import OPS

if TYPE_CHECKING:
    from augment.preview.sheet import Sheet

OUT = Path("outputs/preview.png")
ALL = "all"

_EXAMPLES = """\
  python -m augment.preview +aug=imagenette aug.train.rotate.p=.5
  python -m augment.preview +aug=imagenette --photos DIR --count 6 --out recipe.png
  python -m augment.preview --op rotate --op erase
  python -m augment.preview --op all aug.plugins=[my_ops]

Overrides are those of python -m trainer; model, fit and callbacks change nothing here. Photos come from the configured
data, `data=folder data.root=DIR`, or from --photos.
"""


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise ArgumentTypeError(f"'{text}' is not allowed. Allowed: a whole number from 1 to 64")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**31:
        raise ArgumentTypeError(f"'{text}' is not allowed. Allowed: a whole number from 0 to {2**31 - 1}")
    return int(text)


def _parser() -> Parser:
    parser = Parser("augment.preview", "Draw what a recipe does to pictures, or what ops do.", _EXAMPLES)
    parser.add_argument("--op", action="append", default=[], metavar="NAME|all",
                        help="show this op at its default ranges, in place of a recipe; may be repeated")  # fmt: skip
    parser.add_argument("--out", type=png_file, default=OUT, metavar="FILE.png", help=f"where to write, default {OUT}")
    parser.add_argument("--photos", type=Path, metavar="DIR", help="folder with photos at any depth, in place of data")
    parser.add_argument("--count", type=_count, metavar="N", help="photos, default 4; with --op 1")
    parser.add_argument("--split", type=one_of("train", "val"), default="train", metavar="train|val",
                        help="whose steps and photos, default train")  # fmt: skip
    parser.add_argument("--seed", type=_seed, metavar="N", help="of the draws, in place of the configured one")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    with readable_errors():
        options, overrides = _parser().split(sys.argv[1:] if arguments is None else arguments)
        recipe = compose_recipe(overrides)
        names = _ops(options.op)
        if not names and not _has_recipe(recipe, options.split, overrides):
            raise UserError(f"aug.{options.split}: no steps. Allowed: +aug=NAME for a recipe, or --op NAME for an op.")
        _preview(recipe, names, options, overrides)
        Console(highlight=False, markup=False, soft_wrap=True).print(str(options.out))
    return 0


def _ops(given: Sequence[str]) -> list[str]:
    """Return the names of the ops to show.

    Raises:
        UserError: there is no op of such a name.
    """
    for name in given:
        if name not in OPS and name != ALL:
            raise UserError(f"--op: unknown op '{name}'.{suggest(name, [*OPS, ALL])}")
    return list(OPS) if ALL in given else list(dict.fromkeys(given))


def _has_recipe(recipe: Recipe, split: SplitName, overrides: Sequence[str]) -> bool:
    return bool(recipe.aug.steps(split)) or _recipe_name(overrides) is not None


def _recipe_name(overrides: Sequence[str]) -> str | None:
    """Return the name of the file of conf/aug that was chosen."""
    chosen = [override.value() for override in map(parse, overrides) if key_of(override) == "aug"]
    return next((name for name in chosen if isinstance(name, str)), None)


def _preview(recipe: Recipe, names: Sequence[str], options: Namespace, overrides: Sequence[str]) -> None:
    """Draw the sheet and write it."""
    count = options.count or (1 if names else 4)
    # To mix takes two.
    files = choose_photos(recipe, options.photos, options.split, max(count, 2) if names else count)
    from augment.figures import save_figure  # takes a while, as does what is imported below
    from augment.lettering import DPI
    from augment.preview.sheet import draw

    seed = recipe.seed if options.seed is None else options.seed
    with progress_bar() as progress:
        if names:
            sheet = _ops_sheet(recipe.aug, names, files, min(count, len(files)), seed, progress)
        else:
            sheet = _recipe_sheet(recipe.aug, options.split, files, seed, overrides, progress)
        with writing(f"--out {options.out}"):
            save_figure(draw(sheet), options.out, DPI)


def _ops_sheet(
    aug: Aug, names: Sequence[str], files: Sequence[Picture], count: int, seed: int, progress: Progress
) -> "Sheet":
    from augment.preview.gallery import ops_sheet

    task = progress.add_task("Drawing", total=len(names))
    title = f"{'All ops' if set(names) == set(OPS) else 'Ops'}, {_size(aug)}"
    text = f"with their default parameters; seed {seed}"
    return ops_sheet(aug, names, files, count=count, seed=seed, title=title, text=text,
                     tick=lambda: progress.advance(task))  # fmt: skip


def _recipe_sheet(
    aug: Aug, split: SplitName, files: Sequence[Picture], seed: int, overrides: Sequence[str], progress: Progress
) -> "Sheet":
    from augment.plan import build_plan
    from augment.preview.gallery import recipe_sheet, shown_steps

    task = progress.add_task("Drawing", total=len(shown_steps(build_plan(aug, split))) + 1)
    title = f"{_recipe_name(overrides) or 'Recipe'}, {split}, {_size(aug)}"
    changes = [token for token in overrides if key_of(parse(token)).startswith("aug.")]
    return recipe_sheet(aug, split, files, seed=seed, title=title, text="; ".join([*changes, f"seed {seed}"]),
                        tick=lambda: progress.advance(task))  # fmt: skip


def _size(aug: Aug) -> str:
    return f"{aug.size} x {aug.size} px"


def choose_photos(recipe: Recipe, folder: Path | None, split: SplitName, count: int) -> list[Picture]:
    """Return photos from all over a folder or the configured data, `count` if there are so many.

    Raises:
        UserError: there are none, or one of those cannot be decoded.
    """
    from augment.check import require_readable
    from augment.folder import find_pictures
    from augment.sources import load_dataset

    found: list[Picture]
    if folder is None:
        dataset = load_dataset(recipe.source())
        found = list((dataset.train if split == "train" else dataset.val).files)
    else:
        found = [*find_pictures(folder)]
        if not found:
            raise UserError(f"--photos: no pictures in {folder}.")
    wanted = min(count, len(found))
    chosen = tuple(found[(2 * i + 1) * len(found) // (2 * wanted)] for i in range(wanted))
    return list(require_readable(Split(chosen, (0,) * len(chosen)), split, skip_bad=False).files)


if __name__ == "__main__":
    sys.exit(main())
