"""Runs that are killed at random moments by signals of six kinds, and resumed to the same bits."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import needs_gpu
from omegaconf import OmegaConf
from runs import draw_classes, rows_of

from augment.cli.parser import INTERRUPTED
from trainer.loop.checkpoint import LAST, FitState, load
from trainer.run.config.schema import CONFIG_FILE
from trainer.run.folder.summary import SUMMARY_FILE

pytestmark = pytest.mark.faults

ROOT = Path(__file__).parents[2]
SMALL = ["aug.size=16", "fit.batch_size=4", "fit.epochs=4", "fit.device=cpu", "fit.threads=1", "callbacks.plots=null"]
FOLDER = ["+aug=imagenette", "data=folder", "data.root=DATA"]
OWN = """
from pathlib import Path

import numpy as np
from PIL import Image


class Photos:
    def __init__(self, split):
        self.files = sorted(Path(split).glob("*/*.png"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return np.asarray(Image.open(self.files[index])), self.files[index].parent.name
"""

# What runs, and whether it is a sweep.
SCENARIOS: dict[str, list[str]] = {
    "epochs": [*FOLDER, *SMALL],
    "saving": [*FOLDER, *SMALL, "callbacks.checkpoint.every_batches=1", "callbacks.report=null"],
    "validation": [*FOLDER, *SMALL, "data.root=LARGE_VAL", "callbacks.checkpoint.every_batches=3"],
    "staged": [*FOLDER, *SMALL, "fit.stages={small: {size: 12, epochs: 2}, large: {epochs: 2}}"],
    "own": [
        "+aug=imagenette",
        *SMALL,
        "data=own",
        "plugins=[photos_of_mine]",
        "data.train=photos_of_mine.Photos",
        "data.train_options.split=DATA/train",
        "data.val=photos_of_mine.Photos",
        "data.val_options.split=DATA/val",
        "data.workers=2",
    ],
    "sweep": ["-m", *FOLDER, *SMALL, "fit.lr=0.01,0.02"],
    "workers": ["-m", *FOLDER, *SMALL, "fit.lr=0.01,0.02,0.03", "hydra.launcher.n_jobs=2"],
}
ON_A_GPU = [*FOLDER, *SMALL, "fit.device=cuda", "fit.deterministic=true", "callbacks.checkpoint.every_batches=3"]
# SIGKILL cannot be handled; "twice" sends a second signal at once.
SIGNALS = ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGKILL", "twice"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DATA with 24 + 8 images of two classes, LARGE_VAL with more to validate on, and the module of `own`."""
    folder = tmp_path_factory.mktemp("kills")
    (folder / "photos_of_mine.py").write_text(OWN)
    draw_classes(folder / "DATA", count=12, val=4)
    draw_classes(folder / "LARGE_VAL", count=4, val=48)
    return folder


def command(name: str, data: Path, *more: str) -> list[str]:
    """Return the command of a scenario."""
    folders = {"DATA": f"{data}/DATA", "LARGE_VAL": f"{data}/LARGE_VAL"}
    tokens = ON_A_GPU if name == "gpu" else SCENARIOS[name]
    arguments = [re.sub("LARGE_VAL|DATA", lambda found: folders[found.group()], token) for token in tokens]
    return [sys.executable, "-m", "trainer", *arguments, *more]


def run(
    given: list[str], folder: Path, data: Path, *, send: str = "", after: float = 0.0
) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run a command, send a signal after some seconds, and return how it ended and how long it took."""
    places = [str(ROOT), str(data), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places), "COLUMNS": "200"}
    begun = time.monotonic()
    process = subprocess.Popen(
        given, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if send:
        try:
            process.wait(after)
        except subprocess.TimeoutExpired:
            for number in ["SIGTERM", "SIGTERM"] if send == "twice" else [send]:
                process.send_signal(getattr(signal, number))
    output = process.communicate(timeout=300)[0]
    return subprocess.CompletedProcess(given, process.returncode, output), time.monotonic() - begun


def results(folder: Path) -> dict[float, tuple[list[dict[str, Any]], dict[str, torch.Tensor]]]:
    """Return the rows and the weights of the last finished run of each learning rate below a folder."""
    found = {}
    for summary in sorted(folder.glob("outputs/**/" + SUMMARY_FILE), key=lambda file: file.stat().st_mtime_ns):
        if json.loads(summary.read_text())["status"] == "finished":
            rows = rows_of(summary.parent)
            lr = OmegaConf.load(summary.parent / CONFIG_FILE).fit.lr
            found[lr] = rows, load(summary.parent / LAST, FitState).model
    return found


@cache
def reference(name: str, data: Path) -> tuple[dict[str, Any], float]:
    """Return the results of an uninterrupted run, and how long it took."""
    folder = data / f"reference-{name}"
    folder.mkdir()
    ended, seconds = run(command(name, data), folder, data)
    assert ended.returncode == 0, ended.stdout
    return results(folder), seconds


CASES = [(number, name) for number in range(10) for name in SCENARIOS]


@pytest.mark.parametrize(("number", "name"), CASES)
def test_a_killed_run_is_resumed_to_the_same_bits(number: int, name: str, data: Path, tmp_path: Path) -> None:
    check_kill(number, name, data, tmp_path)


@needs_gpu
@pytest.mark.parametrize("number", range(5))
def test_a_killed_run_on_a_gpu_is_resumed_to_the_same_bits(number: int, data: Path, tmp_path: Path) -> None:
    check_kill(number, "gpu", data, tmp_path)


def check_kill(number: int, name: str, data: Path, tmp_path: Path) -> None:
    """Kill a run of a scenario at a moment that the number decides, resume it, and compare."""
    expected, seconds = reference(name, data)
    position = [*SCENARIOS, "gpu"].index(name)
    send = SIGNALS[(number + position) % len(SIGNALS)]
    after = float(np.random.default_rng([number, position]).uniform(0.02, seconds))
    ended, _ = run(command(name, data), tmp_path, data, send=send, after=after)
    assert "Traceback" not in ended.stdout, ended.stdout
    begun = [file for file in tmp_path.glob(f"outputs/**/{CONFIG_FILE}") if file.parent.name != ".hydra"]
    allowed = {0, INTERRUPTED}
    if send == "SIGKILL":
        allowed = {0, -signal.SIGKILL}
    elif not begun:  # Python itself may still be starting
        allowed |= {-signal.SIGTERM, -signal.SIGHUP, -signal.SIGUSR1, -signal.SIGINT}
    assert ended.returncode in allowed, (send, after, ended)
    for folder in {file.parent for file in begun}:
        summary = folder / SUMMARY_FILE
        status = json.loads(summary.read_text())["status"] if summary.is_file() else "killed"
        assert status in {"finished", "interrupted", *(["killed", "running"] if send in ("SIGKILL", "twice") else [])}
    sweeps = list(tmp_path.glob("outputs/*/*-sweep/sweep.yaml"))
    if sweeps:
        resumed = [sys.executable, "-m", "trainer", "sweep", "resume", str(sweeps[0].parent)]
    else:
        resumed = command(name, data, *(["fit.resume=auto"] if name not in ("sweep", "workers") else []))
    again, _ = run(resumed, tmp_path, data)
    assert again.returncode == 0, (send, after, again.stdout)
    found = results(tmp_path)
    assert set(found) == set(expected)
    for lr, (rows, weights) in found.items():
        assert rows == expected[lr][0], (send, after)
        assert all(torch.equal(weight, expected[lr][1][key]) for key, weight in weights.items()), (send, after)
