"""What a run that resumes another one starts from: its configuration as data, and the command line on top."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from augment.cli.overrides import normalize
from augment.support.errors import UserError
from trainer.run.jobs import start_of

SAVED: dict[str, Any] = {
    "data": {"source": "folder", "root": "photos", "skip_bad": True},
    "model": {"kind": "cnn"},
    "aug": {"size": 32, "train": {"flip": {}, "rotate": {"p": 0.5, "degrees": 10}}, "val": {}},
    "fit": {"lr": 0.5, "epochs": 3, "batch_size": 4, "resume": "older", "gpus": None},
    "callbacks": {"progress_bar": {}},
    "seed": 1,
    "plugins": [],
    "run": {"name": None},
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run with a checkpoint, which was resumed itself."""
    folder = tmp_path / "run"
    (folder / ".hydra").mkdir(parents=True)
    (folder / "last.pt").touch()
    (folder / "config.yaml").write_text(yaml.safe_dump(SAVED, sort_keys=False))
    (folder / ".hydra" / "overrides.yaml").write_text(
        "['++fit.lr=0.5', 'aug=imagenette', '++aug.size=32', 'hydra.x=1']"
    )
    return folder


def plain(run: Path, *tokens: str) -> dict[str, Any]:
    given, start, _ = start_of([f"fit.resume={run}", *tokens])
    return start.plain(given)


@pytest.mark.parametrize("token", ["fit.resume=null", "~fit.resume", "fit.resume=auto", "fit.lr=1"])
def test_without_a_run_nothing_is_added(token: str) -> None:
    given, start, before = start_of([token, "seed=1"])
    assert (given, start.saved, before) == (normalize([token, "seed=1"]), None, [])


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_a_run_resumes_as_it_was_configured(run: Path, plus: str) -> None:
    fit = {"lr": 0.5, "epochs": 9, "batch_size": 4, "gpus": None, "resume": str(run)}
    assert plain(run, f"{plus}fit.epochs=9") == SAVED | {"fit": fit}


@pytest.mark.parametrize(
    ("token", "key", "value"),
    [
        ("fit.lr=2", "fit.lr", 2),
        ("~fit.lr", "fit.lr", None),
        ("~aug.train.flip", "aug.train", SAVED["aug"]["train"] | {"flip": None}),
        ("aug.train.rotate.p=.1", "aug.train.rotate", {"p": 0.1, "degrees": 10}),
        ("aug.train.rotate={p: .1}", "aug.train.rotate", {"p": 0.1, "degrees": 10}),
        ("data=sample", "data", {"source": "sample"}),
        ("callbacks=wandb", "callbacks", {"progress_bar": {}, "wandb": {}}),
        ("fit=detect", "fit.batch_size", 16),
        ("callbacks.checkpoint.every=2", "callbacks.checkpoint", {"every": 2}),
        ("run.name=x-${fit.epochs}", "run.name", "x-3"),
        ("seed=7", "seed", 7),
    ],
)
def test_the_command_line_is_put_on_top(run: Path, token: str, key: str, value: object) -> None:
    found: Any = plain(run, token)
    for part in key.split("."):
        found = found.get(part)
    if isinstance(value, dict):
        value = {name: inner for name, inner in value.items() if inner is not None}
    assert found == value


def test_another_recipe_replaces_that_of_the_run(run: Path) -> None:
    other = plain(run, "aug=none")["aug"]
    assert "train" not in other or "rotate" not in (other["train"] or {})
    assert plain(run, "aug=imagenette", "aug.size=64")["aug"]["size"] == 64
    assert plain(run, "aug=imagenette")["data"] == SAVED["data"]


def test_an_experiment_changes_what_it_sets(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("conf/experiment").mkdir(parents=True)
    Path("conf/experiment/mine.yaml").write_text("# @package _global_\n# Mine.\nfit:\n  lr: 0.25\n")
    assert plain(run, "+experiment=mine") == SAVED | {"fit": {**SAVED["fit"], "lr": 0.25, "resume": str(run)}}


def test_files_of_a_search_path_are_found(run: Path, tmp_path: Path) -> None:
    (tmp_path / "more/aug").mkdir(parents=True)
    (tmp_path / "more/aug/mine.yaml").write_text("# Mine.\nsize: 48\n")
    assert plain(run, f"hydra.searchpath=[{tmp_path}/more]", "aug=mine")["aug"] == {"size": 48}


def test_people_see_what_the_run_was_started_with(run: Path) -> None:
    assert start_of([f"fit.resume={run}", "aug=none"])[2] == ["fit.lr=0.5"]


def test_a_key_to_remove_that_is_not_there(run: Path) -> None:
    with pytest.raises(UserError, match=r"^~aug\.train\.flop: this key does not exist\. Did you mean 'flip'"):
        plain(run, "~aug.train.flop")


@pytest.mark.parametrize("lacks", ["last.pt", "config.yaml"])
def test_a_folder_that_is_no_run(run: Path, lacks: str) -> None:
    (run / lacks).unlink()
    with pytest.raises(UserError, match=r": .* contains no (last\.pt|config\.yaml)\. Use the folder of a run"):
        start_of([f"fit.resume={run}"])
