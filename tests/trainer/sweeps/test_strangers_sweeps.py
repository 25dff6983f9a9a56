"""The folder of a stranger's sweep or search: it is data, and nothing in it runs, reads elsewhere or sends."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile import (
    ABOUT,
    LABELS,
    REFUSED,
    SEARCHES,
    STARTED,
    Tamper,
    code_of,
    network,
    outside_of,
    override,
    put,
    set_up,
)
from jobs import FakeRuns, runs
from omegaconf import OmegaConf

from augment.support.hydra import register_resolver
from trainer.cli.main import main
from trainer.sweeps.ledger import read_ledger

__all__ = ["network", "runs"]

SEARCH = ("hydra/sweeper=optuna", "hydra.sweeper.n_trials=2", "hydra.sweeper.finalists=0", "fit.lr=interval(0.01,0.1)")
KINDS = {"sweep": ("seed=0,1",), "search": SEARCH}


@pytest.fixture
def made(runs: FakeRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample_drawn: None) -> Iterator[FakeRuns]:
    """A folder in which sweeps are made, and what hostile ones refer to."""
    _, canary = set_up(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    register_resolver("canary", lambda: canary.touch() or "x", replace=True)
    yield runs
    OmegaConf.clear_resolver("canary")


def make(kind: str, runs: FakeRuns) -> Path:
    """Make a sweep or a search, one of whose jobs is left to run; return the folder of this job."""
    runs.fail = lambda config: KeyboardInterrupt("stopped") if len(runs.runs) == 2 else None
    code_of(main, "-m", *KINDS[kind], "hydra.sweep.dir=S")
    runs.fail = lambda config: None
    runs.runs.clear()
    return next(job.folder for job in read_ledger(Path("S")) if job.status() == "planned")


def check_that(harm: Tamper, kind: str, runs: FakeRuns, tmp_path: Path, network: list[object]) -> list[int]:
    """Check that a folder does no harm; return the exit codes of resuming it and working on it."""
    harm(make(kind, runs), tmp_path / "outside")
    before = outside_of(tmp_path, tmp_path / "S")
    codes = [code_of(main, "sweep", "resume", "S"), code_of(main, "sweep", "work", "S")]
    code_of(main, "-m", *KINDS[kind], "hydra.sweep.dir=S")
    assert outside_of(tmp_path, tmp_path / "S") == before, "also that of a canary"
    assert (network, "evil" in sys.modules) == ([], False)
    assert set(codes) <= {0, 1, 2}
    return codes


CONFIGURED = {name: put(values) for name, values in (REFUSED | STARTED).items()}
CASES = [(kind, name) for kind in KINDS for name in (*CONFIGURED, *ABOUT)] + [("search", name) for name in SEARCHES]


@pytest.mark.parametrize(("kind", "way"), CASES)
@pytest.mark.usefixtures("clean_registry")
def test_a_stranger_s_sweep_is_data(
    kind: str,
    way: str,
    made: FakeRuns,
    tmp_path: Path,
    network: list[object],
    capfd: pytest.CaptureFixture[str],
) -> None:
    codes = check_that((CONFIGURED | ABOUT | SEARCHES)[way], kind, made, tmp_path, network)
    assert codes[0] != 0 or way in ("many GPUs", "a file that is searched")
    printed = "".join(capfd.readouterr())
    assert "Traceback" not in printed
    assert "error: " in printed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("clean_registry")
def test_overrides_of_a_stranger_s_sweep_are_for_people(
    kind: str, made: FakeRuns, tmp_path: Path, network: list[object]
) -> None:
    assert check_that(override(*LABELS), kind, made, tmp_path, network) == [0, 0]


def test_a_sweep_of_an_older_version_names_the_remedy(made: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    make("sweep", made)
    Path("S/sweep.yaml").write_text("command: [seed=0,1]\nconfig_name: config\n")
    capsys.readouterr()
    assert code_of(main, "sweep", "resume", "S") == 2
    assert "the command of the sweep once more, with its hydra.sweep.dir" in capsys.readouterr().err
    shutil.rmtree(Path("S/sweep.yaml").parent / "never", ignore_errors=True)
    assert code_of(main, "-m", *KINDS["sweep"], "hydra.sweep.dir=S") == 0


def test_a_sweep_resumes_what_was_planned_with_trust(made: FakeRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment variable stays a reference, which only the user's own folders resolve."""
    monkeypatch.setenv("MINE", "secret place")
    made.fail = lambda config: KeyboardInterrupt("stopped") if len(made.runs) == 2 else None
    code_of(main, "-m", "seed=0,1", "run.name=${oc.env:MINE}", "hydra.sweep.dir=S")
    made.fail = lambda config: None
    assert "secret place" not in next(Path("S").glob("*/planned.yaml")).read_text()
    names: list[str] = []
    made.score = lambda config: names.append(config["run"]["name"]) or 0.5
    assert code_of(main, "sweep", "resume", "S") == 2
    assert names == []
    assert code_of(main, "sweep", "resume", "S", "--trust") == 0
    assert names == ["secret place"]


def test_a_search_of_files_resumes_without_hydra(
    made: FakeRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the files said when it was planned counts."""
    Path("conf/aug").mkdir(parents=True)
    for name, size in (("one", 32), ("two", 48)):
        Path(f"conf/aug/{name}.yaml").write_text(f"# Mine.\nsize: {size}\ntrain: {{flip: {{}}}}\n")
    sizes: list[int] = []
    made.score = lambda config: sizes.append(config["aug"]["size"]) or 0.5
    settings = ("hydra/sweeper=optuna", "hydra.sweeper.n_trials=2", "hydra.sweeper.finalists=0")
    varied = ("aug=one,two", "aug.train.flip.p=0.1,0.2,0.3")
    assert code_of(main, "-m", *settings, *varied, "hydra.sweep.dir=S") == 0
    shutil.rmtree("conf")
    assert code_of(main, "sweep", "resume", "S", "hydra.sweeper.n_trials=8") == 0
    assert set(sizes) == {32, 48}
    (tmp_path / "S/sweep.yaml").write_text((tmp_path / "S/sweep.yaml").read_text().replace("size: 32", "size: 40"))
    assert code_of(main, "sweep", "resume", "S", "hydra.sweeper.n_trials=9") in (0, 1)
