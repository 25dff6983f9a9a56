"""Fits of several ranks on a few tiny images."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from trainer.loop.checkpoint import FitState, load

SUPPORT = Path(__file__).parent
ROOT = Path(__file__).parents[2]

# 13 images: with 3 ranks and batches of 3, two of them have nothing left in the last batch.
COUNTS = {"train": {"ant": 7, "bee": 4, "cat": 2}, "val": {"ant": 3, "bee": 2, "cat": 2}}
MEASURED = "fit.metrics=[brier,f1,balanced_accuracy]"
WHOLE = ["fit.batch_size=18", "fit.epochs=2", "fit.lr=0.3", MEASURED]  # one batch an epoch, alike on any ranks
PARTS = [
    "fit.batch_size=3",
    "fit.epochs=2",
    "fit.lr=0.1",
    "model.dropout=1",
    "aug.train.flip.p=0.5",
    "fit.accumulate=2",
    MEASURED,
    "callbacks.checkpoint.every_minutes=0.0001",
]
STOP = ["++callbacks.trouble.when=stop/2/6"]


def draw_images(root: Path) -> Path:
    """Draw the images, and return their folder."""
    draw = np.random.default_rng(0)
    for split, counts in COUNTS.items():
        for name, count in counts.items():
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(draw.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / f"{number}.png")
    return root


def settings_of(images: Path) -> list[str]:
    return [
        *("data=folder", f"data.root={images}", "model=cnn", "model.kind=flat", "plugins=[rank_plugin]"),
        *("aug.size=8", "fit.device=cpu", "fit.threads=1", "callbacks.plots=null", "callbacks.report=null"),
    ]


def variables(rank: int, size: int, port: int) -> dict[str, str]:
    """Return what torchrun sets for a rank; nothing for one process."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    return {name: str(value) for name, value in ranks.items()} if size > 1 else {}


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(SUPPORT)])
    return os.environ | {"PYTHONPATH": path, "MASTER_ADDR": "localhost", "OMP_NUM_THREADS": "1"}


def state_of(run: Path) -> FitState:
    return load(run / "last.pt", FitState)


def command(
    folder: Path, images: Path, *overrides: str, trouble: str = "never", launcher: Sequence[str] = ()
) -> "subprocess.CompletedProcess[str]":
    """Train with two ranks from the command line, or with a launcher, a module and its arguments."""
    given = [*settings_of(images), *PARTS, "fit.batch_size=4", "fit.gpus=2", "++callbacks.trouble={}", *overrides]
    return subprocess.run(
        [sys.executable, "-m", *launcher, "trainer", *given, "callbacks.checkpoint.every_batches=2"],
        cwd=folder, env=environment() | {"TROUBLE": trouble}, text=True, capture_output=True, timeout=120,
    )  # fmt: skip
