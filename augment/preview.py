"""`python -m augment.preview`: a picture of what a recipe does, step by step and as a whole, or of what ops do."""

import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from augment.command import Parser, one_of, readable_errors
from augment.compose import Recipe, compose_recipe, key_of, parse
from augment.config import SplitName
from augment.dataset import Split
from augment.errors import UserError, suggest
from augment.registry import OPS

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


def _png(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() != ".png" or path.is_dir():
        raise ArgumentTypeError(f"'{text}' is not allowed. Allowed: the name of a file that ends in .png")
    return path


def _parser() -> Parser:
    parser = Parser("augment.preview", "Draw what a recipe does to pictures, or what ops do.", _EXAMPLES)
    parser.add_argument("--op", action="append", default=[], metavar="NAME|all",
                        help="show this op at its default ranges, in place of a recipe; may be repeated")  # fmt: skip
    parser.add_argument("--out", type=_png, default=OUT, metavar="FILE.png", help=f"where to write, default {OUT}")
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
        path = _preview(recipe, names, options, overrides)
        Console(highlight=False, markup=False, soft_wrap=True).print(str(path))
    return 0


def _ops(given: Sequence[str]) -> list[str]:
    """Return the names of the ops to show.

    Raises:
        UserError: there is no op of such a name.
    """
    for name in given:
        if name not in OPS and name != ALL:
            raise UserError(f"--op: unknown op '{name}'.{suggest(name, [*OPS, ALL])}")
    return list(OPS) if ALL in given else list(given)


def _has_recipe(recipe: Recipe, split: SplitName, overrides: Sequence[str]) -> bool:
    return bool(recipe.aug.steps(split)) or _recipe_name(overrides) is not None


def _recipe_name(overrides: Sequence[str]) -> str | None:
    """Return the name of the file of conf/aug that was chosen."""
    chosen = (parse(token) for token in overrides)
    return next((str(override.value()) for override in chosen if key_of(override) == "aug"), None)


def _preview(recipe: Recipe, names: Sequence[str], options: Namespace, overrides: Sequence[str]) -> Path:
    """Draw the sheet and write it; return where it lies."""
    files = choose_photos(recipe, options.photos, options.split, options.count or (1 if names else 4), 2 if names else 1)
    # Only now, as these take seconds: PyTorch, DALI and Matplotlib.
    from augment.gallery import ops_sheet, recipe_sheet, shown_steps
    from augment.plan import build_plan
    from augment.sheet import draw, save

    aug, seed = recipe.aug, recipe.seed if options.seed is None else options.seed
    size = f"{aug.size} x {aug.size} px"
    total = len(dict.fromkeys(names)) if names else len(shown_steps(build_plan(aug, options.split))) + 1
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("Drawing", total=total + 1)
        if names:
            count = min(options.count or 1, len(files))
            title = f"{ALL.capitalize()} ops" if len(names) == len(OPS) else "Ops"
            sheet = ops_sheet(aug, names, files, count=count, seed=seed, title=f"{title}, {size}",
                              text=f"with their default parameters, seed {seed}",
                              tick=lambda: progress.advance(task))  # fmt: skip
        else:
            name = _recipe_name(overrides) or "Recipe"
            told = [token for token in overrides if key_of(parse(token)).split(".")[0] == "aug" and token != f"+aug={name}"]
            sheet = recipe_sheet(aug, options.split, files, seed=seed, title=f"{name}, {options.split}, {size}",
                                 text="; ".join([f"seed {seed}", *told]),
                                 tick=lambda: progress.advance(task))  # fmt: skip
        try:
            save(draw(sheet), options.out)
        except OSError as error:
            raise UserError(f"--out: {options.out} cannot be written: {error.strerror}.") from error
        progress.advance(task)
    return Path(options.out)


def choose_photos(recipe: Recipe, folder: Path | None, split: SplitName, count: int, least: int) -> list[Path]:
    """Return photos from all over a folder or the configured data, at most `count` but `least` if there are so many.

    Raises:
        UserError: there are none, or one of those cannot be decoded.
    """
    from augment.check import require_readable
    from augment.folder import find_pictures
    from augment.sources import load_dataset

    if folder is None:
        dataset = load_dataset(recipe.source())
        found = list((dataset.train if split == "train" else dataset.val).files)
    else:
        found = find_pictures(folder)
        if not found:
            raise UserError(f"--photos: no pictures in {folder}.")
    wanted = min(max(count, least), len(found))
    chosen = tuple(found[(2 * i + 1) * len(found) // (2 * wanted)] for i in range(wanted))
    return list(require_readable(Split(chosen, (0,) * len(chosen)), split, skip_bad=False).files)


if __name__ == "__main__":
    sys.exit(main())
