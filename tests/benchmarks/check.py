"""Compare the check before training with decoding the same files by DALI on the CPU, in CPU time.

    python tests/benchmarks/check.py DIR --rounds 7

DIR has images at any depth. Each round makes a first check, with nothing known about the files, a second one, and
decodes all files.
"""

import sys
from argparse import ArgumentParser
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time

from nvidia.dali import fn
from nvidia.dali.pipeline import Pipeline

from augment.data.check import check_files
from augment.data.formats.folder import find_images
from augment.support.process import cores

BATCH = 64


def seconds(work: Callable[[], object]) -> float:
    begun = process_time()
    work()
    return process_time() - begun


def decoding(files: list[Path]) -> Callable[[], object]:
    pipeline = Pipeline(batch_size=BATCH, num_threads=cores(), device_id=None, exec_dynamic=True)
    with pipeline:
        encoded, _ = fn.readers.file(files=list(map(str, files)), pad_last_batch=True)
        pipeline.set_outputs(fn.decoders.image(encoded, device="cpu"))
    pipeline.build()
    return lambda: deque((pipeline.run() for _ in range(-(-len(files) // BATCH))), maxlen=0)


parser = ArgumentParser(description=__doc__)
parser.add_argument("folder", type=Path)
parser.add_argument("--rounds", type=int, default=7)
given = parser.parse_args()
files = [*find_images(given.folder)]
ratios, again = [], []
for _ in range(given.rounds):
    with TemporaryDirectory(prefix="check-") as folder:
        check = partial(check_files, files, cache=Path(folder) / "cache.json")
        decoded = seconds(decoding(files))
        ratios.append(seconds(check) / decoded)
        again.append(1e6 * seconds(check) / len(files))
sys.stdout.write(
    f"{len(files):,} files: the first check takes {median(ratios):.2f} times the CPU time of DALI's CPU decoder "
    f"({min(ratios):.2f} to {max(ratios):.2f}), the second one {median(again):.0f} µs a file\n"
)
