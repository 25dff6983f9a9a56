"""A process that leaves without Python's own clean-up loses nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import atexit, sys, threading, time, types
sys.modules["torch"] = types.ModuleType("torch")
from augment.support.process import run_and_leave

class Last:
    def __del__(self):
        print("cleaned up")

last = Last()
atexit.register(print, "exit handler")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()

def main():
    print("main")
    if sys.argv[1] == "raises":
        raise SystemExit(3)
    return 3

run_and_leave(main)
"""


@pytest.mark.parametrize("how", ["returns", "raises"])
def test_threads_exit_handlers_and_output_end_before_the_process(how: str) -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", CODE, how], cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, "main\nthread\nexit handler\n", "")
