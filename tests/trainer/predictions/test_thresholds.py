"""The thresholds of multi-label models: chosen in training, stored in best.pt, and used in predictions."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from photos import draw_photo
from PIL import Image
from rich.console import Console

from augment.cli.compose import compose
from augment.support.errors import UserError
from trainer import load_model
from trainer.loop.checkpoint import BEST, BestModel, load, save
from trainer.run.config.schema import parse_config
from trainer.run.train import train
from trainer.tasks.metric import OutputSamples
from trainer.tasks.registry import task_named
from trainer.tools.evaluate import main as evaluate
from trainer.tools.predict import main as predict

GIVEN = ["data=sample_multilabel", "aug=none", "aug.size=32", "fit.epochs=1", "fit.limit_batches=2", "fit.device=cpu"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work)
        patch.setattr("augment.data.generated.sample.SCENES", {"train": 64, "val": 64})
        train(parse_config(compose([*GIVEN, "fit.threads=1"])), work / "run", console=Console(quiet=True))
        Image.fromarray(draw_photo(50, 40, 1)).save(work / "photo.png")
    return work / "run"


@pytest.fixture
def run(finished: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(finished.parent)
    return finished


def with_thresholds(run: Path, folder: Path, thresholds: Any) -> Path:
    """Copy what predictions need, with other thresholds."""
    (folder / "config.yaml").write_bytes((run / "config.yaml").read_bytes())
    save(replace(load(run / BEST, BestModel), thresholds=thresholds), folder / BEST)
    return folder


def test_training_stores_what_its_validation_images_choose(run: Path) -> None:
    best = load(run / BEST, BestModel)
    assert best.samples is not None
    samples = OutputSamples(**best.samples)
    assert list(best.thresholds) == list(task_named("multilabel").choose_thresholds(samples, best.classes))
    assert len(best.thresholds) == len(best.classes)
    assert load_model(run, device="cpu").thresholds == tuple(best.thresholds)


def test_predictions_name_the_labels_above_their_thresholds(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = load_model(run, device="cpu").classes
    shares = dict(load_model(run, device="cpu").predict("photo.png", top=len(names))[0].classes)
    thresholds = tuple(shares[name] + (0.01 if number % 2 else -0.01) for number, name in enumerate(names))
    copied = with_thresholds(run, tmp_path, thresholds)
    model = load_model(copied, device="cpu")
    assert {name for name, _ in model.predict("photo.png")[0].classes} == set(names[::2])
    capsys.readouterr()
    assert predict([str(copied), "photo.png", "--json", "-", "fit.device=cpu"]) == 0
    found = json.loads(capsys.readouterr().out)[0]["classes"]
    assert {label["class"] for label in found} == set(names[::2])
    assert len(model.predict("photo.png", threshold=0.0001)[0].classes) == len(names)
    assert len(model.predict("photo.png", top=3)[0].classes) == 3


def test_a_run_without_thresholds_uses_the_default(run: Path, tmp_path: Path) -> None:
    old = load_model(with_thresholds(run, tmp_path, ()), device="cpu")
    assert old.thresholds == ()
    assert old.predict("photo.png") == old.predict("photo.png", threshold=0.5)


def test_evaluate_scores_with_the_thresholds_and_with_one_half(run: Path, tmp_path: Path) -> None:
    count = len(load_model(run, device="cpu").classes)
    copied = with_thresholds(run, tmp_path, (0.5,) * count)
    assert evaluate([str(copied), "fit.device=cpu"]) == 0
    scores = json.loads((copied / "evaluation.json").read_text())
    assert scores["run_f1"] == pytest.approx(scores["val_f1"])
    assert scores["run_recall_macro"] == pytest.approx(scores["val_recall_macro"])
    assert all(label["run"]["threshold"] == 0.5 for label in scores["per_class"].values())


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, 1.5, "0.5", None])
def test_thresholds_of_strangers_are_checked(run: Path, tmp_path: Path, value: Any) -> None:
    count = len(load_model(run, device="cpu").classes)
    for thresholds in ((value,) * count, (0.5,) * (count + 1), 0.5):
        copied = with_thresholds(run, tmp_path, thresholds)
        with pytest.raises(UserError, match=BEST):
            load_model(copied, device="cpu")
