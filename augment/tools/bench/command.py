"""Measure how fast a recipe runs, compared with upper bounds.

The rows are interleaved: each round runs every row for a few seconds, so that a temporary slowdown of the machine
affects all rows. Only one row works at a time. It consumes its prefetched batches before the clock starts, and waits
for unfinished work before the clock stops.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from augment.cli.compose import compose_recipe
from augment.cli.parser import Parser, add_measuring_flags, readable_errors, whole_number
from augment.support.errors import UserError, suggest
from augment.support.process import cores

_EXAMPLES = """\
  python -m augment bench aug=imagenette                                 on the built-in sample
  python -m augment bench aug=imagenette data=folder data.root=DIR       on the train images of DIR
  python -m augment bench aug=imagenette aug.size=224 --photos DIR       on all images in DIR, at 224 px
  python -m augment bench aug=imagenette --rows decode,fused             only two rows
  python -m augment bench aug=imagenette --also rand_augment             also another recipe
"""


def main(arguments: Sequence[str]) -> int:
    with readable_errors():
        flags, overrides = _parser().split(arguments)
        recipe = compose_recipe(overrides)
        source = recipe.source()
        # The settings of aug also apply to the recipes of --also. The chosen recipe and its steps do not.
        shared = [token for token in overrides if not re.match(r"[+~]*aug(\.(train|val)(\.|=|$)|=|$)", token)]
        also = {name: compose_recipe([f"+aug={name}", *shared]).aug for name in flags.also}
        # PyTorch and DALI take seconds to import.
        from augment.cli.benchmark import compare
        from augment.data.dataset import ImageRef
        from augment.data.sources import load_dataset
        from augment.tools.bench.rows import Setup, file_rows, recipe_row

        def images() -> Sequence[ImageRef]:
            dataset = load_dataset(source)
            if not dataset.pixels.is_rgb:
                raise UserError(f"data: images have {dataset.pixels}, but bench measures 8-bit RGB. Use other data.")
            return dataset.train.files

        setup = Setup(recipe.aug, flags, images)
        known = file_rows(setup)
        names = [row.name for row in known]
        if unknown := [name for name in flags.rows if name not in names]:
            raise UserError(f"--rows: unknown row '{unknown[0]}'.{suggest(unknown[0], names)}")
        rows = [row for row in known if not flags.rows or row.name in flags.rows]
        rows += [recipe_row(setup, name, f"{name}, fused", aug) for name, aug in also.items()]
        names = [token.split("=", 1)[1] for token in overrides if token.lstrip("+").startswith("aug=")]
        compare(
            f"{(names or ['no recipe'])[-1]} at {setup.aug.size} px, {setup}",
            rows,
            flags,
            device=setup.device,
            baselines=["decode", "crop"],
            settings={"recipe": str(setup.plan), "threads": flags.threads},
        )
    return 0


def _parser() -> Parser:
    parser = Parser("augment bench", __doc__ or "", _EXAMPLES)
    add_measuring_flags(parser)
    for flag, default, text in (
        ("--batch-size", 256, "images per batch (default: 256)"),
        ("--threads", min(16, cores()), "CPU threads of a DALI pipeline (default: one per core, at most 16)"),
    ):
        parser.add_argument(flag, type=whole_number(1), default=default, metavar="N", help=text)
    for flag, metavar, text in (
        ("--rows", "NAME,NAME", "measure only these rows"),
        ("--also", "NAME,NAME", "further recipes of conf/aug to measure"),
    ):
        parser.add_argument(flag, type=_names, default=(), metavar=metavar, help=text)
    photos = "use the images in this folder, at any depth, instead of data"
    parser.add_argument("--photos", type=Path, metavar="DIR", help=photos)
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
