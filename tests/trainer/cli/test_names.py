"""File names that are not UTF-8: what reads, shows and writes them works, or rejects them by name."""

import csv
import json
import logging
import os
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
from photos import draw_photo
from PIL import Image
from runs import read_metrics

from augment.cli.tools import run_tool
from augment.support.formatting import as_bytes, make_stdout_lenient
from trainer.cli.main import main
from trainer.run.jobs import _Log, _logged
from trainer.tools import evaluate, predict

SMALL = ("fit.device=cpu", "fit.threads=1", "aug.size=16", "fit.batch_size=4", "fit.epochs=2", "callbacks.plots=null")
DATA = ("data=folder", "data.root=set")
CLASS = os.fsdecode(b"b\xe9e")
PREFIX = os.fsdecode(b"caf\xe9")


def put_photos() -> None:
    for split in ("train", "val"):
        for name in ("ant", CLASS):
            folder = Path("set", split, name)
            folder.mkdir(parents=True)
            for seed in range(4):
                Image.fromarray(draw_photo(24, 24, seed)).save(folder / f"{PREFIX}{seed}.png")
    Path("set/train/ant", f"{PREFIX}x.png").write_bytes(b"words")


@pytest.mark.long
def test_from_training_to_a_prediction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    put_photos()
    bad = Path("set/train/ant", f"{PREFIX}x.png")

    with pytest.raises(SystemExit, match="2"):
        main([*DATA, *SMALL])
    assert "ant/caf?x.png is not an image that DALI decodes" in capfd.readouterr().err
    assert main([*DATA, *SMALL, "hydra.run.dir=run", "data.skip_bad=true"]) == 0
    assert len(read_metrics(Path("run"))) == 2
    assert as_bytes(str(bad)) in Path("run/trainer.log").read_bytes()
    assert b"b\xe9e" in Path("run/report.html").read_bytes()
    assert main(["fit.resume=run", "fit.epochs=3", "hydra.run.dir=run"]) == 0

    good = Path("set/val", CLASS, f"{PREFIX}1.png")
    assert predict.main(["run", str(good), str(bad), "--csv", "found.csv", "--json", "found.json"]) == predict.FAILED
    assert json.loads(Path("found.json").read_text())[0]["file"] == str(good)
    table = csv.DictReader(Path("found.csv").read_text(errors="surrogateescape").splitlines())
    assert [row["file"] for row in table] == [str(good), str(bad)]
    assert evaluate.main(["run"]) == 0
    capfd.readouterr()

    bad.unlink()
    stdout = TextIOWrapper(BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", stdout)
    make_stdout_lenient()
    assert run_tool("augment", ["info", *DATA]) == 0
    stdout.flush()
    assert b"b\xe9e" in stdout.buffer.getvalue()  # type: ignore[attr-defined]
    with pytest.raises(SystemExit, match="2"):
        run_tool("augment", ["convert", *DATA, "--to", "webdataset", "--out", "shards"])
    assert r"the class 'b\udce9e' cannot be written with --to webdataset. Rename it." in capfd.readouterr().err


def test_a_terminal_without_utf8_shows_question_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(raw := BytesIO(), encoding="latin-1"))
    make_stdout_lenient()
    sys.stdout.write("Größe 猫")
    sys.stdout.flush()
    assert raw.getvalue() == "Größe ?".encode("latin-1")


def test_what_could_not_be_written_into_a_configuration_is_rejected(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["data=folder", os.fsdecode(b"data.root=s\xe9t")])
    assert "is not UTF-8, so config.yaml cannot hold it. Rename it" in capfd.readouterr().err


def test_the_log_controls_no_terminal(tmp_path: Path) -> None:
    with _logged(_Log(tmp_path / "trainer.log", encoding="utf-8", errors="surrogateescape")):
        logging.getLogger("data").warning("\033[31m, half of a pair \ud800, a byte \udcff")
    assert (tmp_path / "trainer.log").read_bytes().endswith(b"?[31m, half of a pair ?, a byte \xff\n")
