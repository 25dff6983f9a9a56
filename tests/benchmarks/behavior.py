"""Record what a version of the project does, to compare another version with it to the bit.

    PYTHONPATH=OLD python tests/benchmarks/behavior.py record old.json --photos DIR
    PYTHONPATH=NEW python tests/benchmarks/behavior.py record new.json --photos DIR
    python tests/benchmarks/behavior.py compare old.json new.json

It uses what users use: the public face, the command line and the files of a run; times are left out. DIR has a folder
of photos for each class. Record both versions on one idle machine, as floating point depends on it.
"""

import argparse
import hashlib
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import augment
from augment.recipe.plan import build_plan

CLOCK = re.compile("second|time|waiting|first_step|folder")
SEARCH = ["hydra/sweeper=optuna", "hydra.sweeper.n_trials=20", "fit.lr=tag(log,interval(1e-3,1e-1))"]
SMALL = ["+aug=imagenette", "aug.size=32", "fit.batch_size=32"]


def recipes(photos: Path, device: str, _folder: Path) -> dict[str, Any]:
    """Hash plans, what `Transform` returns and two epochs of batches, for every file of conf/aug."""
    found: dict[str, Any] = {}
    for name in sorted(path.stem for path in Path(augment.__file__).resolve().parents[1].glob("conf/aug/*.yaml")):
        for overrides in ((), ("aug.fuse=false",)):
            recipe = augment.load_recipe(name, *overrides)
            for split in ("train", "val"):
                key = " ".join([name, split, *overrides])
                found[f"{key}: plan"] = build_plan(recipe.aug, split).digest
                found[f"{key}: transform"] = _hash(
                    _transformed(augment.Transform(recipe, split=split, device=device, classes=8))
                )
                for data in ({"data": "sample"}, {"data": "folder", "root": str(photos), "val_fraction": 0.25}):
                    loader = augment.make_loader(recipe, split=split, batch_size=24, device=device, seed=3, **data)
                    found[f"{key}: {data['data']}"] = [_hash(_tensors(loader)) for _epoch in range(2)]
    return found


def run(photos: Path, device: str, folder: Path) -> dict[str, Any]:
    """Train as the README says, then evaluate and predict."""
    _trainer(folder, "+aug=imagenette", f"fit.device={device}", "hydra.run.dir=r")
    evaluated = _trainer(folder, "evaluate", "r", "--tta", "flip", f"fit.device={device}")
    predicted = _trainer(folder, "predict", "r", str(photos), "--csv", "-", f"fit.device={device}")
    steps = _lines(folder / "r/steps.jsonl")
    return {"rows": _lines(folder / "r/metrics.jsonl"), "steps": steps, "evaluate": evaluated, "predict": predicted}


def sweep(_photos: Path, device: str, folder: Path) -> dict[str, Any]:
    """Run a sweep of three configurations with two seeds."""
    varied = ["aug.train.rotate.p=0,0.5,1", "seed=0,1", "fit.epochs=3", f"fit.device={device}"]
    _trainer(folder, "-m", *SMALL, *varied, "hydra.sweep.dir=s")
    return {"table": _rounded((folder / "s/sweep.md").read_text()), **_jobs(folder / "s")}


def search(_photos: Path, device: str, folder: Path) -> dict[str, Any]:
    """Search with 20 trials."""
    given = [*SMALL, *SEARCH, "fit.epochs=2", f"fit.device={device}", "hydra.sweep.dir=o"]
    _trainer(folder, "-m", *given)
    return {"table": _rounded((folder / "o/search.md").read_text()), **_jobs(folder / "o")}


def resume(_photos: Path, device: str, folder: Path) -> dict[str, Any]:
    """Stop at ten random moments, and resume."""
    given = [*SMALL, "fit.epochs=12", "fit.accumulate=2", f"fit.device={device}"]
    _trainer(folder, *given, "hydra.run.dir=whole")
    rng, found = random.Random(0), {"whole": _lines(folder / "whole/metrics.jsonl")}
    for number in range(10):
        name = f"r{number}"
        command = [sys.executable, "-m", "trainer", *given, f"hydra.run.dir={name}"]
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not (folder / name / "steps.jsonl").exists() and process.poll() is None:
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 3))
        process.send_signal(signal.SIGTERM)
        process.wait()
        _trainer(folder, f"fit.resume={name}", f"hydra.run.dir={name}")
        found[f"as if never stopped, {number}"] = _lines(folder / name / "metrics.jsonl") == found["whole"]
    return found


def _transformed(transform: Any) -> list[Any]:
    images = [np.random.default_rng(n).integers(0, 256, (90 + 5 * n, 160, 3), dtype=np.uint8) for n in range(8)]
    try:
        made = transform(images)
    except augment.UserError:  # it mixes, so it needs targets
        made = transform(images, np.arange(8))
    return [made] if isinstance(made, torch.Tensor) else list(made)


PARTS = {part.__name__: part for part in (recipes, run, sweep, search, resume)}


def _hash(tensors: Iterable[Any]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _tensors(loader: augment.Loader) -> Iterable[Any]:
    for batch in loader:
        yield from (*(batch.views or (batch.images,)), batch.targets, batch.indices)


def _trainer(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "trainer", *arguments]
    done = subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False)
    if done.returncode:
        print(done.stdout[-1000:], done.stderr[-3000:], file=sys.stderr)
    return done.stdout


def _lines(file: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [{key: value for key, value in row.items() if not CLOCK.search(key)} for row in rows]


def _jobs(folder: Path) -> dict[str, Any]:
    return {file.parent.name: _lines(file) for file in sorted(folder.glob("*/metrics.jsonl"))}


def _rounded(table: str) -> str:
    """Leave out the column of seconds."""
    rows = [line.split("|") for line in table.splitlines()]
    header = next((row for row in rows if any("seconds" in cell for cell in row)), [])
    at = [n for n, cell in enumerate(header) if "seconds" in cell]
    return "\n".join("|".join(c for n, c in enumerate(row) if n not in at or len(row) != len(header)) for row in rows)


def main() -> None:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    recording = commands.add_parser("record")
    recording.add_argument("file", type=Path)
    recording.add_argument("--photos", type=Path, required=True)
    recording.add_argument("--device", default="cpu")
    recording.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    comparing = commands.add_parser("compare")
    comparing.add_argument("files", type=Path, nargs=2)
    given = parser.parse_args()
    if given.command == "record":
        found = {}
        for part in given.parts:
            with tempfile.TemporaryDirectory() as folder:
                done = PARTS[part](given.photos.resolve(), given.device, Path(folder))
            found |= {f"{part}: {key}": value for key, value in done.items()}
            given.file.write_text(json.dumps(found, indent=1))
        return
    old, new = (json.loads(file.read_text()) for file in given.files)
    different = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    for key in different:
        print(key, old.get(key), new.get(key), sep="\n   ")
    print(f"{len({*old, *new})} recorded, {len(different)} different")
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
