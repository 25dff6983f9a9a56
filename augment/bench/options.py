"""The benchmark's command line: which recipe, which pictures, how long."""

from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from augment.bench.cpu_time import cores
from augment.command import Parser, output
from augment.compose import compose_recipe
from augment.config import Aug
from augment.dataset import Picture
from augment.errors import UserError
from augment.folder import find_pictures
from augment.sources import Source, load_dataset

# More than these are more than the page cache of a small machine, and no row gets faster or slower by them.
_MOST_PICTURES = 20_000

_EXAMPLES = """\
  python -m augment.bench +aug=imagenette                                 on the built-in sample
  python -m augment.bench +aug=imagenette data=folder data.root=DIR       on the train pictures of DIR
  python -m augment.bench +aug=imagenette aug.size=224 --photos DIR       on all pictures below DIR
  python -m augment.bench +aug=imagenette --rows decode,fused,pil         three rows
  python -m augment.bench +aug=imagenette --also rand_augment --ops all   other recipes and single ops beside it
"""


@dataclass(frozen=True)
class Options:
    """What the command line says.

    Attributes:
        aug: the recipe.
        recipe_name: for people.
        source: of the pictures, unless `photos` is given.
        photos: a folder of pictures.
        rows: names of the rows; empty means all.
        also: other recipes with their names, to have a row each.
        ops: names of ops to have a row each, applied to every picture after the recipe's crop; "all" means all.
        batch_size: pictures in a batch.
        rounds: how often each row runs.
        seconds: for how long, each time.
        threads: CPU threads of a DALI pipeline.
        workers: processes of a DataLoader.
        half: float16 images.
        start: whether the start of a process is measured too.
        out: folder for the JSON file and the chart.
    """

    aug: Aug
    recipe_name: str
    source: Source
    photos: Path | None
    rows: tuple[str, ...]
    also: tuple[tuple[str, Aug], ...]
    ops: tuple[str, ...]
    batch_size: int
    rounds: int
    seconds: float
    threads: int
    workers: int
    half: bool
    start: bool
    out: Path | None

    def pictures(self) -> list[Picture]:
        """List the pictures, at most 20,000 of them, evenly spread.

        Raises:
            UserError: there are none, or the source cannot be used.
        """
        files: list[Picture]
        if self.photos is None:
            files = list(load_dataset(self.source).train.files)
        elif self.photos.is_dir():
            files = [*find_pictures(self.photos)]
        else:
            raise UserError(f"--photos {self.photos}: there is no such folder.")
        if not files:
            raise UserError(f"--photos {self.photos}: the folder holds no pictures.")
        return files[:: -(-len(files) // _MOST_PICTURES)]


def parse_options(arguments: Sequence[str]) -> Options:
    """Parse flags and overrides.

    Raises:
        UserError: a mistake in either.
    """
    given, overrides = _parser().split(arguments)
    recipe = compose_recipe(overrides)
    names = [token.split("=", 1)[1] for token in overrides if token.lstrip("+").startswith("aug=")]
    also = tuple((name, compose_recipe([f"+aug={name}", *_settings_of(overrides)]).aug) for name in _names(given.also))
    return Options(
        recipe.aug,
        names[-1] if names else "no recipe",
        recipe.source(),
        given.photos,
        _names(given.rows),
        also,
        _names(given.ops),
        given.batch_size,
        given.rounds,
        given.seconds,
        given.threads,
        given.workers,
        given.half,
        given.start,
        given.out,
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _settings_of(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that hold for every recipe: those of the steps are the first recipe's own."""
    own = ("aug", "aug.train", "aug.val")
    keys = {token: token.lstrip("+~").split("=")[0] for token in overrides}
    return [token for token, key in keys.items() if key not in own and not key.startswith(("aug.train.", "aug.val."))]


def _parser() -> Parser:
    description = "Measure a recipe against decoding alone, against itself step by step, and against other loaders."
    parser = Parser("augment.bench", description, _EXAMPLES)
    parser.add_argument("--batch-size", type=positive_count, default=256, metavar="N", help="pictures in a batch (256)")
    parser.add_argument("--rounds", type=positive_count, default=5, metavar="N", help="how often each row runs (5)")
    parser.add_argument(
        "--seconds", type=positive_seconds, default=3.0, metavar="S", help="a row and round, at least (3)"
    )
    parser.add_argument(
        "--threads", type=positive_count, default=min(16, cores()), metavar="N", help="of DALI (one a core, at most 16)"
    )
    parser.add_argument(
        "--workers", type=positive_count, default=cores(), metavar="N", help="of DataLoaders (one a core)"
    )
    parser.add_argument("--half", action="store_true", help="float16 in place of float32 images")
    parser.add_argument("--rows", default="", metavar="NAME,NAME", help="only these rows")
    parser.add_argument("--also", default="", metavar="NAME,NAME", help="rows for other recipes of conf/aug, fused")
    parser.add_argument("--ops", default="", metavar="NAME,NAME", help="rows for single ops after the crop, or all")
    parser.add_argument("--photos", type=Path, metavar="DIR", help="all pictures below a folder, in place of data=")
    parser.add_argument("--start", action="store_true", help="measure the start of a process, too")
    parser.add_argument("--out", type=output, metavar="DIR", help="for bench.json and bench.png (outputs/bench-<time>)")
    return parser


def positive_count(text: str) -> int:
    """Read a flag that is a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not allowed. Allowed: a whole number of at least 1.")
    return int(text)


def positive_seconds(text: str) -> float:
    """Read a flag that is a time."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 < seconds < 3600:
        raise ArgumentTypeError(f"{text!r} is not allowed. Allowed: a number above 0 and below 3600.")
    return seconds
