"""Searches that are killed at random moments, also while they plan a trial, and resumed to their end."""

import json
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from rank_runs import environment
from runs import draw_classes

from trainer.run.folder.locks import SWEEP_FILE

pytestmark = pytest.mark.faults

# Runs the trainer until it opens a file of the trials for the nth time. Then it dies.
DYING = """
import os, runpy, signal, sys

nth, left = int(sys.argv.pop(1)), []


def die(event, arguments):
    if event != "open" or "trials." not in str(arguments[0]):
        return
    left.append(arguments)
    if len(left) == nth:
        os.kill(os.getpid(), signal.SIGKILL)


sys.addaudithook(die)
runpy.run_module("trainer", run_name="__main__", alter_sys=True)
"""

SEARCH = [
    *("-m", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=4", "hydra.sweeper.finalists=0", "hydra.sweep.dir=opt"),
    *("data=folder", "aug.size=16", "fit.batch_size=4", "fit.epochs=3", "fit.device=cpu", "fit.threads=1"),
    *("callbacks.plots=null", "callbacks.report=null", "fit.lr=tag(log,interval(1e-3,1e-1))"),
]
WORKERS = "hydra.launcher.n_jobs=2"

# How they are killed: by the clock, or when they open a file of the trials.
WAYS = ("clock", "trials")
CASES = [(number, how, workers) for number in range(5) for how in WAYS for workers in (False, True)]

# About as many files as a search opens.
OPENED = 40

# Seconds in which a search ends even on a busy machine; on an idle one, in ten.
LIMIT = 180


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 16 + 8 images of two classes."""
    return draw_classes(tmp_path_factory.mktemp("killed_searches") / "photos", count=8, val=4)


def run(given: list[str], folder: Path, *, after: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, and kill it after some seconds; without them, it has to end by itself."""
    unbuffered = environment() | {"PYTHONUNBUFFERED": "1"}
    with (folder / "log").open("w") as log:  # no pipe, which workers of a dead process would hold
        process = subprocess.Popen([sys.executable, *given], cwd=folder, env=unbuffered, stdout=log, stderr=log)
        try:
            process.wait(LIMIT if after is None else after)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return subprocess.CompletedProcess(given, process.returncode, (folder / "log").read_text())


@cache
def undisturbed(data: Path, workers: bool) -> float:
    """Return the seconds that a search takes if nobody kills it."""
    folder = data.parent / f"undisturbed-{workers}"
    folder.mkdir()
    begun = time.monotonic()
    ended = run(["-m", "trainer", *search(data, workers)], folder)
    assert ended.returncode == 0, ended.stdout
    return time.monotonic() - begun


def search(data: Path, workers: bool) -> list[str]:
    return [*SEARCH, f"data.root={data}", *[WORKERS] * workers]


@pytest.mark.parametrize(("number", "how", "workers"), CASES)
def test_a_killed_search_is_resumed_to_its_end(
    number: int, how: str, workers: bool, data: Path, tmp_path: Path
) -> None:
    rng = np.random.default_rng([number, WAYS.index(how), workers])
    if how == "clock":
        after = rng.uniform(0.02, undisturbed(data, workers))
        killed = run(["-m", "trainer", *search(data, workers)], tmp_path, after=after)
    else:
        dying = ["-c", DYING, str(rng.integers(1, OPENED))]
        killed = run([*dying, *search(data, workers)], tmp_path)
    assert killed.returncode in (0, -signal.SIGKILL), killed.stdout
    begun = (tmp_path / "opt" / SWEEP_FILE).is_file()
    again = run(["-m", "trainer", *(["sweep", "resume", "opt"] if begun else search(data, workers))], tmp_path)
    assert again.returncode == 0, (killed.stdout, again.stdout)
    first = json.loads((tmp_path / "opt" / "search.json").read_text())["lines"][0]
    assert first.startswith("4 trials, "), (first, killed.stdout, again.stdout)
    assert first.endswith(" 0 failed."), (first, killed.stdout, again.stdout)
