"""The command line of the benchmark of training."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from augment.bench.options import positive_count, positive_seconds
from augment.command import Parser, output, png_file
from augment.compose import compose
from trainer.config import Config, check_config, parse_config

_EXAMPLES = """\
  python -m trainer.bench +aug=imagenette                          on the built-in sample
  python -m trainer.bench +aug=imagenette data=folder data.root=DIR fit.precision=bf16 fit.batch_size=256
  python -m trainer.bench +aug=strong --placements                 which placement of the decoder suits this model
  python -m trainer.bench +aug=imagenette fit.graph=false --json bench.json --figure bench.png

Stages of a fit do not count: pictures are of aug.size, batches of fit.batch_size.
"""


@dataclass(frozen=True)
class Options:
    """What the command line says.

    Attributes:
        config: the run, of which training is measured.
        overrides: of the defaults, to be written down.
        rounds: how often each row runs.
        seconds: for how long, about, each time.
        placements: whether other placements of the decoder are measured too.
        json: where to write all figures.
        figure: where to write the chart.
    """

    config: Config
    overrides: tuple[str, ...]
    rounds: int = 5
    seconds: float = 2.0
    placements: bool = False
    json: Path | None = None
    figure: Path | None = None


def parse_options(arguments: Sequence[str]) -> Options:
    """Parse flags and overrides, and check the configuration as a run would.

    Raises:
        UserError: a mistake in either.
    """
    given, overrides = _parser().split(arguments)
    config = parse_config(compose(overrides))
    check_config(config)
    # A pass is as long as a window, of pictures of one size, and nothing is gone on with.
    config = replace(config, fit=replace(config.fit, limit_batches=None, resume=None, epochs=1, stages=()))
    return Options(config, tuple(overrides), given.rounds, given.seconds, given.placements, given.json, given.figure)


def _parser() -> Parser:
    description = "Say whether training waits for data: the loader alone, training alone, both, and a bare loop."
    parser = Parser("trainer.bench", description, _EXAMPLES)
    parser.add_argument("--rounds", type=positive_count, default=5, metavar="N", help="how often each row runs (5)")
    parser.add_argument("--seconds", type=positive_seconds, default=2.0, metavar="S", help="a row and round, about (2)")
    parser.add_argument("--placements", action="store_true", help="rows for decoding on GPU and CPU, and for the cache")
    parser.add_argument("--json", type=output, metavar="FILE", help="write all figures")
    parser.add_argument("--figure", type=png_file, metavar="FILE.png", help="write a bar chart")
    return parser
