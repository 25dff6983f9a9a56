"""Run folders without a training: a few for tests, and many from a real one with other settings and curves.

`python tests/support/many_runs.py RUN_FOLDER OUT` writes the 500 whose dashboard docs/sweeps.md measures.
"""

import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml

# Markup, a script and the end of one, as a name.
HOSTILE = """</script><img src=x onerror="document.title='run'"><b>&amp;'\u2028"""

COPIED = ("environment.json", "run.json", "batch.png", "confusion.png", "mistakes.json", "report.html", "plan.txt")


def write_run(
    folder: Path,
    config: dict[str, Any],
    overrides: list[str],
    scores: list[float],
    *,
    planned: int,
    status: str = "finished",
    error: str = "",
    stopped: str = "",
    order: int | None = None,
    part: str = "",
    template: Path | None = None,
) -> None:
    """Write a run folder as a run does.

    Args:
        folder: the folder.
        config: the resolved configuration.
        overrides: what it was started with.
        scores: val_accuracy of each epoch; NaN stays one.
        planned: number of planned epochs.
        status: finished, failed, interrupted or planned.
        error: the error of a failed run.
        stopped: why it ended early.
        order: its position in a sweep, for job.json; None: it is no job.
        part: trial or finalist of a search; empty: none.
        template: a real run, whose other files are copied.
    """
    folder.mkdir(parents=True)
    if order is not None:
        job = {"id": folder.name, "order": order, "overrides": overrides, "varied": overrides if template else []}
        job |= {"trial": order if part == "trial" else None, "finalist": part == "finalist"}
        (folder / "job.json").write_text(json.dumps(job))
    if status == "planned":
        return
    (folder / ".hydra").mkdir()
    (folder / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(overrides))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    rows = [
        {
            "epoch": i,
            "train_loss": 2.3 - 1.9 * (0 if math.isnan(score) else score),
            "train_accuracy": min(1.0, 0.1 + score),
            "lr": 0.01 * (1 - i / planned),
            "seconds": 1.5,
            "images_per_second": 1000.0 + i,
            "waiting": 0.1,
            "val_loss": 2.3 - 1.7 * score,
            "val_accuracy": score,
        }
        for i, score in enumerate(scores)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text)
    known = [row for row in rows if not math.isnan(row["val_accuracy"])]
    best = max(known, key=lambda row: row["val_accuracy"], default={})
    summary = {"status": status, "folder": str(folder), "epochs": len(rows), "best": best, "seconds": 1.5 * len(rows)}
    summary |= {"last": rows[-1] if rows else {}, "error": error, "stopped": stopped, "planned": planned}
    summary |= config.get("run", {})
    (folder / "summary.json").write_text(json.dumps(summary | {"monitor": "val_accuracy"}))
    for name in COPIED if template else ():
        if template is not None and (template / name).exists():
            shutil.copy(template / name, folder / name)


def curve(rng: np.random.Generator, epochs: int, end: float) -> list[float]:
    """Return a noisy curve of accuracies that rises to about a value."""
    at = np.arange(1, epochs + 1)
    values = 0.1 + (end - 0.1) * (1 - np.exp(-3 * at / epochs)) / (1 - np.exp(-3)) + rng.normal(0, 0.012, epochs)
    return [round(float(value), 4) for value in np.clip(values, 0, 1)]


def config_of(lr: float, p: float, seed: int, **more: Any) -> dict[str, Any]:
    """Return a small configuration."""
    return {"fit": {"lr": lr}, "aug": {"train": {"rotate": {"op": "rotate", "p": p}}}, "seed": seed} | more


def write_few(folder: Path) -> None:
    """Write a sweep over lr, rotate.p and seed, with one failed, pruned and planned job each, and a hostile run.

    The score is .5 + 5 lr + .1 p + .004 seed.
    """
    rng = np.random.default_rng(0)
    jobs = [(lr, p, seed) for lr in (0.01, 0.02, 0.04) for p in (0.0, 0.2) for seed in (0, 1)]
    ends: dict[int, Any] = {3: {"status": "failed", "error": f"ValueError: {HOSTILE}"}, 4: {"stopped": "pruned"}}
    for i, (lr, p, seed) in enumerate(jobs):
        given = [f"fit.lr={lr}", f"aug.train.rotate.p={p}", f"seed={seed}"]
        end = round(0.5 + 5 * lr + 0.1 * p + 0.004 * seed, 4)
        scores, job = [*curve(rng, 4, end), end], folder / "sweep" / f"{i:010x}"
        write_run(job, config_of(lr, p, seed), given, scores, planned=5, order=i, **ends.get(i, {}))
    write_run(folder / "sweep" / "00000000ff", {}, ["fit.lr=0.08"], [], planned=5, order=99, status="planned")
    named = config_of(0.02, 0.2, 0, run={"name": HOSTILE, "tags": [HOSTILE]})
    single = folder / "<img src=x onerror=document.title=1>"
    write_run(single, named, [f"x={HOSTILE}"], [0.1, math.nan, 0.3], planned=3)


def write_many(folder: Path, template: Path, count: int = 500, epochs: int = 30) -> None:
    """Write run folders: a grid over seeds, a search with pruned and failed trials, and single runs.

    Args:
        folder: where to.
        template: a real run.
        count: how many, about: 3 in 10 of a grid, 6 of a search, 1 alone.
        epochs: epochs of each curve.
    """
    rng = np.random.default_rng(0)
    real = yaml.safe_load((template / "config.yaml").read_text())

    def settings(lr: float, p: float, magnitude: float, seed: int) -> dict[str, Any]:
        config: dict[str, Any] = json.loads(json.dumps(real))
        config["fit"] |= {"lr": lr, "epochs": epochs}
        config["seed"] = seed
        config["aug"]["train"]["rotate"]["p"] = p
        config["aug"]["train"]["warp"]["magnitude_range"] = [-magnitude, magnitude]
        return config

    def score(lr: float, p: float, magnitude: float) -> float:
        end = 0.84 - 0.16 * math.log10(lr / 0.02) ** 2 - 0.6 * (p - 0.25) ** 2 - 0.3 * abs(magnitude - 0.1)
        return float(np.clip(end + rng.normal(0, 0.02), 0.1, 0.98))

    grid = folder / "2026-07-28" / "grid"
    for i in range(count * 3 // 10):
        lr, p, seed = (0.005, 0.01, 0.02)[i // 5 % 3], (0.0, 0.075, 0.2, 0.4)[i // 15 % 4], i % 5 + 5 * (i // 60)
        given = ["aug=imagenette", f"fit.lr={lr}", f"aug.train.rotate.p={p}", f"seed={seed}"]
        values = curve(rng, epochs, score(lr, p, 0.1))
        write_run(grid / str(i), settings(lr, p, 0.1, seed), given, values, planned=epochs, order=i, template=template)
    search = folder / "2026-07-29" / "search"
    for i in range(count * 6 // 10):
        lr, p, magnitude = float(10 ** rng.uniform(-3, -1)), float(rng.uniform(0, 0.6)), float(rng.uniform(0, 0.3))
        lr, p, magnitude = float(f"{lr:.4g}"), round(p, 4), round(magnitude, 4)
        given = [f"fit.lr={lr}", f"aug.train.rotate.p={p}", f"aug.train.warp.magnitude={magnitude}", "seed=0"]
        end = score(lr, p, magnitude)
        values, more = curve(rng, epochs, end), {}
        if i % 23 == 22:
            values, more = values[:2], {"status": "failed", "error": "RuntimeError: CUDA error: out of memory"}
        elif i % 37 == 36:
            values, more = values[:9], {"status": "interrupted"}
        elif end < 0.7:
            values, more = values[:5], {"stopped": "pruned: in the lower half after 5 epochs"}
        elif i >= count * 6 // 10 - 3:
            values, more = [], {"status": "planned"}
        left = count * 6 // 10 - 3 - i
        more |= {"part": "trial" if left > 20 else "finalist" if left > 10 else ""}
        config = settings(lr, p, magnitude, 0)
        write_run(search / f"{i:010x}", config, given, values, planned=epochs, order=i, template=template, **more)
    for i in range(count // 10):
        config = settings(0.02, 0.25, 0.1, i)
        config["model"] = {"kind": ("cnn", "xresnet18", "xresnet34")[i % 3]}
        given = [f"model={config['model']['kind']}", f"seed={i}"]
        single = folder / "2026-07-30" / f"12-00-{i:02}-abc123"
        write_run(single, config, given, curve(rng, epochs, score(0.02, 0.25, 0.1)), planned=epochs, template=template)


if __name__ == "__main__":
    write_many(Path(sys.argv[2]), Path(sys.argv[1]))
