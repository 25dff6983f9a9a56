"""Ranks that are killed at random moments: the others end, and the resumed run is that of ranks that never were."""

import json
import random
from pathlib import Path

import pytest
from fakes import assert_same
from rank_runs import command, draw_images, state_of
from runs import rows_of

pytestmark = pytest.mark.faults

# A rank, or all, and the training batch after which it is killed; 4 batches make an epoch.
MOMENTS = [(who, random.Random(number).randrange(8)) for number, who in enumerate("0101010*11")]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_images(tmp_path_factory.mktemp("ranks") / "images")


@pytest.fixture(scope="module")
def straight(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("straight")
    ended = command(folder, images, "hydra.run.dir=run")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder / "run"


def test_ranks_whose_parent_was_killed_stop(images: Path, tmp_path: Path) -> None:
    killed = command(tmp_path, images, "hydra.run.dir=run", "fit.epochs=9", trouble="orphan/0/2")
    assert killed.returncode == -9
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "interrupted"


@pytest.mark.parametrize(("who", "batch"), MOMENTS)
def test_killed_ranks_resume_exactly(who: str, batch: int, images: Path, straight: Path, tmp_path: Path) -> None:
    killed = command(tmp_path, images, "hydra.run.dir=run", "fit.resume=auto", trouble=f"kill/{who}/{batch}")
    assert killed.returncode == 1
    assert "Traceback" not in killed.stdout + killed.stderr
    assert "ended by SIGKILL" in killed.stderr
    resumed = command(tmp_path, images, "hydra.run.dir=run", "fit.resume=auto")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert rows_of(tmp_path / "run") == rows_of(straight)
    assert_same(state_of(tmp_path / "run").model, state_of(straight).model)


@pytest.mark.parametrize("who", ["0", "1"])
def test_torchrun_restarts_ranks_of_which_one_was_killed(
    who: str, images: Path, straight: Path, tmp_path: Path
) -> None:
    torchrun = ("torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1", "-m")
    given = ("hydra.run.dir=run", "fit.resume=auto")
    ended = command(tmp_path, images, *given, trouble=f"kill/{who}/5", launcher=torchrun)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert rows_of(tmp_path / "run") == rows_of(straight)
    assert_same(state_of(tmp_path / "run").model, state_of(straight).model)
