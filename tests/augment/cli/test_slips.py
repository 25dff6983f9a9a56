"""Slips in a user's own config files: every message names the file or the key, and the nearest right name."""

import re
from pathlib import Path

import pytest

import augment
from augment.cli.compose import compose, compose_recipe, compose_run
from augment.cli.config_files import set_config_dir
from augment.support.errors import UserError

GLOBAL = "# @package _global_\n"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of config files, which is searched like conf."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mine"
    for group in ("aug", "experiment", "fit"):
        (folder / group).mkdir(parents=True)
    set_config_dir(str(folder))
    return folder


@pytest.fixture(autouse=True)
def _no_folder() -> object:
    yield
    set_config_dir(None)


# What is in a file of aug; what the message says after the name of the file.
IN_FILES = [
    ("defaults: [imagenete, _self_]", "defaults: aug: unknown name 'imagenete'. Did you mean 'imagenette'? Allowed: "),
    ("defaults: [/data: csv]", "defaults: data: unknown name 'csv'. Did you mean 'filelist'? Allowed: "),
    ("defaults: [/agu: none]", "defaults: agu/none: unknown group 'agu'. Did you mean 'aug'? Allowed: aug, "),
    ("defaults: [/hydra/launcher: slrm]", "defaults: hydra/launcher: unknown name 'slrm'. Did you mean 'slurm'?"),
    ("train:\n\tflip: {p: 0.5}", "line 2, column 1: found character '\\t' that cannot start any token while "),
    ("train: {flip: {p: 0.5}", "line 2, column 1: expected ',' or '}', but got '<stream end>' while parsing a flow "),
]

# What Hydra itself says of such a file.
IN_DEFAULTS = [
    ("defaults: [slip, _self_]", "defaults: config files include each other in a circle. Remove one of"),
    ("size: ${aug.size", "size: no viable alternative at input '${aug.size'. Use YAML numbers, text, lists"),
]

# What is in a file of aug, or in a mapping; the whole message.
IN_VALUES = [
    ("train: {flip: {p: 0,5}}", "aug.train.flip.5: unknown key. Allowed: "),
    ("train:\n  flip:\n    p: 0,5", "aug.train.flip.p: '0,5' is not allowed. Use a number"),
    ("train:\n  flip:\n  p: 0.5", "aug.train.p: 0.5 is not allowed. Give the step a mapping"),
    ("train:\nflip: {p: 0.5}", "aug.flip: unknown key. Did you mean 'train.flip'? Allowed: "),
    ("aug:\n  train: {}", "aug.aug: unknown key."),
    ("train:\n  flip:{p: 0.5}", "aug.train.flip:{p: '0.5}' is not allowed. Give the step a mapping"),
    (
        "train:\n  - flip: {}",
        "aug.train: [{'flip': {}}] is not allowed. Write steps such as rotate: {p: 0.5}, without",
    ),
    ("train:\n  flip: {p: '${nothing}'}", "aug.train.flip.p: ${nothing}: Interpolation key 'nothing' not found."),
    (
        "size: 64\ntrain: {flip: {p: '${aug.siz}'}}",
        "aug.train.flip.p: ${aug.siz}: Interpolation key 'aug.siz' not found. Did",
    ),
]


@pytest.mark.parametrize(("text", "message"), IN_FILES)
def test_a_slip_in_a_file_is_named_with_the_file(text: str, message: str, mine: Path) -> None:
    file = mine / "aug" / "slip.yaml"
    file.write_text(text + "\n")
    with pytest.raises(UserError, match=f"^{re.escape(f'{file}: {message}')}[^\n]*$"):
        compose(["+aug=slip"])


@pytest.mark.parametrize(("text", "message"), IN_DEFAULTS)
def test_a_slip_that_hydra_finds(text: str, message: str, mine: Path) -> None:
    (mine / "aug" / "slip.yaml").write_text(text + "\n")
    with pytest.raises(UserError, match=f"^{re.escape(message)}[^\n]*$"):
        compose(["+aug=slip"])


@pytest.mark.parametrize(("text", "message"), IN_VALUES)
def test_a_slip_in_a_value_is_named_with_its_key(text: str, message: str, mine: Path) -> None:
    file = mine / "aug" / "slip.yaml"
    file.write_text(text + "\n")
    for recipe in ("slip", file):
        with pytest.raises(UserError, match=f"^{re.escape(message)}[^\n]*$"):
            augment.load_recipe(recipe)


def test_a_missing_main_file(mine: Path) -> None:
    (mine / "main.yaml").write_text("defaults: [config, _self_]\n")
    expected = r"^--config-name mian: this file does not exist\. Did you mean 'main'\? Allowed: config, main\.$"
    with pytest.raises(UserError, match=expected):
        compose_run([], config_name="mian")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fit: {epochs: 3}", "experiment: the file needs the first line `# @package _global_`"),
        (f"{GLOBAL}defaults: [override /aug: nune]", "aug: unknown name 'nune'. Did you mean 'none'? Allowed: "),
        (f"{GLOBAL}defaults: [override aug: none]", "In 'experiment/slip': "),
    ],
)
def test_slips_in_an_experiment(text: str, message: str, mine: Path) -> None:
    file = mine / "experiment" / "slip.yaml"
    file.write_text(text + "\n")
    with pytest.raises(UserError, match=f"^{re.escape(message.format(file=file))}[^\n]*$"):
        compose(["+experiment=slip"])


def test_valid_files_stay_valid(mine: Path) -> None:
    (mine / "aug" / "a.yaml").write_text("defaults: [imagenette.yaml, _self_]\nsize: 64\n")
    (mine / "aug" / "b.yaml").write_text(
        "defaults:\n  - /aug/a\n  - /fit@_global_.fit: [default]\n  - optional c\nsize: 32\n"
    )
    (mine / "experiment" / "e.yaml").write_text(
        f"{GLOBAL}defaults:\n  - override /aug: a\n  - override /hydra/launcher: slurm\n"
    )
    assert compose_recipe(["+aug=a"]).aug.size == (64, 64)
    assert compose_recipe(["+experiment=e"]).aug.size == (64, 64)
