"""The run folder of a stranger: whatever it holds, no tool runs its code, and none writes elsewhere."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile import (
    CODE,
    LABELS,
    REACH,
    REFUSED,
    REPEATED,
    SECRET,
    SIZES,
    STARTED,
    Tamper,
    code_of,
    configure,
    link,
    network,
    outside_of,
    override,
    put,
    set_up,
)  # fmt: skip
from omegaconf import OmegaConf

from augment.support.hydra import register_resolver
from augment.tools.export import main as export
from trainer.cli.main import main as train
from trainer.report.command import main as report
from trainer.tools.evaluate import main as evaluate
from trainer.tools.predict import main as predict

__all__ = ["network"]

OVERRIDES = ".hydra/overrides.yaml"
LINKS = ("plan.txt", "report.html", "evaluation-mine.json", "evaluations.jsonl", "confusion.png")
# tests/faults/test_strangers_folders.py has more of them, those of sweeps, and these, which are rejected as others are.
SAME = ("Imagewoof", "a mirror", "mlflow", "a function", "a section")
WAYS: dict[str, Tamper] = {
    **{name: tamper for name, tamper in (CODE | REACH).items() if name not in SAME},
    **{name: SIZES[name] for name in ("a large model", "aliases", "a name with escapes", "another task")},
    "links": lambda run, outside: [link(name)(run, outside) for name in LINKS],
    "an interpolation": configure(data__root="${canary:}", seed="${canary:}"),
}


@pytest.fixture
def run(
    finished_run: Path, photos: tuple[Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A run to tamper with, and images of two of its classes; those of the run are gone."""
    run = shutil.copytree(finished_run, tmp_path / "run")
    (run / ".hydra").mkdir()
    (run / OVERRIDES).write_text("[data=folder, data.root=gone]")
    for name in ("red", "green"):
        (tmp_path / "mine" / name).mkdir(parents=True)
        shutil.copy(photos[0], tmp_path / "mine" / name)
    _, canary = set_up(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    register_resolver("canary", lambda: canary.touch() or "x", replace=True)
    for name in ("metrics.jsonl", "steps.jsonl"):  # charts take a while
        (run / name).write_text("")
    yield run
    OmegaConf.clear_resolver("canary")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("clean_registry")
def test_no_way_in_makes_a_canary(
    way: str, run: Path, tmp_path: Path, network: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    untouched = outside_of(run)
    WAYS[way](run, tmp_path / "outside")
    before = outside_of(tmp_path, run, tmp_path / "outputs")
    codes = [code_of(report, run), code_of(train, f"fit.resume={run}")]
    if {path for path, content in untouched.items() if outside_of(run).get(path) != content} != {run / OVERRIDES}:
        codes += [code_of(evaluate, run), code_of(predict, run, tmp_path / "mine")]
        codes += [code_of(export, "--run", run, "--out", run / "exported")]
    assert outside_of(tmp_path, run, tmp_path / "outputs") == before, "also that of a canary"
    assert (network, codes[1]) == ([], 2)  # the images of the run are gone
    assert set(codes) <= {0, 2}
    printed = "".join(capsys.readouterr())
    assert "Traceback" not in printed
    assert "\033" not in printed
    assert (run / "report.html").is_symlink() or SECRET not in (run / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "imports"), [([], False), (["plugins=[evil]"], True), (["--trust"], True), (["plugins=[]"], False)]
)
@pytest.mark.usefixtures("clean_registry")
def test_a_plugin_is_imported_if_the_command_line_names_it(
    run: Path, arguments: list[str], imports: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(plugins=["evil"])(run, tmp_path)
    assert code_of(evaluate, run, tmp_path / "mine", *arguments) == (0 if arguments else 2)
    assert (tmp_path / "outside/canary").exists() == imports
    if not arguments:
        printed = capsys.readouterr().err
        assert printed.startswith(f"error: plugins: [evil] in {run / 'config.yaml'} is not used")
        assert "Pass 'plugins=[evil]' on the command line, or --trust" in printed


def test_one_error_lists_all_settings_to_repeat(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = {"source": "own", "train": "evil.train", "val": "evil.train"}
    configure(plugins=["evil", "bad"], aug__plugins=["evil"], data=own)(run, tmp_path)
    assert code_of(evaluate, run) == 2
    assert not (tmp_path / "outside/canary").exists()
    printed = capsys.readouterr().err
    assert (
        " Pass 'plugins=[evil, bad]' 'aug.plugins=[evil]' data.train=evil.train data.val=evil.train on the command line"
    ) in printed


@pytest.mark.usefixtures("clean_registry")
def test_a_source_is_imported_if_the_command_line_names_it(run: Path, tmp_path: Path) -> None:
    configure(data={"source": "own", "train": "evil.train", "val": "evil.train"})(run, tmp_path)
    assert code_of(evaluate, run, "data.train=evil.train") == 2
    assert not (tmp_path / "outside/canary").exists()
    assert code_of(evaluate, run, "data.train=evil.train", "data.val=evil.train") == 2  # it has no items
    assert (tmp_path / "outside/canary").exists()


def test_an_environment_variable_is_read_with_trust_only(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(data__root="${oc.env:SECRET_PLACE}")(run, tmp_path)
    monkeypatch.setenv("SECRET_PLACE", "/nowhere/at/all")
    assert code_of(evaluate, run) == 2
    told = capsys.readouterr().err
    assert "data.root: ${oc.env:SECRET_PLACE} in " in told
    assert "/nowhere" not in told
    for given in ("--trust", "data.root=${oc.env:SECRET_PLACE}"):
        assert code_of(evaluate, run, given) == 2
        assert "/nowhere/at/all" in capsys.readouterr().err


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.long] * (way in REPEATED)) for way in (*REFUSED, *STARTED)]
)
@pytest.mark.usefixtures("clean_registry")
def test_a_configuration_is_data(
    way: str, run: Path, tmp_path: Path, network: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    put((REFUSED | STARTED)[way])(run, tmp_path / "outside")
    before = outside_of(tmp_path, run, tmp_path / "outputs")
    codes = [code_of(train, f"fit.resume={run}"), code_of(evaluate, run), code_of(evaluate, run, tmp_path / "mine")]
    assert outside_of(tmp_path, run, tmp_path / "outputs") == before, "also that of a canary"
    assert (network, "evil" in sys.modules) == ([], False)
    assert codes[:2] == [2, 2]  # the images of the run are gone, too
    assert codes[2] in (0, 2)
    assert "Traceback" not in "".join(capsys.readouterr())


@pytest.mark.usefixtures("clean_registry")
def test_overrides_of_a_run_are_for_people(run: Path, tmp_path: Path, network: list[object]) -> None:
    override(*LABELS)(run, tmp_path / "outside")
    assert code_of(train, f"fit.resume={run}", f"data.root={tmp_path / 'gone'}") == 2
    assert (network, "evil" in sys.modules) == ([], False)
    assert not (tmp_path / "outside/canary").exists()
