"""Checkpoints of other versions: refused with one sentence wherever they are read."""

import shutil
from pathlib import Path

import pytest
import torch

from augment.support.errors import UserError
from trainer.cli.main import main
from trainer.loop.checkpoint import BEST, FORMAT, LAST
from trainer.report import command as report
from trainer.report.record import read_record
from trainer.tools import evaluate

SENTENCE = (
    f"a checkpoint of version 0.4 or older, but this version needs format {FORMAT}. "
    "Allowed: the version that wrote it, or a new run."
)


@pytest.fixture
def old_run(finished_run: Path, tmp_path: Path) -> Path:
    """A run with checkpoints as version 0.4 wrote them."""
    folder = shutil.copytree(finished_run, tmp_path / "old")
    for name in (LAST, BEST):
        state = torch.load(folder / name, weights_only=True)
        del state["format"]
        torch.save({**state, **({"classes": list(state["classes"])} if name == BEST else {})}, folder / name)
    (folder / ".hydra").mkdir()
    (folder / ".hydra" / "overrides.yaml").write_text("[]\n")
    return folder


@pytest.mark.usefixtures("sample_drawn")
def test_an_old_run_is_not_resumed(
    old_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(old_run.parent)
    with pytest.raises(SystemExit, match="2"):
        main([f"fit.resume={old_run}", "fit.epochs=9"])
    assert capsys.readouterr().err.strip() == f"error: {old_run / LAST}: {SENTENCE}"
    assert not list(old_run.parent.glob("outputs/2*"))


def test_an_old_run_is_not_evaluated(old_run: Path) -> None:
    with pytest.raises(UserError) as caught:
        evaluate.evaluate(old_run)
    assert str(caught.value) == f"{old_run / BEST}: {SENTENCE}"


def test_the_report_of_an_old_run_does_without_its_best_model_and_says_so(old_run: Path) -> None:
    record = read_record(old_run)
    assert record.notes[BEST] == f"{old_run / BEST}: {SENTENCE}"
    assert record.rows
    assert report.main([str(old_run)]) == 0
    assert "a checkpoint of version 0.4 or older" in (old_run / "report.html").read_text()
