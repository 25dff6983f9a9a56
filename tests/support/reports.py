"""Folders and records of runs, for the tests of reports."""

import json
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from PIL import Image

from augment.support.files import json_line, write_atomically
from trainer.callbacks.recorder import METRICS_FILE
from trainer.loop.checkpoint import BEST, BestModel, save
from trainer.report.findings import findings
from trainer.report.run_content import RunRecord
from trainer.run.config.schema import CONFIG_FILE, PLAN_FILE, parse_config
from trainer.run.folder.facts import ENVIRONMENT_FILE, FACTS_FILE, Facts
from trainer.run.folder.reader import RunFolder
from trainer.run.folder.summary import SUMMARY_FILE, Summary
from trainer.tasks.classify import ClassSamples
from trainer.tasks.metric import MetricsRow
from trainer.tasks.registry import task_named

NAMES = ("<script>alert(1)</script>", 'bee "&" co')


def ended(status: str, seconds: float = 1.0, error: str = "", stopped: str = "") -> Summary:
    return Summary(status, Path("x"), seconds=seconds, error=error, stopped=stopped)


DONE = ended("finished", 75.0)


class Page(HTMLParser):
    """The tags, what they refer to, and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.sections: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        self.sections += [values["id"] or ""] if tag == "section" and "id" in values else []
        self.references += [values[key] or "" for key in ("src", "href", "srcset", "data", "action") if key in values]

    def handle_data(self, data: str) -> None:
        self.text += data


def row(epoch: int, train: float, val: float, accuracy: float = 0.5, **more: float) -> MetricsRow:
    rest = {"train_accuracy": 0.5, "lr": 0.1, "seconds": 1.0, "images_per_second": 100.0}
    return {"epoch": epoch, "train_loss": train, "val_loss": val, "val_accuracy": accuracy, **rest} | more


def samples(index: list[int], target: list[int], prediction: list[int], confidence: list[float]) -> dict[str, Any]:
    return {
        "index": torch.tensor(index),
        "target": torch.tensor(target),
        "prediction": torch.tensor(prediction),
        "confidence": torch.tensor(confidence),
        "target_confidence": torch.zeros(len(index)),
    }


def counted(confusion: Sequence[Sequence[int]]) -> ClassSamples:
    """Samples with these counts; rows are targets, columns predictions."""
    pairs = [(t, p) for t, row in enumerate(confusion) for p, count in enumerate(row) for _ in range(count)]
    targets, predictions = ([pair[k] for pair in pairs] for k in (0, 1))
    return ClassSamples(**samples(list(range(len(pairs))), targets, predictions, [0.5] * len(pairs)))


@pytest.fixture(name="run")
def folder_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's folder as a fit leaves it, with images; of six, class 0 has one wrong, class 1 two."""
    monkeypatch.chdir(tmp_path)  # below which the check of the images is kept
    for split in ("train", "val"):
        for label, name in enumerate(NAMES):
            folder = tmp_path / "data" / split / name.replace("/", "_")
            folder.mkdir(parents=True)
            for i in range(3):
                Image.new("RGB", (300, 200), (80 * label, 60 * i, 90)).save(folder / f"{i}.jpg")
    folder = tmp_path / "runs" / "one"
    (folder / ".hydra").mkdir(parents=True)
    config = parse_config(
        {"data": {"source": "folder", "root": str(tmp_path / "data")}, "model": {"kind": "cnn"}}
        | {"fit": {"epochs": 4, "batch_size": 2}, "callbacks": {"checkpoint": {}, "report": {"mistakes": 2}}}
    )
    (folder / CONFIG_FILE).write_text(OmegaConf.to_yaml(dict(config.resolved)))
    places = [i / 400 for i in range(401)]
    facts = Facts(
        task="classify",
        classes=(NAMES[0].replace("/", "_"), NAMES[1]),
        images=(6, 6, 6),
        source="folder",
        model="cnn",
        parameters=1234,
        device="CPU",
        batches=(3, 3, 3, 3),
        schedules={name: tuple(map(schedule, places)) for name, schedule in config.fit.schedules().items()},
    )
    write_atomically(folder / FACTS_FILE, json_line(vars(facts)))
    (folder / PLAN_FILE).write_text("train: 128 x 128 px <b>\n")
    environment = {"git": {"revision": "abc123", "modified": True}, "python": "3.11.7"}
    packages = {"packages": {"torch": "2.15.0", "wandb": None}, "gpus": []}
    (folder / ENVIRONMENT_FILE).write_text(json.dumps(environment | packages))
    rows = [row(i, 2.0 - i / 4, 2.0 - i / 4, accuracy) for i, accuracy in enumerate((0.3, 0.35, 0.4, 0.5))]
    (folder / METRICS_FILE).write_text("".join(json.dumps(r) + "\n" for r in rows))
    ended = {"status": "finished", "seconds": 75.0, "best": rows[3], "error": "", "epochs": 4, "folder": str(folder)}
    (folder / SUMMARY_FILE).write_text(json.dumps(ended))
    (folder / ".hydra" / "overrides.yaml").write_text("- data=folder\n- ++data.root=/a b\n- ++fit.epochs=4\n")
    Image.new("RGB", (64, 64)).save(folder / "batch.png")
    # As files are sorted, "<script..." comes before "bee"; "_" for the slash of its name.
    single = samples([0, 1, 2, 3, 4, 5], [0, 0, 0, 1, 1, 1], [0, 1, 0, 0, 0, 1], [0.9, 0.6, 0.5, 0.7, 0.8, 0.99])
    best = BestModel(
        model={}, row=rows[3], samples=single, classes=(NAMES[0].replace("/", "_"), NAMES[1]), task="classify"
    )
    save(best, folder / BEST)
    return folder


def record(
    rows: list[MetricsRow],
    folder: Path = Path("x"),
    ending: Summary = DONE,
    *,
    samples: Any = None,
    classes: tuple[str, ...] = (),
    task: str = "classify",
    best: MetricsRow | None = None,
    **facts: Any,
) -> RunRecord:
    """A record in memory, of a run with some facts."""
    run = RunFolder(folder)
    run.facts = Facts(task=task, **facts)
    best = best or max(rows, key=lambda r: r.get("val_accuracy", -1), default={})
    run.summary, run.rows, run.steps = ending, rows, []
    made = RunRecord(run, task_named(task).display(classes), best)
    if samples is not None:
        kept = BestModel(model={}, row={"epoch": 0} | best, samples=vars(samples), classes=classes, task=task)
        made.add_best(lambda: kept)
        made.best = best
    return made


def said(record: RunRecord) -> str:
    return " | ".join(("! " if finding.warning else "") + finding.text for finding in findings(record))
