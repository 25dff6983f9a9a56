"""The overrides of a run that resumes another one."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from augment.cli.overrides import normalize
from augment.support.errors import UserError
from trainer.run.jobs import with_resumed


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


@pytest.mark.parametrize("token", ["fit.resume=null", "~fit.resume", "fit.resume=auto", "fit.lr=1"])
def test_without_a_run_nothing_is_added(token: str) -> None:
    assert with_resumed([token, "seed=1"]) == (normalize([token, "seed=1"]), None)


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_the_overrides_of_the_resumed_run_come_first(run: Path, plus: str) -> None:
    tokens, gate = with_resumed([f"{plus}fit.resume={run}", "fit.epochs=9"])
    assert tokens == ["aug=imagenette", "++fit.lr=0.5", "++a.b=[1,2]", f"++fit.resume={run}", "++fit.epochs=9"]
    assert gate is not None
    assert with_resumed([f"fit.resume={run}"], trust=True)[1] is None


@pytest.mark.parametrize("token", ["fit.lr=2", "++fit.lr=2", "~fit.lr"])
def test_those_of_the_command_line_replace_them(run: Path, token: str) -> None:
    tokens, _ = with_resumed([f"fit.resume={run}", token, "aug=none"])
    assert tokens == ["++a.b=[1,2]", *normalize([f"fit.resume={run}", token]), "aug=none"]


def test_a_run_that_was_itself_resumed(run: Path, tmp_path: Path) -> None:
    save(run, "++fit.lr=0.5", f"++fit.resume={tmp_path / 'older'}", "hydra.run.dir=x")
    assert with_resumed([f"fit.resume={run}"])[0] == ["++fit.lr=0.5", f"++fit.resume={run}"]


@pytest.mark.parametrize("lacks", ["last.pt", ".hydra/overrides.yaml"])
def test_a_folder_that_is_no_run(run: Path, lacks: str) -> None:
    (run / lacks).unlink()
    with pytest.raises(
        UserError, match=r": no last\.pt and \.hydra/overrides\.yaml in it\. Allowed: the folder of a run"
    ):
        with_resumed([f"fit.resume={run}"])
