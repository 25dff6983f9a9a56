"""Freed memory: kept for the next batches of a run, and returned to the system after it."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from augment.support import memory

# Blocks that are freed below one that is still in use, as glibc returns only the top of its heap by itself.
PROGRAM = """
from augment.support.memory import keep_freed_memory, return_freed_memory

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


def test_it_is_returned_again_and_again_until_the_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    twice, calls = threading.Event(), []

    def returned() -> None:
        calls.append(threading.current_thread())
        if len(calls) == 2:
            twice.set()

    monkeypatch.setattr(memory, "return_freed_memory", returned)
    with memory.regularly_returned(0.001):
        assert twice.wait(60)
    assert threading.main_thread() not in calls
    assert not any(thread.is_alive() for thread in calls)
