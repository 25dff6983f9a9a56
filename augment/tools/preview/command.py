"""Draw the effect of a recipe on images, step by step and as a whole, or the effect of single ops.

Images go through the training pipeline. Masks, boxes and keypoints are drawn on them, and captions show the random
parameters.
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from augment.cli.compose import compose_recipe
from augment.cli.overrides import key_of, parse
from augment.cli.parser import Parser, one_of, png_file, readable_errors, whole_number, writing
from augment.recipe.op import OPS
from augment.recipe.steps import SPLITS
from augment.support.console import progress_bar, text_console
from augment.support.errors import UserError, suggest

OUT = Path("outputs/preview.png")
ALL = "all"

_EXAMPLES = """\
  python -m augment preview aug=imagenette aug.train.rotate.p=.5                    a recipe
  python -m augment preview aug=imagenette --photos DIR --count 6 --out recipe.png  on your own images
  python -m augment preview aug=detect data=sample_boxes                            with boxes
  python -m augment preview --channels data=folder data.root=DIR                    each channel on its own
  python -m augment preview --op rotate --op erase                                  two ops
  python -m augment preview --op all aug.plugins=[my_ops]                           all ops, including your own

Overrides work as in python -m trainer. The sections model, fit and callbacks have no effect.
"""


def main(arguments: Sequence[str]) -> int:
    with readable_errors():
        options, overrides = _parser().split(arguments)
        recipe = compose_recipe(overrides)
        names = _op_names(options)
        aug, split = recipe.aug, options.split
        files_of_aug = [override.value() for override in map(parse, overrides) if key_of(override) == "aug"]
        recipe_name = next((name for name in files_of_aug if isinstance(name, str)), "")
        if not (names or recipe_name or aug.steps(split) or options.channels):
            raise UserError(f"aug.{split} has no steps. Add aug=NAME for a recipe, or --op NAME for an op.")
        # Slow imports, after the overrides have been validated.
        from augment.data.dataset import NO_VAL, Dataset
        from augment.data.format_detection import measured
        from augment.data.sources import load_dataset
        from augment.drawing.contact_sheet import draw, lay_out
        from augment.drawing.figure_style import DPI, save_figure
        from augment.tools._photos import find_photos
        from augment.tools.preview.gallery import Photos, channel_blocks, ops_blocks, recipe_blocks

        # A mosaic needs four photos.
        most = 4 if names else options.count
        dataset = Dataset((), NO_VAL, NO_VAL) if options.photos else load_dataset(recipe.source())
        files = find_photos(options.photos, lambda: getattr(dataset, split).files, most)
        photos = Photos.of(files, getattr(dataset, split), dataset.classes)
        aug = replace(aug, pixels=measured(dataset, aug.mean, aug.std))
        title, seed = f"{recipe_name or 'Recipe'}, {split}", recipe.seed
        text = "; ".join([*(token for token in overrides if key_of(parse(token)).startswith("aug.")), f"seed {seed}"])
        with progress_bar() as progress:
            if names:
                title = "All ops" if set(names) == set(OPS) else "Ops"
                text = f"with their default parameters, seed {seed}"
                blocks = ops_blocks(aug, names, photos, progress, seed=seed)
            elif options.channels:
                blocks = channel_blocks(aug, split, photos, seed=seed)
            else:
                blocks = recipe_blocks(aug, split, photos, progress, seed=seed)
            layout = lay_out(f"{title}, {aug.size.height} x {aug.size.width} px", text, blocks)
            with writing(f"--out {options.out}"):
                save_figure(draw(layout), options.out, DPI)
        text_console().print(str(options.out))
    return 0


def _op_names(options: Namespace) -> list[str]:
    """Return the ops of `--op`, each once."""
    for name in options.op:
        if name not in OPS and name != ALL:
            raise UserError(f"--op: unknown op '{name}'.{suggest(name, [*OPS, ALL])}")
    if options.op and options.channels:
        raise UserError("--channels shows images and recipes, not single ops. Remove --op or --channels.")
    return list(OPS) if ALL in options.op else list(dict.fromkeys(options.op))


def _parser() -> Parser:
    parser = Parser("augment preview", __doc__, _EXAMPLES)
    parser.add_argument("--op", action="append", default=[], metavar="NAME|all",
                        help="draw this op at its default ranges instead of a recipe. Can be repeated")  # fmt: skip
    parser.add_argument("--channels", action="store_true",
                        help="show each channel of the images, before and after the recipe")  # fmt: skip
    parser.add_argument("--out", type=png_file, default=OUT, metavar="FILE.png", help=f"the figure (default: {OUT})")
    parser.add_argument("--photos", type=Path, metavar="DIR",
                        help="use the images in this folder, at any depth, instead of data")  # fmt: skip
    parser.add_argument("--count", type=whole_number(1, 64), default=4, metavar="N",
                        help="number of photos of a recipe (default: 4)")  # fmt: skip
    parser.add_argument("--split", type=one_of(*SPLITS), default="train", metavar="train|val",
                        help="split whose steps and photos to draw (default: train)")  # fmt: skip
    return parser
