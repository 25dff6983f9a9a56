"""Measure whether training waits for data, and what the loop costs.

Rows are interleaved, as in `augment.tools.bench`: each round runs every row for a few seconds, so that a disturbance of
the machine slows all of them, and ratios are taken within a round. All rows have the same batches, of one shape: the
images are repeated to fill whole batches. The learning rate is 0, which keeps the weights and costs the same.
"""

from __future__ import annotations

import platform
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from augment.cli.compose import compose
from augment.cli.parser import Parser, add_measuring_flags, readable_errors
from augment.support.files import installed_version
from augment.support.memory import keep_freed_memory
from augment.support.secrets import as_written, masked
from trainer.run.config import Config, parse_config
from trainer.run.jobs import require_ranks

if TYPE_CHECKING:
    from augment.cli.benchmark import BenchReport

_PACKAGES = ("torch", "nvidia-dali-cuda120", "timm")

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
        flags, overrides = _parser().split(arguments)
        config = parse_config(compose(overrides))
        require_ranks(config)
        from trainer.run.build import release_memory, using  # PyTorch takes seconds to import
        from trainer.run.check import check_config

        check_config(config)
        # A pass is as long as a window, of images of one size, and nothing is resumed.
        config = replace(config, fit=replace(config.fit, limit_batches=None, resume=None, epochs=1, stages=()))
        try:
            with using(config.fit.torch_device()):
                report = _run(config, flags, overrides)
        finally:
            release_memory()
        report.finish(flags.out)
    return 0


def _run(config: Config, flags: Namespace, overrides: Sequence[str]) -> BenchReport:
    """Measure training as configured."""
    from augment.support.timing import hardware, take_turns
    from trainer.tools.bench.report import make_report
    from trainer.tools.bench.rows import PLACEMENTS, Rows

    on_gpu = config.fit.torch_device().type == "cuda"
    if not on_gpu:
        keep_freed_memory()  # as in training
    rows = Rows(config)
    try:
        results = take_turns(rows.make(placements=flags.placements), flags.rounds, flags.seconds)
    finally:
        rows.close()
    settings = {
        "overrides": list(map(masked, overrides)),
        **{section: as_written(config.resolved[section]) for section in ("model", "aug", "fit")},
        "rounds": flags.rounds,
        "seconds": flags.seconds,
        "gpu_memory_mib": rows.memory,
        # A run on the CPU does not show the machine's GPU.
        "hardware": hardware() | ({} if on_gpu else {"gpu": None}),
        "versions": {"python": platform.python_version(), **{name: installed_version(name) for name in _PACKAGES}},
    }
    return make_report(results, settings, tuple(PLACEMENTS) if flags.placements else ())


def _parser() -> Parser:
    description = "Measure whether training waits for data: the loader alone, training alone, both, and a bare loop."
    parser = Parser("trainer bench", description, _EXAMPLES)
    add_measuring_flags(parser)
    parser.add_argument("--placements", action="store_true", help="rows for decoding on GPU and CPU, and for the cache")
    return parser
