"""Print what images that were checked cost at the next start, by simulation: tests/benchmarks/many_images.py 1e7."""

import os
import sys
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from tempfile import TemporaryDirectory
from time import process_time

import numpy as np

from augment.data.cache import _VERSION
from augment.data.check import examine_files
from augment.data.dataset import Split
from augment.data.images import Paths
from augment.pipeline.loader_state import digest_of

stat, state, count = os.stat, os.stat(__file__), int(float(sys.argv[1]))
os.stat = lambda path, **more: state if path[:6] == b"/data/" else stat(path, **more)  # type: ignore[assignment,index]
paths = Paths(np.array([b"/data/train/n%08d/n%012d.JPEG" % (n // 1000, n) for n in range(count)]))
with TemporaryDirectory() as folder:
    with Path(folder, "checked.txt").open("wb") as stream:
        known = b"%d %d %016x " % (state.st_size, state.st_mtime_ns, 0)
        stream.writelines([_VERSION, *(b"%b\0%b\0\n" % (name, known) for name in paths.names.tolist())])
    for work in (examine_files, lambda images, cache: digest_of(Split(images, (0,) * count))):
        began = process_time()
        work(paths, cache=Path(folder, "checked.txt"))
        sys.stdout.write(f"{process_time() - began:.1f} s of CPU, {getrusage(RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB\n")
