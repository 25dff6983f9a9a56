"""Folders of runs as fits leave them, for the tests of sweeps."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

# Part of what a run's config.yaml holds.
CONFIG: dict[str, Any] = {
    "data": {"source": "folder", "root": "/photos", "fold": None, "folds": None, "fraction": 1.0},
    "model": {"kind": "cnn"},
    "aug": {"size": 64, "train": {"crop": {"scale": 0.5}, "rotate": {"p": 0.1, "angle": 10}}, "val": {}},
    "fit": {"lr": 0.1, "resume": None, "limit_batches": None},
    "callbacks": {"report": {}},
    "seed": 0,
}


def write_run(folder: Path, score: float | None, settings: Mapping[str, Any] | None = None, **summary: Any) -> Path:
    """Write the folder of a run whose last epoch has a score; its best one is better by .02.

    Args:
        folder: the folder.
        score: val_accuracy of the last epoch; None: no epoch ended.
        settings: settings by key path; "~" in place of a value removes one.
        summary: values of summary.json.
    """
    folder.mkdir(parents=True)
    config = OmegaConf.create(json.loads(json.dumps(CONFIG)))
    for key, value in (settings or {}).items():
        section, _, name = key.rpartition(".")
        if value == "~":
            del OmegaConf.select(config, section)[name]
        else:
            OmegaConf.update(config, key, value)
    OmegaConf.save(config, folder / "config.yaml")
    rows = [] if score is None else [{"epoch": 0, "val_accuracy": score + 0.02}, {"epoch": 1, "val_accuracy": score}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ends = {"best": rows[0], "last": rows[1]} if rows else {"best": {}, "last": {}}
    values = {"status": "finished", "folder": str(folder), "epochs": 2, "seconds": 1.0, "error": "", "stopped": ""}
    (folder / "summary.json").write_text(json.dumps(values | ends | summary))
    return folder
