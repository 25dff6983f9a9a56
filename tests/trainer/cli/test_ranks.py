"""Several processes that train one model: the same as one process with the same batches, and exact when resumed."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import assert_same
from PIL import Image

from trainer.callbacks.recorder import TIMES, read_metrics
from trainer.loop.checkpoint import FitState, load

SUPPORT = Path(__file__).parents[2] / "support"
ROOT = Path(__file__).parents[3]

# 13 images: with 3 ranks and batches of 3, two of them have nothing left in the last batch.
COUNTS = {"train": {"ant": 7, "bee": 4, "cat": 2}, "val": {"ant": 3, "bee": 2, "cat": 2}}
WHOLE = ["fit.batch_size=18", "fit.epochs=3", "fit.lr=0.3"]  # one batch an epoch, with the same samples on any ranks
PARTS = ["fit.batch_size=3", "fit.epochs=2", "fit.lr=0.1", "model.dropout=1", "aug.train.flip.p=0.5"]
STOP = ["++callbacks.trouble.rank=2", "++callbacks.trouble.step=6"]

FITS: Mapping[str, Sequence[str]] = {
    "plain": WHOLE,
    "weights": [*WHOLE, "data.balance=weights", "fit.label_smoothing=0.1"],
    "guarded": [*WHOLE, "fit.skip_nonfinite=3", "++callbacks.ema.decay=0.5", "++callbacks.grad_clip.max_norm=0.1"],
    "muon": [*WHOLE, "fit.optimizer=muon", "fit.precision=bf16"],
    "straight": PARTS,
    "stopped": [*PARTS, *STOP],
    "resumed": [*PARTS, *STOP, "fit.resume=stopped"],
}
ALIKE = ("plain", "weights", "guarded", "muon")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ranks") / "images"
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


def environment(rank: int = 0, size: int = 1, port: int = 0) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(SUPPORT)])
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    given = {name: str(value) for name, value in ranks.items()} if size > 1 else {}
    return os.environ | given | {"PYTHONPATH": path, "MASTER_ADDR": "localhost", "OMP_NUM_THREADS": "1"}


def train_all(size: int, fits: Sequence[str], images: Path, folder: Path) -> None:
    """Let some ranks train fits, in folders of their names."""
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    given = [{"overrides": [*settings_of(images), *FITS[name]], "folder": name} for name in fits]
    lines = "".join(json.dumps(fit) + "\n" for fit in given)
    with ThreadPoolExecutor(size) as pool:
        ended = pool.map(partial(rank_program, size=size, port=port, lines=lines, folder=folder), range(size))
    ended = [*ended]
    assert not any(found.returncode for found in ended), "\n".join(found.stdout for found in ended)


def rank_program(rank: int, *, size: int, port: int, lines: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(SUPPORT / "rank_program.py")]
    given = {"env": environment(rank, size, port), "input": lines, "cwd": folder}
    return subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300, **given)


@pytest.fixture(scope="module")
def runs(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The folder of the fits that each number of ranks trained."""
    root = tmp_path_factory.mktemp("ranks")
    for size, fits in {1: ALIKE, 3: [*FITS]}.items():
        train_all(size, fits, images, root / str(size))
    return {size: root / str(size) for size in (1, 3)}


def state_of(run: Path) -> FitState:
    return load(run / "last.pt", FitState)


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [{name: v for name, v in row.items() if name not in TIMES} for row in read_metrics(run)]


@pytest.mark.slow
@pytest.mark.parametrize("fit", ALIKE)
def test_ranks_train_as_one_process_does(fit: str, runs: dict[int, Path]) -> None:
    one, three = state_of(runs[1] / fit), state_of(runs[3] / fit)
    assert three.position == one.position
    assert (one.ranks, three.ranks) == (1, 3)
    close = {"rtol": 2e-2, "atol": 2e-3} if fit == "muon" else {"rtol": 1e-4, "atol": 1e-6}  # in bfloat16
    for name, value in one.model.items():
        torch.testing.assert_close(three.model[name], value, **close)
    for mine, theirs in zip(rows_of(runs[1] / fit), rows_of(runs[3] / fit), strict=True):
        assert theirs == pytest.approx(mine, rel=1e-2 if fit == "muon" else 1e-4)


@pytest.mark.slow
def test_ranks_stop_together_and_resume_exactly(runs: dict[int, Path]) -> None:
    stopped, resumed, straight = (runs[3] / name for name in ("stopped", "resumed", "straight"))
    assert json.loads((stopped / "summary.json").read_text())["status"] == "interrupted"
    # Rank 2 asked after step 6, the second of the second epoch; all heard it one step later.
    assert state_of(stopped).position == (1, 3)
    assert rows_of(resumed) == rows_of(straight)
    assert_same(
        vars(state_of(resumed)) | {"callbacks": {}, "others": []},
        vars(state_of(straight)) | {"callbacks": {}, "others": []},
    )


@pytest.mark.slow
def test_each_sample_counts_once(runs: dict[int, Path]) -> None:
    best = torch.load(runs[3] / "straight" / "best.pt", weights_only=True)
    assert best["samples"]["index"].tolist() == list(range(7))
    (_, row) = read_metrics(runs[3] / "straight")
    right = (best["samples"]["prediction"] == best["samples"]["target"]).double().mean().item()
    assert best["row"]["val_accuracy"] == pytest.approx(right)
    assert row["train_accuracy"] * 13 == pytest.approx(round(row["train_accuracy"] * 13))
