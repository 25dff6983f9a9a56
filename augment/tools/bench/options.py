"""The command line of the benchmark: which recipe, which images, and for how long."""

import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from augment.cli.compose import compose_recipe
from augment.cli.parser import Parser, add_measuring_flags, flags_in, whole_number
from augment.data.dataset import ImageRef
from augment.data.sources import Source, load_dataset
from augment.recipe.steps import Aug
from augment.support.errors import UserError
from augment.support.timing import cores
from augment.tools._photos import find_photos

# More would exceed the page cache of a small machine and change no row's speed.
_MOST_IMAGES = 20_000

# What each comparison does without.
_UNUSED = {
    "--sources": ("--transform", "--peers", "--also", "--ops", "--photos", "--workers"),
    "--transform": ("--peers", "--also", "--ops", "--workers"),
    "--peers": ("--also", "--ops"),
}

_EXAMPLES = """\
  python -m augment bench +aug=imagenette                                 on the built-in sample
  python -m augment bench +aug=imagenette data=folder data.root=DIR       on the train images of DIR
  python -m augment bench +aug=imagenette aug.size=224 --photos DIR       on all images in DIR, at 224 px
  python -m augment bench +aug=imagenette --rows decode,fused,pil         three rows only
  python -m augment bench +aug=imagenette --also rand_augment --ops all   other recipes and single ops, too
  python -m augment bench +aug=imagenette --transform                     on a decoded batch in memory
  python -m augment bench +aug=imagenette --peers                         a model trained from other loaders, too
  python -m augment bench --sources +aug=imagenette                       the same images from each source
  python -m augment bench --sources data=folder data.root=DIR --rows tfrecord   tfrecord and folders only
"""


@dataclass(frozen=True)
class BenchOptions:
    """The parsed command line.

    Attributes:
        aug: the recipe.
        recipe_name: its name, for titles.
        source: the source of images, unless --photos is given.
        also: names of other recipes and these, each of which gets a row.
        flags: values of the flags.
    """

    aug: Aug
    recipe_name: str
    source: Source
    also: tuple[tuple[str, Aug], ...]
    flags: Namespace

    def images(self) -> list[ImageRef]:
        """List the images, at most 20,000 of them, evenly spread.

        Raises:
            UserError: there are no images, or the source cannot be used.
        """
        return find_photos(self.flags.photos, lambda: load_dataset(self.source).train.files, _MOST_IMAGES, check=False)


def parse_options(arguments: Sequence[str], description: str) -> BenchOptions:
    """Parse flags and overrides.

    Args:
        arguments: the command line without the program's name.
        description: the description for --help.

    Raises:
        UserError: a flag or an override is wrong.
    """
    flags, overrides = _parser(description).split(arguments)
    _refuse_unused(flags_in(arguments))
    recipe = compose_recipe(overrides)
    names = [token.split("=", 1)[1] for token in overrides if token.lstrip("+").startswith("aug=")]
    # The settings of the recipe apply to the others, too; its steps do not.
    shared = [token for token in overrides if not re.match(r"[+~]*aug(\.(train|val)(\.|=|$)|=|$)", token)]
    try:
        also = tuple((name, compose_recipe([f"+aug={name}", *shared]).aug) for name in flags.also)
    except UserError as error:
        raise UserError(f"--also: {error}") from error
    return BenchOptions(recipe.aug, names[-1] if names else "no recipe", recipe.source(), also, flags)


def _refuse_unused(given: set[str]) -> None:
    """Refuse flags that the chosen comparison does not use."""
    if "--model" in given and "--peers" not in given:
        raise UserError("--model: no model is trained. Allowed: with --peers.")
    for comparison, unused in _UNUSED.items():
        for flag in unused:
            if comparison in given and flag in given:
                raise UserError(f"{flag}: not used with {comparison}. Allowed: one of the two.")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _parser(description: str) -> Parser:
    parser = Parser("augment bench", description, _EXAMPLES)
    add_measuring_flags(parser)
    parser.add_argument(
        "--batch-size", type=whole_number(1), default=256, metavar="N", help="images per batch (default: 256)"
    )
    parser.add_argument(
        "--threads",
        type=whole_number(1),
        default=min(16, cores()),
        metavar="N",
        help="CPU threads of a DALI pipeline (default: one per core, at most 16)",
    )
    parser.add_argument(
        "--workers",
        type=whole_number(1),
        default=cores(),
        metavar="N",
        help="worker processes of a DataLoader (default: one per core)",
    )
    parser.add_argument(
        "--rows",
        type=_names,
        default=(),
        metavar="NAME,NAME",
        help="measure only these rows; with --sources, these sources and folder",
    )
    parser.add_argument(
        "--also", type=_names, default=(), metavar="NAME,NAME", help="add rows for other recipes of conf/aug, fused"
    )
    parser.add_argument(
        "--ops",
        type=_names,
        default=(),
        metavar="NAME,NAME|all",
        help="add rows for single ops, applied to every image after the recipe's crop",
    )
    parser.add_argument(
        "--photos", type=Path, metavar="DIR", help="use the images in this folder, at any depth, instead of data"
    )
    parser.add_argument(
        "--sources", action="store_true", help="compare sources instead: the train images in the format of each"
    )
    parser.add_argument(
        "--transform", action="store_true", help="measure augment.Transform, kornia and torchvision on a decoded batch"
    )
    parser.add_argument(
        "--peers", action="store_true", help="train one model on the same images from this and other libraries' loaders"
    )
    parser.add_argument(
        "--model", default="resnet18", metavar="NAME", help="with --peers: a timm model, or none (default: resnet18)"
    )
    return parser
