"""Measure the time from the start of a process to the first batch of a recipe, by part.

`measure_start` runs this module in new processes, each of which reports when it reached which point, on the system's
monotonic clock, which all processes share.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from statistics import median
from time import monotonic

from augment.support.memory import freeze_imports

_ENTERED = monotonic()


def measure_start(arguments: Sequence[str], runs: int = 3) -> dict[str, float]:
    """Return seconds by part and their `total`, of the run with the median total.

    Args:
        arguments: the benchmark's command line.
        runs: number of processes, run one after the other; odd.

    Raises:
        subprocess.CalledProcessError: a process failed.
    """
    assert runs % 2, "the median must be one of the runs, so their number must be odd"
    measured = [_run(arguments) for _ in range(runs)]
    middle = median(parts["total"] for parts in measured)
    return next(parts for parts in measured if parts["total"] == middle)


def _run(arguments: Sequence[str]) -> dict[str, float]:
    begun = monotonic()
    command = [sys.executable, "-m", __spec__.name, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    points: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    parts = {}
    for name, point in points.items():
        parts[name], begun = point - begun, point
    return {**parts, "total": sum(parts.values())}


def _first_batch(arguments: Sequence[str]) -> dict[str, float]:
    """Make the first batch as training does; return the time at which each part was done."""
    points = {"Python": _ENTERED}
    with freeze_imports():  # as in trainer/__main__.py
        import torch  # the imports are part of the measurement

        points["import torch"] = monotonic()
        from augment.data.dataset import Split
        from augment.pipeline.loader import Loader
        from augment.recipe.plan import build_plan
        from augment.tools.bench.options import parse_options

        points["import DALI and augment"] = monotonic()
    options = parse_options(arguments)
    files = options.images()
    points["configuration and files"] = monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = Loader(
        build_plan(options.aug, "train"),
        Split(tuple(files), (0,) * len(files)),
        batch_size=min(options.flags.batch_size, len(files)),
        seed=0,
        device=device,
        threads=options.flags.threads,
        half=options.flags.half,
    )
    next(iter(loader))
    if device.type == "cuda":
        torch.cuda.synchronize()
    points["first batch"] = monotonic()
    return points


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_first_batch(sys.argv[1:])) + "\n")
