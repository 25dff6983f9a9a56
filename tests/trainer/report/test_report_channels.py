"""The figures and pages of a run on images of four 16-bit channels."""

import re
from base64 import b64decode
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rasters import write_rasters

from augment.cli.compose import compose
from trainer.run.config.schema import parse_config
from trainer.run.train import train
from trainer.stress.command import PAGE_FILE
from trainer.stress.command import main as stress


def embedded(page: Path) -> list[np.ndarray]:
    """Return the images of a page."""
    found = re.findall(r"data:image/\w+;base64,([^\"' )]+)", page.read_text())
    return [np.asarray(Image.open(BytesIO(b64decode(data))).convert("RGB")) for data in found]


def test_a_run_on_four_channels_shows_its_images(own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, run = write_rasters(own_folder / "d", 4), own_folder / "run"
    given = ["data=folder", f"data.root={root}", "model=cnn", "aug.size=24", "fit.epochs=2", "fit.batch_size=4",
             "fit.device=cpu", "fit.threads=1"]  # fmt: skip
    train(parse_config(compose(given)), run)
    with Image.open(run / "batch.png") as figure:
        assert np.asarray(figure.convert("L"))[80:180, 40:140].std() > 20
    assert "folder, 4 channels of uint16" in (run / "report.html").read_text()
    shown = embedded(run / "report.html")
    assert shown
    assert min(image.std() for image in shown) > 20
    assert stress([str(run), "--ops", "brightness,hue"]) == 0
    assert "hue was left out" in capsys.readouterr().out
    assert max(image.std() for image in embedded(run / PAGE_FILE)) > 20
    assert stress([str(run), "--ops", "brightness,hue,saturation,grayscale"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("hue", "saturation", "grayscale"))
    assert "needs red" not in printed
    assert (run / PAGE_FILE).read_text().count("needs red, green and blue") >= 3
