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
    code_of,
    dimension,
    network,
    outside_of,
    override,
    put,
    set_up,
)
from jobs import FakeRuns, runs
from omegaconf import OmegaConf

from augment.data.dataset import DATA_DIR
from augment.support.hydra import register_resolver
from trainer.cli.main import main
from trainer.sweeps.ledger import read_ledger
from trainer.sweeps.trials import TRIALS_FILE

__all__ = ["network", "runs"]

SEARCH = ("hydra/sweeper=optuna", "hydra.sweeper.n_trials=2", "hydra.sweeper.finalists=0", "fit.lr=interval(0.01,0.1)")
# What is left out, or changes nothing that counts.
HARMLESS = ("many GPUs", *(f"fit of type {kind}" for kind in ("list", "str", "float")))
KINDS = {"sweep": ("seed=0,1",), "search": SEARCH}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, sample_set: Path) -> Path:
    """A folder with a sweep and a search, each with a job that is left to run."""
    home = tmp_path_factory.mktemp("kept")
    (home / DATA_DIR).parent.mkdir()
    (home / DATA_DIR).symlink_to(sample_set)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        for kind in KINDS:
            fake = FakeRuns()
            fake.fail = lambda config, fake=fake: KeyboardInterrupt("stopped") if len(fake.runs) == 2 else None
            patch.setattr("trainer.sweeps.workers.run_job", fake)
            for check in ("check_config", "check_resume"):
                patch.setattr(f"trainer.run.config.checks.{check}", lambda config: None)
            code_of(main, "-m", *KINDS[kind], f"hydra.sweep.dir={kind}")
    return home


@pytest.fixture
def made(
    kept: Path, runs: FakeRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_registry: None
) -> Iterator[FakeRuns]:
    """A folder with both, and what hostile ones refer to."""
    shutil.copytree(kept, tmp_path, symlinks=True, dirs_exist_ok=True)
    _, canary = set_up(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    register_resolver("canary", lambda: canary.touch() or "x", replace=True)
    yield runs
    OmegaConf.clear_resolver("canary")


def left(kind: str) -> Path:
    """Return the folder of the job that is left."""
    return next(job.folder for job in read_ledger(Path(kind)) if job.status() == "planned")


CONFIGURED = {name: put(values) for name, values in (REFUSED | STARTED).items()}
# Runs and sweeps have the same gate, `augment.cli.trust.Saved`, and tests/trainer/tools/test_strangers.py tries all of
# these with a run. Here, one of each kind is enough.
EACH_KIND = (
    *("a search path", "a folder of Hydra", "a launcher of Hydra", "a resolver", "an interpolation in a list"),
    *("an experiment", "a file to start from", "a target in a callback", "nested plugins", "a plugin of ops"),
    *("own data", "a URL of val", "a glob", "a folder to write to", "a model elsewhere", "many processes"),
    *("a tracker", "unknown keys", "a value that is missing", "fit of type list", "a name with a zero", *STARTED),
)
CASES = [
    *(pytest.param("sweep", name, marks=[pytest.mark.long] * (name not in EACH_KIND)) for name in CONFIGURED),
    *(("sweep", name) for name in ABOUT),
    *(("search", name) for name in (*ABOUT, *SEARCHES)),
    *(pytest.param("search", name, marks=pytest.mark.faults) for name in CONFIGURED),
]


@pytest.mark.parametrize(("kind", "way"), CASES)
def test_a_stranger_s_sweep_is_data(
    kind: str,
    way: str,
    made: FakeRuns,
    tmp_path: Path,
    network: list[object],
    capfd: pytest.CaptureFixture[str],
) -> None:
    (CONFIGURED | ABOUT | SEARCHES)[way](left(kind), tmp_path / "outside")
    before = outside_of(tmp_path, tmp_path / kind)
    more = ["hydra.sweeper.n_trials=4"] if kind == "search" else []
    codes = [code_of(main, "sweep", "resume", kind, *more)]
    if way not in CONFIGURED:  # the command decides what its jobs are
        codes += [code_of(main, "sweep", "work", kind), code_of(main, "-m", *KINDS[kind], f"hydra.sweep.dir={kind}")]
    assert outside_of(tmp_path, tmp_path / kind) == before, "also that of a canary"
    assert (network, "evil" in sys.modules) == ([], False)
    printed = "".join(capfd.readouterr())
    assert "Traceback" not in printed
    assert codes[0] in ({0, 2} if way in HARMLESS else {1, 2}), printed


def test_a_search_without_possible_trials_ends(
    made: FakeRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dimension(choices=[-1.0])(left("search"), tmp_path)
    Path("search", TRIALS_FILE).unlink()
    assert code_of(main, "sweep", "resume", "search", "hydra.sweeper.n_trials=20000") == 2
    assert "error: 100 trials in a row are invalid" in capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_overrides_of_a_stranger_s_sweep_are_for_people(
    kind: str, made: FakeRuns, tmp_path: Path, network: list[object]
) -> None:
    override(*LABELS)(left(kind), tmp_path / "outside")
    before = outside_of(tmp_path, tmp_path / kind)
    assert code_of(main, "sweep", "resume", kind) == 0
    assert outside_of(tmp_path, tmp_path / kind) == before
    assert (network, "evil" in sys.modules) == ([], False)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sweep_of_an_older_version_names_the_remedy(
    kind: str, made: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    (left(kind) / "planned.yaml").unlink()
    Path(kind, "sweep.yaml").write_text("command: [seed=0,1]\nconfig_name: config\n")
    assert code_of(main, "sweep", "resume", kind) == 2
    assert "with the same hydra.sweep.dir" in capsys.readouterr().err
    assert code_of(main, "-m", *KINDS[kind], f"hydra.sweep.dir={kind}") == 0


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
