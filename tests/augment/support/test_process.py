"""The process: leaving without Python's own clean-up loses nothing, and the GPU's driver is started early."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from augment.support import process

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


def test_exit_handlers_of_dali_are_left_out() -> None:
    code = """
import atexit, gc, torch
from nvidia.dali.pipeline import Pipeline
from augment.support.process import run_and_leave

class Pipes(list):
    def __iter__(self):
        print("ends pipelines")
        return iter(())

Pipeline._pipes = Pipes()
gc.callbacks.append(lambda phase, info: print("unloads DALI") if phase == "start" and info["generation"] == 2 else None)
atexit.register(print, "exit handler")
run_and_leave(lambda: 0)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "exit handler\n", "")


class Driver:
    """CUDA's driver, as far as it is asked."""

    def __init__(self, *, fails_at: str = "") -> None:
        self.fails_at = fails_at
        self.calls: list[tuple[object, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*given: object) -> int:
            self.calls.append((name, *(value for value in given if isinstance(value, int))))
            return 100 if name == self.fails_at else 0

        return call


@pytest.mark.parametrize(
    ("fails_at", "calls"),
    [
        ("", [("cuInit", 0), ("cuDeviceGet", 3), ("cuDevicePrimaryCtxRetain",)]),
        ("cuInit", [("cuInit", 0)]),
        ("cuDeviceGet", [("cuInit", 0), ("cuDeviceGet", 3)]),
    ],
    ids=["works", "no GPU", "no such GPU"],
)
def test_the_driver_makes_the_context_of_a_gpu(
    fails_at: str, calls: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(fails_at=fails_at)
    monkeypatch.setattr(process.ctypes, "CDLL", lambda name: driver)
    process.wake_driver(3)
    assert driver.calls == calls


def test_without_a_driver_nothing_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(process.ctypes, "CDLL", missing)
    process.wake_driver(0)
