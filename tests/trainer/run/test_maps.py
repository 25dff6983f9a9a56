"""Where the model of a run looks: drawn by predict --explain, and beside the mistakes in the report."""

import base64
import json
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from runs import small_config

from augment.support.errors import UserError
from trainer.predictions.predict import predict
from trainer.report.run_content import MISTAKES_FILE, REPORT_FILE
from trainer.run.best_model import load_best_model
from trainer.run.train import train
from trainer.tools.predict import main

pytestmark = pytest.mark.slow


def draw(folder: Path, count: int) -> Path:
    """Draw images that are alike but for a red square, above left or below right, which is their class."""
    rng = np.random.default_rng(len(str(folder)))
    for name, corner in (("above", slice(4, 24)), ("below", slice(40, 60))):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(60, 120, (64, 64, 3), dtype=np.uint8)
            pixels[corner, corner] = (250, 20, 20)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run one of whose validation images has the wrong label."""
    root = tmp_path_factory.mktemp("corners")
    draw(root / "train", 16)
    draw(root / "val", 3)
    (root / "val" / "above" / "0.png").rename(root / "val" / "below" / "wrong.png")
    given = [
        "model=timm",
        "model.name=test_convnext",
        "aug.size=64",
        "fit.epochs=5",
        "fit.optimizer=adamw",
        "fit.lr=0.002",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        train(small_config(root, *given, "fit.batch_size=8", "callbacks.plots=null"), root / "run")
    return root / "run"


def looked_at(drawn: Path, image: Path) -> str:
    """Return the corner in which an overlay of an enlarged image differs most from its image."""
    with Image.open(drawn) as one, Image.open(image) as other:
        assert one.size > (320, 350)
        large = np.asarray(other.resize((320, 320), Image.Resampling.NEAREST)).astype(int)
        change = np.abs(np.asarray(one)[:320] - large).sum(axis=2)
    row, column = divmod(int(change.argmax()), 320)
    return f"{'above' if row < 160 else 'below'} {'left' if column < 160 else 'right'}"


def test_predict_explains(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = run.parent / "val"
    assert main([str(run), str(images), "--explain", str(tmp_path), "--top", "1"]) == 0
    printed = capsys.readouterr().out
    assert "above " in printed
    assert f"explanations: {tmp_path}\n" in printed
    for name, corner in (("above/1", "above left"), ("above/2", "above left"), ("below/1", "below right")):
        assert looked_at(tmp_path / f"{name}.png", images / f"{name}.png") == corner
    assert len(list(tmp_path.rglob("*.png"))) == 6


def test_predict_needs_captum(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "captum", None)
    with pytest.raises(UserError, match=r"^--explain needs the package captum\. .*: pip install .*\[explain\]"):
        predict(load_best_model(run), [run.parent / "val"], explain=tmp_path / "maps")
    assert not (tmp_path / "maps").exists()


def test_the_report_shows_it_beside_the_mistakes(run: Path) -> None:
    (mistake,) = json.loads((run / MISTAKES_FILE).read_text())["images"]
    assert mistake["name"].endswith("wrong.png")
    with Image.open(BytesIO(base64.b64decode(mistake["map"].partition(",")[2]))) as shown:
        assert shown.size == (64, 64)
    page = (run / REPORT_FILE).read_text()
    assert mistake["map"] in page
    assert "a Grad-CAM map of the predicted class" in page
