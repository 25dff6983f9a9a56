"""Mistakes on the command lines of tools give one message, exit code 2, and no files."""

import shlex
from pathlib import Path

import pytest

from augment.cli.tools import run_tool

MISTAKES = [
    ("preview --split tain", "argument --split: unknown name 'tain'. Did you mean 'train'?"),
    ("preview", "aug.train: no steps. Allowed: +aug=NAME for a recipe, or --op NAME for an op."),
    ("preview --op flip --count 0", "--count: 0 is not allowed. Allowed: a whole number from 1 to 64"),
    ("preview --op flip --photos nowhere", "--photos nowhere: there is no such folder"),
    ("preview --op flip --photos .", "--photos .: the folder contains no images"),
    (
        "convert data=sample --out x",
        "--to, --out: missing. Allowed: --to folder or webdataset, and",
    ),
    ("convert data=sample --to folder", "--to, --out: missing."),
    ("convert --to folder --out x", "data: missing. Allowed: data=folder data.root=DIR, or another source."),
    ("convert data=folder --to folder --out x", "data.root: missing"),
    ("convert data=sample --size 0", "--size: 0 is not allowed. Allowed: a whole number from 1 to 65500"),
    ("fusion --photos .", "--photos .: the folder contains no images."),
    ("fusion a b", "a b: not allowed here. Allowed: flags only"),
]


@pytest.mark.parametrize(("command", "message"), MISTAKES, ids=[command for command, _ in MISTAKES])
def test_mistakes_give_one_message(
    command: str, message: str, own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run_tool("augment", shlex.split(command))
    captured = capsys.readouterr()
    assert stopped.value.code == 2
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert captured.out == ""
    assert not list(own_folder.iterdir())
