"""Slips in a user's own config files: every message names the file or the key, and the nearest right name."""

import re
import warnings
from pathlib import Path

import pytest

import augment
from augment.cli.compose import compose, compose_jobs, compose_recipe, split_sweep
from augment.cli.conf import set_config_dir
from augment.cli.tools import run_tool
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
    (
        "defaults: [imagenete, _self_]",
        "defaults: imagenete: unknown name 'imagenete'. Did you mean 'imagenette'? Allowed",
    ),
    ("defaults: [_self, none]", "defaults: _self: unknown name '_self'. Did you mean '_self_'? Allowed: _self_, "),
    ("defaults: [slip, _self_]", "defaults: slip: unknown name 'slip'. "),
    ("defaults: [_self_, none, _self_]", "defaults: _self_ occurs 2 times. Allowed: once."),
    ("defaults: none", "defaults: 'none' is not allowed. Allowed: a list, such as [NAME, _self_]."),
    ("defaults: {aug: none}", "defaults: {'aug': 'none'} is not allowed. Allowed: a list, such as [NAME, _self_]."),
    ("defaults: [[none]]", "defaults: ['none']: is not allowed. Allowed: NAME, GROUP: NAME, "),
    ("defaults: [/agu: none]", "defaults: /agu: none: unknown group '/agu'. Did you mean '/aug'? Allowed: /aug, "),
    ("defaults: [/aug: nune]", "defaults: /aug: nune: unknown name 'nune'. Did you mean 'none'? Allowed: "),
    (
        "defaults: [overide /aug: none]",
        "defaults: overide /aug: none: unknown word 'overide'. Did you mean 'override'?",
    ),
    (
        "defaults: [/hydra/launcher: slrm]",
        "defaults: /hydra/launcher: slrm: unknown name 'slrm'. Did you mean 'slurm'?",
    ),
    (
        "defaults: [override /aug: none, imagenette]",
        "defaults: imagenette: comes after an override. Allowed: overrides at the end of the list.",
    ),
    ("- flip", "holds ['flip']. Allowed: a mapping, written as lines of key: value without dashes."),
    ("flip", "holds 'flip'. Allowed: a mapping"),
    ("size: ${aug.size", "size: an interpolation cannot be read. Allowed: ${KEY}, closed by a }."),
    ("train:\n\tflip: {p: 0.5}", "line 2, column 1: a tab. Allowed: spaces."),
    ("train: {flip: {p: 0.5}", "line 1, column 8: this { is not closed by a } before line "),
    ("train: {flip: {p: 0.5}}}", "line 1, column 24: this } closes no bracket. Allowed: matching brackets."),
    (
        "train: {flip: {}, flip: {}}",
        "line 1, column 19: the key flip is in this mapping already. Allowed: each key once.",
    ),
    (
        "train: {}\n---\nval: {}",
        "line 2, column 1: a second document begins. Allowed: one document, without a line of ---.",
    ),
    ("train: *flip", "line 1, column 8: there is no &flip before *flip. Allowed: quotes around text"),
]

# What is in a file of aug, or in a mapping; the whole message.
IN_VALUES = [
    (
        "train: {flip: {p: 0,5}}",
        "aug.train.flip.5: unknown key. In { }, a comma ends a value: write decimals with a point, ",
    ),
    (
        "train:\n  flip:\n    p: 0,5",
        "aug.train.flip.p: '0,5' is not allowed. Did you mean 0.5? Allowed: a number from 0",
    ),
    (
        "train:\n  flip:\n  p: 0.5",
        "aug.train.p: 0.5 is not allowed. Did you mean aug.train.flip.p? In a file, the settings ",
    ),
    ("train:\nflip: {p: 0.5}", "aug.flip: unknown key. Did you mean 'train.flip'? Allowed: "),
    ("aug:\n  train: {}", "aug.aug: unknown key. Did you mean its content, without 'aug:' around it? Allowed: "),
    (
        "train:\n  flip:{p: 0.5}",
        "aug.train.flip:{p: '0.5}' is not allowed. Did you mean 'flip: {p: 0.5}'? A key is followed by a colon ",
    ),
    (
        "train:\n  - flip: {}",
        "aug.train: [{'flip': {}}] is not allowed. Allowed: a mapping of steps, such as rotate: {p: 0.5}, ",
    ),
    (
        "train:\n  flip: {p: '${nothing}'}",
        "aug.train.flip.p: ${nothing}: there is no key 'nothing'. Allowed: ${KEY} of",
    ),
    (
        "size: 64\ntrain:\n  flip: {p: '${aug.siz}'}",
        "aug.train.flip.p: ${aug.siz}: there is no key 'aug.siz'. Did you ",
    ),
    (
        "train: {RandomHorizontalFlip: {}}",
        "aug.train.RandomHorizontalFlip: unknown op 'RandomHorizontalFlip'. Did you mean 'flip'?",
    ),
    (
        "train: {coarse_dropout: {}}",
        "aug.train.coarse_dropout: unknown op 'coarse_dropout'. Did you mean 'erase'? Allowed: ",
    ),
]


@pytest.mark.parametrize(("text", "message"), IN_FILES)
def test_a_slip_in_a_file_is_named_with_the_file(text: str, message: str, mine: Path) -> None:
    file = mine / "aug" / "slip.yaml"
    file.write_text(text + "\n")
    with pytest.raises(UserError, match=f"^{re.escape(f'{file}: {message}')}[^\n]*$"):
        compose(["+aug=slip"])
    with pytest.raises(UserError, match=f"^{re.escape(f'{file}: {message}')}[^\n]*$"):
        augment.load_recipe(file)


@pytest.mark.parametrize(("text", "message"), IN_VALUES)
def test_a_slip_in_a_value_is_named_with_its_key(text: str, message: str, mine: Path) -> None:
    file = mine / "aug" / "slip.yaml"
    file.write_text(text + "\n")
    for recipe in ("slip", file):
        with pytest.raises(UserError, match=f"^{re.escape(message)}[^\n]*$"):
            augment.load_recipe(recipe)


def test_tools_print_it_without_a_traceback(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (mine / "aug" / "slip.yaml").write_text("train: {flip: {p: '${nothing}'}}\n")
    for tool in ("plan", "preview"):
        with pytest.raises(SystemExit) as ended:
            run_tool("augment", [tool, "--config-dir", str(mine), "+aug=slip"])
        assert ended.value.code == 2
        printed = capsys.readouterr()
        assert printed.err.startswith("error: aug.train.flip.p: ${nothing}: there is no key 'nothing'.")
        assert (printed.err.count("\n"), printed.out) == (1, "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "defaults: [confg, _self_]",
            "{file}: defaults: confg: unknown name 'confg'. Did you mean 'config'? Allowed: _self_, ",
        ),
        (
            "defaults: [config, override aug: nune]",
            "{file}: defaults: override aug: nune: unknown name 'nune'. Did you mean",
        ),
        (
            "defaults: [config, override agu: none]",
            "{file}: defaults: override agu: none: unknown group 'agu'. Did you ",
        ),
        (
            "defaults: [config, aug: none, _self_]",
            "aug: chosen by two defaults lists. Did you mean 'override /aug: none'",
        ),
        (
            "defaults: [config, _self_]\nfit:\n  - epochs: 3",
            "{file}: fit: holds a list. Allowed: a mapping, written as lines of key",
        ),
    ],
)
def test_slips_in_a_file_that_the_command_line_names(text: str, message: str, mine: Path) -> None:
    file = mine / "main.yaml"
    file.write_text(text + "\n")
    with pytest.raises(UserError, match=f"^{re.escape(message.format(file=file))}[^\n]*$"):
        compose_jobs([[]], config_name="main")


def test_a_file_without_self_is_no_slip(mine: Path) -> None:
    """Hydra warns, and then puts the file's own values last."""
    (mine / "main.yaml").write_text("defaults: [config]\nfit: {epochs: 3}\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (composed,) = compose_jobs([[]], config_name="main")
    assert composed["fit"] == {"epochs": 3}


def test_a_missing_main_file(mine: Path) -> None:
    (mine / "main.yaml").write_text("defaults: [config]\n")
    expected = r"^--config-name mian: there is no such file\. Did you mean 'main'\? Allowed: config, main\.$"
    with pytest.raises(UserError, match=expected):
        compose_jobs([[]], config_name="mian")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "fit: {epochs: 3}",
            "{file}: its first line is not # @package _global_. Allowed: that line, as its keys are of all sections.",
        ),
        ("# @package _globl_\nfit: {epochs: 3}", "{file}: its first line is not # @package _global_. Allowed: "),
        (
            f"{GLOBAL}defaults: [override /aug: nune]",
            "{file}: defaults: override /aug: nune: unknown name 'nune'. Did you",
        ),
        (
            f"{GLOBAL}defaults: [override aug: none]",
            "{file}: defaults: override aug: none: unknown group 'aug'. Did you mean '/aug'?",
        ),
        (
            f"{GLOBAL}defaults: [/aug: none]",
            "aug: chosen by two defaults lists. Did you mean 'override /aug: none' in the second",
        ),
    ],
)
def test_slips_in_an_experiment(text: str, message: str, mine: Path) -> None:
    file = mine / "experiment" / "slip.yaml"
    file.write_text(text + "\n")
    with pytest.raises(UserError, match=f"^{re.escape(message.format(file=file))}[^\n]*$"):
        compose(["+experiment=slip"])


def test_files_that_build_on_each_other_in_a_circle(mine: Path) -> None:
    for one, other in ("ab", "ba"):
        (mine / "aug" / f"{one}.yaml").write_text(f"defaults: [{other}, _self_]\n")
    with pytest.raises(UserError, match=r"^defaults: config files build on each other in a circle\. Allowed: "):
        compose(["+aug=a"])


@pytest.mark.parametrize(
    ("token", "hint"),
    [
        ("data=photos/mine", "data=folder data.root=photos/mine if it is a folder of images."),
        ("callbacks=early_stopping", "callbacks.early_stopping={} if it is a callback."),
        ("+aug=mine/aug/x.yaml", "A file of your own is aug=NAME if it is conf/aug/NAME.yaml, or in --config-dir."),
        ("+aug=short", "A file of your own is aug=NAME if it is conf/aug/NAME.yaml, or in --config-dir."),
    ],
)
def test_what_is_no_file_may_be_something_else(token: str, hint: str, mine: Path) -> None:
    (mine / "aug" / "short.yml").write_text("size: 64\n")
    with pytest.raises(UserError, match=f": unknown name .* Allowed: .* {re.escape(hint)}$"):
        compose([token])


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("seed=range(0)", "seed=range(0): no values. Allowed: range(STOP) or range(START, STOP, STEP), which ends"),
        (
            "fit.lr=interval(0.1,1)",
            "fit.lr: an interval needs a search. Allowed: hydra/sweeper=optuna as well, or a,b,c.",
        ),
    ],
)
def test_sweeps_that_are_none(token: str, message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        split_sweep([f"++{token}"])


def test_a_config_dir_is_a_folder(mine: Path) -> None:
    (file := mine / "main.yaml").write_text("defaults: [config]\n")
    with pytest.raises(UserError, match=r"^--config-dir .*main\.yaml: is a file\. Allowed: a folder such as conf, "):
        set_config_dir(str(file))


def test_valid_files_stay_valid(mine: Path) -> None:
    (mine / "aug" / "a.yaml").write_text("defaults: [imagenette.yaml, _self_]\nsize: 64\n")
    (mine / "aug" / "b.yaml").write_text(
        "defaults:\n  - /aug/a\n  - /fit@_global_.fit: [default]\n  - optional c\nsize: 32\n"
    )
    (mine / "experiment" / "e.yaml").write_text(
        f"{GLOBAL}defaults:\n  - override /aug: a\n  - override /hydra/launcher: slurm\n"
    )
    assert compose_recipe(["+aug=a"]).aug.size == 64
    assert compose_recipe(["+experiment=e"]).aug.size == 64
