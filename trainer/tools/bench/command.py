"""Measure whether training waits for data: the loader alone, training on one batch, and training on the loader's data.

Each round runs every row of the table for a few seconds. Ratios compare rows of the same round, so other work on the
machine slows both and hardly changes the ratio. All batches are full. The learning rate is 0, which takes the same time
and keeps the weights.
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
  python -m trainer bench aug=imagenette                           on the built-in sample
  python -m trainer bench aug=imagenette data=folder data.root=DIR fit.precision=bf16 fit.batch_size=256
  python -m trainer bench aug=imagenette fit.graph=false --rounds 3 --out DIR

The benchmark uses aug.size and fit.batch_size, and ignores fit.stages.
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code."""
    with readable_errors():
        parser = Parser("trainer bench", __doc__ or "", _EXAMPLES)
        add_measuring_flags(parser)
        flags, overrides = parser.split(arguments)
        config = parse_config(compose(overrides))
        require_ranks(config)
        seconds = 3 * (1 + flags.rounds) * flags.seconds  # one round is for warm-up
        sys.stderr.write(f"This takes about {duration(seconds)} after loaders and model have started.\n")
        # PyTorch takes seconds to import.
        from trainer.run.build import session
        from trainer.run.config.checks import check_config
        from trainer.tools.bench.training import measure

        check_config(config)
        # The benchmark limits each pass itself. It uses full batches of one size, and does not resume a run.
        fit = replace(config.fit, limit_batches=None, resume=None, epochs=1, steps=None, stages=(), drop_last=True)
        with session(config):
            measure(replace(config, fit=fit), flags, overrides)
    return 0
