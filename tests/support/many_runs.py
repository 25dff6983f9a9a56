"""Run folders without a training."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import yaml

# Markup, a script and the end of one, as a name.
HOSTILE = """</script><img src=x onerror="document.title='run'"><b>&amp;'\u2028"""


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
    """
    folder.mkdir(parents=True)
    if order is not None:
        job = {"id": folder.name, "order": order, "overrides": overrides, "varied": []}
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
