"""Ctrl-C and signals at every stage of a run: it says what was saved, and its folder says how it ended."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import on
from runs import BARE, QUIET, read_metrics, small_config

from trainer.callbacks.optimizer_steps import GradClip
from trainer.cli import main as cli
from trainer.run import build
from trainer.run import train as run
from trainer.run.folder.reader import RunFolder

pytestmark = pytest.mark.usefixtures("own_folder")


def stop(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def status(folder: Path) -> object:
    return json.loads((folder / "summary.json").read_text())["status"]


def test_ctrl_c_while_data_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "check_configs", stop)
    with pytest.raises(SystemExit) as stopped:
        cli.main([])
    assert stopped.value.code == 130
    assert capsys.readouterr().out == "stopped before the first batch, so there is nothing to resume\n"


def test_ctrl_c_while_pipelines_are_built(photo_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "place", stop)
    with pytest.raises(KeyboardInterrupt, match=r"^stopped before the first batch, so there is nothing to resume$"):
        run.train(small_config(photo_root), tmp_path / "run", console=QUIET)
    assert status(tmp_path / "run") == "interrupted"
    again = small_config(photo_root, "fit.resume=old")
    with pytest.raises(
        KeyboardInterrupt, match=r"^stopped before the first batch\. fit.resume=old continues from its last"
    ):
        run.train(again, tmp_path / "run", console=QUIET)


def test_a_second_ctrl_c_says_what_was_saved(photo_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GradClip, "before_step", stop)
    folder = tmp_path / "run"
    for saved, said in (
        (False, ", so there is nothing to resume"),
        (True, r"\. fit.resume=run continues from its last"),
    ):
        if saved:
            (folder / "last.pt").touch()
        with pytest.raises(KeyboardInterrupt, match=f"^stopped at once{said}"):
            run.train(small_config(photo_root, "+callbacks.grad_clip={}"), folder, console=QUIET)
        assert status(folder) == "interrupted"


def test_a_second_signal_after_the_last_epoch_leaves_a_finished_run(photo_root: Path, tmp_path: Path) -> None:
    """There is nothing to resume."""
    config = small_config(photo_root, "fit.epochs=1", *BARE)
    twice = on("after_fit", stop)
    with pytest.raises(
        KeyboardInterrupt, match=r"^stopped after the last epoch. Figures or the report may be missing$"
    ):
        run.train(replace(config, callbacks=(*config.callbacks, lambda: twice)), tmp_path / "run", console=QUIET)
    summary = RunFolder(tmp_path / "run").summary
    assert (summary.status, summary.epochs, summary.planned) == ("finished", 1, 1)
    assert summary.best == summary.last == read_metrics(tmp_path / "run")[0]


def test_a_run_removes_what_a_killed_one_left_in_its_folder(
    photo_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "place", stop)
    left = tmp_path / "run" / f".{'a1' * 16}.part"
    left.parent.mkdir()
    left.touch()
    with pytest.raises(KeyboardInterrupt):
        run.train(small_config(photo_root), tmp_path / "run", console=QUIET)
    assert not left.exists()
