"""The command line that the benchmarks of this folder share."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from augment.cli.benchmark import compare
from augment.cli.compose import compose_recipe
from augment.cli.parser import Parser, add_measuring_flags, whole_number
from augment.data.sources import load_dataset
from augment.support.measurement import Result, Row
from augment.support.process import cores
from augment.tools.bench.rows import Setup


def make_parser(name: str, description: str) -> Parser:
    """Return a parser of the flags of `python -m augment bench` that set how rows are measured."""
    parser = Parser(name, description, f"  python tests/benchmarks/{name}.py +aug=imagenette --photos DIR\n")
    add_measuring_flags(parser)
    for flag, default in (("--batch-size", 256), ("--threads", min(16, cores())), ("--workers", cores())):
        parser.add_argument(flag, type=whole_number(1), default=default)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--rows", type=lambda text: text.split(","), default=())
    return parser


def make_setup(flags: Namespace, overrides: Sequence[str]) -> Setup:
    """Return the recipe and the images of a command line."""
    recipe = compose_recipe(overrides)
    source = recipe.source()
    return Setup(recipe.aug, flags, lambda: load_dataset(source).train.files)


def measure(setup: Setup, subject: str, rows: Sequence[Row], baselines: Sequence[str]) -> list[Result]:
    """Measure the rows that --rows names, by default all of them, and report them."""
    chosen = [row for row in rows if not setup.flags.rows or row.name in setup.flags.rows]
    settings = {"recipe": str(setup.plan), "threads": setup.flags.threads, "workers": setup.flags.workers}
    subject = f"{subject} at {setup.aug.size} px, {setup}"
    return compare(subject, chosen, setup.flags, device=setup.device, baselines=baselines, settings=settings)
