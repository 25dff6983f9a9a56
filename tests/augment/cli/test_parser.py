"""Flags next to overrides, readable errors, exit codes."""

import os
from argparse import ArgumentTypeError
from pathlib import Path

import pytest
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from rich.table import Table

import augment
from augment.cli.parser import Parser, one_of, output, output_file, png_file, readable_errors, table_console
from augment.support.errors import UserError


def test_a_table_in_a_file_is_as_wide_as_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name of a file that goes over two lines cannot be searched for."""
    monkeypatch.delenv("COLUMNS", raising=False)
    table_console().print(Table("x" * 300))
    assert "x" * 300 in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "40")
    assert table_console().width == 40


@pytest.fixture
def parser() -> Parser:
    parser = Parser("augment.tool", "Does something.", "  python -m augment.tool +aug=none")
    parser.add_argument("--op")
    parser.add_argument("--out", metavar="FILE")
    parser.add_argument("--split", type=one_of("train", "val"))
    parser.add_argument("--against", nargs="+")
    parser.add_argument("--plain", action="store_true")
    return parser


@pytest.mark.parametrize(
    "arguments",
    [
        ["--op", "rotate", "+aug=a", "~aug.b", "c=[1,2]"],
        ["+aug=a", "--op", "rotate", "~aug.b", "c=[1,2]"],
        ["+aug=a", "~aug.b", "c=[1,2]", "--op=rotate"],
    ],
)
def test_flags_and_overrides_may_be_mixed(parser: Parser, arguments: list[str]) -> None:
    options, overrides = parser.split(arguments)
    assert (options.op, options.out, options.plain) == ("rotate", None, False)
    assert overrides == ["+aug=a", "~aug.b", "c=[1,2]"]


@pytest.mark.parametrize("error", [UserError("a: b."), HydraException("a: b."), OmegaConfBaseException("a: b.")])
def test_a_mistake_costs_one_line_and_exit_code_2(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped, readable_errors():
        raise error
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "error: a: b.\n"


def test_a_long_message_keeps_its_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"), readable_errors():
        raise UserError(f"a: {'9' * 100_000} is not allowed. Use 1.")
    error = capsys.readouterr().err
    assert len(error) < 5000
    assert error.endswith("9 is not allowed. Use 1.\n")


def test_ctrl_c_is_exit_code_130(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped, readable_errors():
        raise KeyboardInterrupt
    assert stopped.value.code == 130
    assert capsys.readouterr().err == ""


def test_our_own_mistakes_stay_loud() -> None:
    with pytest.raises(ZeroDivisionError), readable_errors():
        exec(compile("1 / 0", augment.__file__, "exec"))


def test_what_cannot_be_written_is_said_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    for name in ("new", "a/b/new.json", "file", ".", str(tmp_path / "x"), "/dev/null"):
        assert output(name) == Path(name)
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
    for name, kind in (("file/new.json", output), ("file/a/b.png", png_file)):
        with pytest.raises(ArgumentTypeError, match=f"^{name} cannot be created, because {tmp_path}/file is not a"):
            kind(name)
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(ArgumentTypeError, match=f"^a/new cannot be written, because {tmp_path} is not writable"):
        output("a/new")
    for name in ("-", "file", "/dev/null"):
        assert output_file(name) == name


@pytest.mark.parametrize(
    ("usage", "allowed", "wrong"),
    [
        ("RUN", ["a"], ["a", "b"]),
        ("RUN [DIR] [key=value ...]", ["a", "b", "c=1"], ["a", "b", "c"]),
        ("RUN IMAGE ...", ["a", "b", "c"], ["a"]),
        ("RUN", ["a"], ["a", "c=1"]),
    ],
)
def test_the_usage_gives_the_number_of_paths(usage: str, allowed: list[str], wrong: list[str]) -> None:
    parser = Parser("augment.tool", "Does something.", "", arguments=usage)
    _, paths, settings = parser.split_paths(allowed)
    assert [*map(str, paths), *settings] == allowed
    with pytest.raises(UserError, match=r"Usage: python -m augment\.tool"):
        parser.split_paths(wrong)
