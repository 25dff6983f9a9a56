"""Measure whether training waits for data: the loader alone, training on one fixed batch, and on the loader's batches.

Each round runs every row for a few seconds, so that a disturbance of the machine slows all of them, and ratios are
taken within a round. All batches are full. The learning rate is 0, which keeps the weights and costs the same.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace

from augment.cli.compose import compose
from augment.cli.parser import Parser, add_measuring_flags, readable_errors
from augment.support.formatting import duration
from trainer.run.config.schema import parse_config
from trainer.run.jobs import require_ranks

_EXAMPLES = """\
  python -m trainer bench +aug=imagenette                          on the built-in sample
  python -m trainer bench +aug=imagenette data=folder data.root=DIR fit.precision=bf16 fit.batch_size=256
  python -m trainer bench +aug=strong --placements                 which placement of the decoder suits this model
  python -m trainer bench +aug=imagenette fit.graph=false --rounds 3 --out DIR

Stages of a fit are ignored: images are of aug.size, batches of fit.batch_size.
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    with readable_errors():
        parser = Parser("trainer bench", __doc__ or "", _EXAMPLES)
        add_measuring_flags(parser)
        parser.add_argument(
            "--placements", action="store_true", help="rows for decoding on GPU and CPU, and for the cache"
        )
        flags, overrides = parser.split(arguments)
        config = parse_config(compose(overrides))
        require_ranks(config)
        seconds = (3 + 3 * flags.placements) * (1 + flags.rounds) * flags.seconds  # of all rows, and to warm up
        sys.stderr.write(f"about {duration(seconds)}, once loaders and model are ready\n")
        # PyTorch takes seconds to import.
        from trainer.run.build import session
        from trainer.run.config.checks import check_config
        from trainer.tools.bench.training import measure

        check_config(config)
        # A pass is as long as a window, of full batches of images of one size, and nothing is resumed.
        fit = replace(config.fit, limit_batches=None, resume=None, epochs=1, steps=None, stages=(), drop_last=True)
        with session(config):
            measure(replace(config, fit=fit), flags, overrides)
    return 0
