"""Freed memory: kept for the next batches of a run, and returned to the system after it."""

import os
import subprocess
import sys
from pathlib import Path

# Blocks that are freed below one that is still in use, as glibc returns only the top of its heap by itself.
PROGRAM = """
from augment.support.process import keep_freed_memory, return_freed_memory

def resident():
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmRSS"))

keep_freed_memory()
blocks = [bytearray(2**16) for _ in range(2000)]
on_top = bytearray(2**16)
del blocks
kept = resident()
return_freed_memory()
print(kept - resident())
"""


def test_freed_memory_is_kept_until_it_is_returned() -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert float(done.stdout) > 100, done.stderr  # of 125 MiB
