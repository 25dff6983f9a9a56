"""The overrides of a run that resumes another one."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from augment.support.errors import UserError
from trainer.run.overrides import flags_first, with_resumed


def save(run: Path, *overrides: str) -> None:
    OmegaConf.save(OmegaConf.create(list(overrides)), run / ".hydra" / "overrides.yaml")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run with two overrides, and a list as a value."""
    folder = tmp_path / "run"
    (folder / ".hydra").mkdir(parents=True)
    (folder / "last.pt").touch()
    save(folder, "+aug=imagenette", "++fit.lr=0.5", "++a.b=[1,2]")
    return folder


def test_without_resume_nothing_is_added() -> None:
    assert with_resumed(["-m", "fit.lr=1", "~aug.train.flip"]) == ["-m", "fit.lr=1", "~aug.train.flip"]


@pytest.mark.parametrize("token", ["fit.resume=null", "++fit.resume=null", "~fit.resume"])
def test_resume_may_be_none(token: str) -> None:
    assert with_resumed([token, "seed=1"]) == [token, "seed=1"]


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_the_overrides_of_the_resumed_run_come_first(run: Path, plus: str) -> None:
    tokens = [f"{plus}fit.resume={run}", "fit.epochs=9"]
    assert with_resumed(tokens) == ["+aug=imagenette", "++fit.lr=0.5", "++a.b=[1,2]", *tokens]


@pytest.mark.parametrize("token", ["fit.lr=2", "+fit.lr=2", "++fit.lr=2", "~fit.lr"])
def test_those_of_the_command_line_replace_them(run: Path, token: str) -> None:
    tokens = [f"fit.resume={run}", token]
    assert with_resumed(tokens) == ["+aug=imagenette", "++a.b=[1,2]", *tokens]


def test_a_file_of_a_group_replaces_that_of_the_resumed_run(run: Path) -> None:
    assert with_resumed([f"fit.resume={run}", "aug=none"])[:2] == ["++fit.lr=0.5", "++a.b=[1,2]"]


def test_a_run_that_was_itself_resumed(run: Path, tmp_path: Path) -> None:
    OmegaConf.save(
        OmegaConf.create(["++fit.lr=0.5", f"++fit.resume={tmp_path / 'older'}"]), run / ".hydra/overrides.yaml"
    )
    assert with_resumed([f"fit.resume={run}"]) == ["++fit.lr=0.5", f"fit.resume={run}"]


def test_flags_stay(run: Path) -> None:
    assert with_resumed(["--cfg", "job", f"fit.resume={run}"])[-3:] == ["--cfg", "job", f"fit.resume={run}"]


def test_no_such_run(tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    with pytest.raises(UserError) as caught:
        with_resumed([f"fit.resume={folder}"])
    assert str(caught.value) == (
        f"fit.resume={folder}: no such folder. {tmp_path} holds no folders. "
        "Allowed: the folder of a run that saved a checkpoint."
    )


@pytest.mark.parametrize("lacks", ["last.pt", ".hydra/overrides.yaml"])
def test_a_folder_that_is_no_run(run: Path, lacks: str) -> None:
    (run / lacks).unlink()
    with pytest.raises(
        UserError, match=r": no last\.pt and \.hydra/overrides\.yaml in it\. Allowed: the folder of a run"
    ):
        with_resumed([f"fit.resume={run}"])


def test_flags_may_stand_anywhere() -> None:
    tokens = ["+a=1", "-m", "~b", "--cfg", "job", "fit.lr=0.1"]
    assert flags_first(tokens) == ["-m", "--cfg", "job", "+a=1", "~b", "fit.lr=0.1"]
