"""Folders of runs on the command line and from Python: one run each, continued in place, found by fit.resume=auto."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from runs import BARE, draw_classes, rows_of

from augment.support.errors import UserError
from trainer import train
from trainer.callbacks.optimizer_steps import PrepareValidation
from trainer.cli.main import main
from trainer.loop.learner import Learner
from trainer.run.folder.locks import owned, release
from trainer.run.folder.reader import RunFolder

SMALL = (*("aug.size=16", "fit.batch_size=4", "fit.epochs=3", "fit.device=cpu", "fit.threads=1"), *BARE)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_classes(tmp_path_factory.mktemp("photos"), count=4)


Call = Callable[..., tuple[int, str]]


@pytest.fixture
def call(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Call]:
    """Run the command line in `tmp_path`; return the exit code and all that it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["trainer"])
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str, settings: tuple[str, ...] = (*SMALL, "data=folder", f"data.root={photos}")) -> Any:
        capsys.readouterr()
        try:
            code = main([*settings, *arguments])
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        except RuntimeError:
            code = 1
        return code, "".join(capsys.readouterr())

    yield call
    release()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def fail_in(monkeypatch: pytest.MonkeyPatch, epoch: int | None) -> None:
    """Let runs fail at the beginning of an epoch."""

    def before_train(callback: PrepareValidation, learner: Learner) -> None:
        if learner.progress.epoch == epoch:
            raise RuntimeError("the power is gone")

    monkeypatch.setattr(PrepareValidation, "before_train", before_train)


def started(folder: Path) -> list[Path]:
    return sorted(file.parent for file in folder.glob("outputs/*/*/config.yaml"))


@pytest.mark.slow
def test_a_used_folder_is_rejected_untouched_and_its_run_continues_in_place(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("hydra.run.dir=whole")[0] == 0
    before = contents(tmp_path / "whole")
    code, text = call("hydra.run.dir=whole")
    assert (code, text) == (
        2,
        "error: hydra.run.dir=whole: this folder holds a run. Use a separate folder for each run. To continue that "
        "run, add fit.resume=whole.\n",
    )
    with pytest.raises(UserError, match=r"^folder=whole: this folder holds a run\."):
        train(*read_overrides(tmp_path / "whole"), folder="whole")
    assert contents(tmp_path / "whole") == before

    fail_in(monkeypatch, 2)
    assert call("hydra.run.dir=cut")[0] == 1
    assert len(rows_of(tmp_path / "cut")) == 2
    fail_in(monkeypatch, None)
    code, text = call("fit.resume=cut", "hydra.run.dir=cut", settings=())
    assert code == 0
    assert "resumes cut" in text
    assert rows_of(tmp_path / "cut") == rows_of(tmp_path / "whole")
    assert "  resume: cut\n" in (tmp_path / "cut" / "config.yaml").read_text()
    # What the folder says of its command line serves the next time, too.
    assert call("fit.resume=cut", "fit.epochs=4", "hydra.run.dir=cut", settings=())[0] == 0
    assert len(rows_of(tmp_path / "cut")) == 4


@pytest.mark.slow
def test_auto_starts_resumes_and_leaves_a_finished_run_alone(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_in(monkeypatch, 2)
    assert call("fit.resume=auto")[0] == 1
    (first,) = started(tmp_path)
    fail_in(monkeypatch, 0)  # before its first checkpoint
    assert call("fit.resume=auto", "seed=1")[0] == 1
    fail_in(monkeypatch, None)
    code, text = call("fit.resume=auto")
    assert code == 0
    assert f"resumes {first.relative_to(tmp_path)}" in text
    (second,) = (run for run in started(tmp_path) if RunFolder(run).status == "finished")
    assert second != first
    assert len(rows_of(second)) == 3
    code, text = call("fit.resume=auto", "run.name=again", "callbacks.tensorboard={}")  # the same configuration
    assert code == 0
    assert text.startswith("already finished, so there is nothing to resume: finished after 3 epochs: ")
    assert len(started(tmp_path)) == 3
    assert train(*(token for token in read_overrides(second) if "resume" not in token), "fit.resume=auto").epochs == 3
    assert len(started(tmp_path)) == 3
    # Nothing is left of the run that failed before its first checkpoint, so that it starts again.
    assert call("fit.resume=auto", "seed=1")[0] == 0
    assert len(started(tmp_path)) == 4


def read_overrides(run: Path) -> list[str]:
    lines = (run / ".hydra" / "overrides.yaml").read_text().splitlines()
    return [line.removeprefix("- ").strip("'").lstrip("+") for line in lines]


def test_auto_does_not_start_a_second_run_beside_a_living_one(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_in(monkeypatch, 0)
    call()
    (run,) = started(tmp_path)
    with owned(run, str(run)):
        code, text = call("fit.resume=auto")
    assert code == 2
    assert f"fit.resume=auto: a run with this configuration is in progress in {run.relative_to(tmp_path)} (pro" in text
    assert started(tmp_path) == [run]


def test_auto_starts_again_in_a_fixed_folder_and_leaves_nothing_after_a_mistake(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("fit.resume=auto", "hydra.run.dir=mine")
    assert call(*given, "data.root=nowhere")[0] == 2
    assert not (tmp_path / "mine").exists()
    fail_in(monkeypatch, 0)  # before its first checkpoint
    assert call(*given)[0] == 1
    fail_in(monkeypatch, None)
    assert call(*given)[0] == 0
    assert RunFolder(tmp_path / "mine").status == "finished"
