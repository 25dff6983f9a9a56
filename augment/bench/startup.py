"""How long it takes from the start of a process to the first batch of a recipe, and what the time goes into.

`measure_start` runs this module in fresh processes, each of which writes down when it passed which point. The clock is
the system's monotonic one, the same in all processes.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from statistics import median
from time import monotonic

from augment.memory import imports_are_no_garbage

_ENTERED = monotonic()


def measure_start(arguments: Sequence[str], runs: int = 3) -> dict[str, float]:
    """Return seconds by part, and their `total`: of the run whose total is the median.

    Args:
        arguments: of the benchmark's command line.
        runs: fresh processes, one after the other.

    Raises:
        subprocess.CalledProcessError: a process failed.
    """
    assert runs % 2, "the median of an even number of runs is none of them"
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
    """Get to the first batch as a run does; return when which part was done."""
    points = {"Python": _ENTERED}
    with imports_are_no_garbage():  # as trainer/__main__.py does
        import torch  # the imports are what is measured

        points["import torch"] = monotonic()
        from augment.bench.options import parse_options
        from augment.dataset import Split
        from augment.loader import Loader
        from augment.plan import build_plan

        points["import DALI and augment"] = monotonic()
    options = parse_options(arguments)
    files = options.pictures()
    points["configuration and files"] = monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = Loader(
        build_plan(options.aug, "train"),
        Split(tuple(files), (0,) * len(files)),
        batch_size=min(options.batch_size, len(files)),
        seed=0,
        device=device,
        threads=options.threads,
        half=options.half,
    )
    next(iter(loader))
    if device.type == "cuda":
        torch.cuda.synchronize()
    points["first batch"] = monotonic()
    return points


def _main() -> int:
    points = _first_batch(sys.argv[1:])
    sys.stdout.write(json.dumps(points) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
