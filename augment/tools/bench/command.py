"""Measure how fast a recipe runs, compared with upper bounds and with other loaders.

Rows are interleaved: each round runs every row for a few seconds, so that a temporary slowdown of the machine affects
all of them. Rows that are not being timed are idle: batches that threads or workers have prefetched are consumed before
the clock starts, and work that is still running when it stops is waited for.

With --sources, the same images are written in the format of every source, including folders, to a temporary folder (in
$TMPDIR, or /tmp), and read once before the measurement, so that the disk does not matter.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from augment.cli.parser import readable_errors
from augment.tools.bench.options import BenchOptions, parse_options

if TYPE_CHECKING:
    from augment.cli.benchmark import BenchReport


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    with readable_errors():
        options = parse_options(arguments, __doc__)
        # PyTorch and DALI take seconds to import.
        from augment.tools.bench.sources import compare_sources

        report = compare_sources(options) if options.flags.sources else _compare_rows(options)
        report.finish(options.flags.out)
    return 0


def _compare_rows(options: BenchOptions) -> "BenchReport":
    """Measure the rows that the flags select."""
    from augment.tools.bench.contenders import CONTENDERS, find_contenders, op_contenders, recipe_stream
    from augment.tools.bench.in_memory import TRANSFORM_CONTENDERS
    from augment.tools.bench.measure import make_report, measure, settings_of
    from augment.tools.bench.peers import peers
    from augment.tools.bench.setup import Contender, Setup

    flags = options.flags
    known = peers(flags.model) if flags.peers else TRANSFORM_CONTENDERS if flags.transform else CONTENDERS
    also = [Contender(name, f"{name}, fused", partial(recipe_stream, aug=aug)) for name, aug in options.also]
    contenders = [*find_contenders(flags.rows, known), *also, *op_contenders(flags.ops)]
    setup = Setup.of(options.aug, options.images(), flags)
    results = measure(contenders, setup, flags)
    settings = {"recipe_name": options.recipe_name, **settings_of(setup, flags)}
    further: dict[str, Any] = {"baselines": ("transform",), "beyond": ()} if flags.transform else {}
    if flags.peers:
        settings["model"] = flags.model
        further = {"baselines": ("fused",) if flags.model == "none" else ("fixed", "fused"), "beyond": ()}
    trains = flags.peers and flags.model != "none"
    subject = f"{flags.model} fed with {options.recipe_name}" if trains else options.recipe_name
    return make_report(subject, results, settings, **further)
