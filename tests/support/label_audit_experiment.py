"""Compare the label audit with self-confidence and cleanlab on a folder with known wrong labels.

    python tests/support/label_audit_experiment.py FOLDER LIST.csv [--folds K] [key=value ...]

FOLDER has `train/<class>/*` and `val/<class>/*`, with true labels. LIST.csv has the columns path and label: the paths
of training images relative to FOLDER, and the labels to train on. `noisy_imagenette.csv` of fastai/imagenette on GitHub
also works, with `--column noisy_labels_25`. Further arguments are overrides of `python -m trainer`.

It prints AUROC, precision and recall at the true count, the estimated share and the cost in seconds. The rows are the
audit of one run, the probability that its best model gives to the label, and cleanlab with out-of-sample probabilities.
"""

import argparse
import csv
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from trainer.predictions.predict import predict
from trainer.run.best_model import load_best_model


def read_labels(folder: Path, file: Path, column: str) -> dict[str, str]:
    """Return the labels to train on by path."""
    with file.open(newline="", encoding="utf-8-sig") as stream:
        labels = {row["path"]: row[column] for row in csv.DictReader(stream) if row["path"].startswith("train/")}
    return {path: label for path, label in labels.items() if (folder / path).is_file()}


def train(run: Path, lists: dict[str, Path], overrides: list[str]) -> float:
    """Train a run, and return its seconds."""
    began = monotonic()
    data = [f"data.{name}={file}" for name, file in lists.items()]
    command = [sys.executable, "-m", "trainer", "data=filelist", *data, *overrides, f"hydra.run.dir={run}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return monotonic() - began


def probabilities(run: Path, files: list[Path], classes: list[str]) -> Any:
    """Return the probabilities of the classes from the best model of a run, (N, K)."""
    found = np.zeros((len(files), len(classes)))
    for row, prediction in zip(found, predict(load_best_model(run, data=False), files, top=len(classes)), strict=True):
        for name, share in prediction.classes:
            row[classes.index(name)] = share
    return found


def auroc(wrong: Any, suspicion: Any) -> float:
    """Return the probability that a wrong label is more suspicious than a right one."""
    from scipy.stats import rankdata

    ranks, count = rankdata(suspicion), int(wrong.sum())
    return float((ranks[wrong].sum() - count * (count + 1) / 2) / (count * (len(wrong) - count)))


def show(name: str, wrong: Any, suspicion: Any, share: float, seconds: float) -> None:
    """Print a row of the table. Precision and recall are equal at the true count."""
    count = int(wrong.sum())
    found = wrong[np.argsort(-suspicion, kind="stable")[:count]].mean()
    precise = f"{auroc(wrong, suspicion):.4f}  {found:.3f}                {share:.4f}"
    sys.stdout.write(f"{name:<28}{precise}  {seconds:8.1f}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("list", type=Path)
    parser.add_argument("--column", default="label")
    parser.add_argument("--folds", type=int, default=5, help="0: without cleanlab")
    options, overrides = parser.parse_known_args()
    folder = options.folder.resolve()
    labels = read_labels(folder, options.list, options.column)
    paths = sorted(labels)
    classes = sorted({path.split("/")[1] for path in paths})
    given = np.array([classes.index(labels[path]) for path in paths])
    wrong = np.array([labels[path] != path.split("/")[1] for path in paths])
    files = [folder / path for path in paths]
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)

        def write(name: str, chosen: list[int]) -> Path:
            with (work / f"{name}.csv").open("w", newline="") as stream:
                rows = [(files[index], classes[given[index]]) for index in chosen]
                csv.writer(stream).writerows([("path", "label"), *rows])
            return work / f"{name}.csv"

        val = sorted(folder.glob("val/*/*"))
        with (work / "val.csv").open("w", newline="") as stream:
            csv.writer(stream).writerows([("path", "label"), *((file, file.parent.name) for file in val)])
        everything = list(range(len(paths)))
        lists = {"train": write("train", everything), "val": work / "val.csv"}
        run = work / "run"
        with_audit = train(run, lists, overrides)
        without = train(work / "plain", lists, [*overrides, "callbacks.label_audit=null"])
        with (run / "labels.csv").open(newline="") as stream:
            rows = {row["path"]: row for row in csv.DictReader(stream)}
        score = np.array([float(rows[str(file)]["score"]) if str(file) in rows else 0.0 for file in files])
        probable = sum(float(row["probability"] or "nan") for row in rows.values()) / len(rows)
        suggested = np.array([rows[str(file)]["suggested_label"] == file.parent.name for file in files])
        sys.stdout.write(f"{len(paths):,} labels, true share {wrong.mean():.4f}\n")
        sys.stdout.write(f"{'':<28}AUROC   precision = recall   share      seconds\n")
        show("audit (beyond the run)", wrong, -score, probable, with_audit - without)
        began = monotonic()
        confidence = probabilities(run, files, classes)[np.arange(len(given)), given]
        show("self-confidence (best model)", wrong, -confidence, float("nan"), monotonic() - began)
        if options.folds:
            from cleanlab.filter import find_label_issues

            began, fold = monotonic(), np.random.default_rng(0).permutation(len(paths)) % options.folds
            outside = np.zeros((len(paths), len(classes)))
            for number in range(options.folds):
                held = np.flatnonzero(fold == number).tolist()
                parts = lists | {"train": write(f"train-{number}", np.flatnonzero(fold != number).tolist())}
                train(work / f"fold-{number}", parts, [*overrides, "callbacks.label_audit=null"])
                outside[held] = probabilities(work / f"fold-{number}", [files[index] for index in held], classes)
            issues = find_label_issues(given, outside / outside.sum(axis=1, keepdims=True))
            quality = outside[np.arange(len(given)), given]
            show(f"cleanlab, {options.folds} folds", wrong, -quality, float(issues.mean()), monotonic() - began)
            hits = issues & wrong
            sys.stdout.write(f"cleanlab's own issues: precision {hits.sum() / max(issues.sum(), 1):.3f}, "
                             f"recall {hits.sum() / max(wrong.sum(), 1):.3f}\n")  # fmt: skip
        sys.stdout.write(f"one run takes {without:.1f} s. Wrong labels whose suggestion is right: "
                          f"{suggested[wrong].mean():.3f}\n")  # fmt: skip


if __name__ == "__main__":
    main()
