"""Config files of the user's own: `conf` where the user stands, and the folder of --config-dir."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from augment.cli.compose import compose, compose_recipe
from augment.cli.config_files import (
    CONF,
    config_files,
    config_folders,
    default_groups,
    describe_origin,
    group_names,
    own_files,
    set_config_dir,
)
from augment.cli.overrides import normalize, split_sweep
from augment.support.errors import UserError

MINE = "size: 40\ntrain: {rotate: {}}\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stand in an empty folder."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    set_config_dir(None)


def write(file: Path, text: str = MINE) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_the_project_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config_folders() == [CONF]
    assert own_files() == []
    monkeypatch.chdir(CONF.parent)
    assert config_folders() == [CONF]
    assert set(group_names()) == {"aug", "callbacks", "data", "experiment", "fit", "model"}
    assert default_groups() == {
        "data": "sample",
        "model": "cnn",
        "aug": None,
        "fit": "default",
        "callbacks": "default",
        "experiment": None,
    }


@pytest.mark.parametrize("flag", [False, True])
def test_files_of_every_group_are_chosen_by_name(here: Path, flag: bool) -> None:
    folder = here / ("elsewhere" if flag else "conf")
    write(folder / "aug" / "mine.yaml")
    write(folder / "aug" / "child.yaml", "defaults: [imagenette, _self_]\nsize: 48\n")
    write(folder / "data" / "ours.yaml", "source: folder\nroot: x\n")
    write(folder / "model" / "small.yaml", "kind: cnn\n")
    write(
        folder / "experiment" / "all.yaml",
        "# @package _global_\ndefaults:\n  - override /aug: mine\n  - override /data: ours\nseed: 7\n",
    )
    if flag:
        set_config_dir("elsewhere")
    config = compose(["+aug=mine", "data=ours", "model=small", "aug.size=44"])
    assert (config["aug"]["size"], config["data"], config["model"]) == (
        *(44, {"source": "folder", "root": "x"}, {"kind": "cnn"}),
    )
    assert compose_recipe(["+aug=child"]).aug.train == compose_recipe(["+aug=imagenette"]).aug.train
    config = compose(["+experiment=all"])
    assert (config["aug"]["size"], config["data"]["root"], config["seed"]) == (40, "x", 7)
    assert own_files() == ["aug=child", "aug=mine", "data=ours", "experiment=all", "model=small"]
    jobs = split_sweep(normalize(["aug=glob(m*)", "seed=0,1"]))
    assert jobs == [["aug=mine", "++seed=0"], ["aug=mine", "++seed=1"]]


def test_a_name_in_two_folders_is_an_error_that_names_both(here: Path) -> None:
    mine = write(here / "conf" / "aug" / "strong.yaml")
    message = f"aug=strong: {CONF / 'aug' / 'strong.yaml'} and {mine} have the same name. Rename one of them."
    for choice in ("strong", "imagenette"):
        with pytest.raises(UserError, match=f"^{re.escape(message)}"):
            compose([f"+aug={choice}"])
    shutil.copy(CONF / "aug" / "strong.yaml", mine)  # the same file says the same
    assert compose(["+aug=strong"])["aug"]["size"] != 40
    write(here / "conf" / "aug" / "mine.yaml")
    other = write(here / "other" / "aug" / "mine.yaml", "size: 41\n")
    set_config_dir("other")
    with pytest.raises(UserError, match=re.escape(f"{here / 'conf' / 'aug' / 'mine.yaml'} and {other}")):
        config_files("aug")


def test_a_running_program_of_hydra_keeps_its_own() -> None:
    GlobalHydra.instance().clear()
    running = object()
    GlobalHydra.instance().hydra = running  # type: ignore[assignment]
    compose(["+aug=none"])
    assert GlobalHydra.instance().hydra is running
    GlobalHydra.instance().clear()


@pytest.mark.parametrize(
    ("key", "tokens", "origin"),
    [
        ("fit.lr", ["experiment=finetune"], " experiment=finetune sets fit.lr. To remove it, add ~fit.lr."),
        ("fit.lr", ["experiment=finetune", "fit.lr=1"], ""),
        ("data.root", ["experiment=finetune"], " experiment=finetune chooses data=folder."),
        ("data.root", ["experiment=finetune", "data=imagenette"], ""),
        ("model.kind", ["model=detector"], ""),
        ("aug", ["aug=imagenette"], ""),
    ],
)
def test_origin_of_a_key_that_no_override_sets(key: str, tokens: list[str], origin: str) -> None:
    assert describe_origin(key, tokens) == origin
