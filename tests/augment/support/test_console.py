"""Consoles on which names out of files cannot move the cursor."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from io import StringIO

import pytest
from rich.table import Table

from augment.cli.parser import readable_errors
from augment.support.console import PlainConsole, print_plan, progress_bar


def test_control_characters_are_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    console = PlainConsole(file=stream, color_system=None)
    table = Table("a\033[31m")
    table.add_row("\033]0;pwned\007")
    console.print("x\033[2J\tü", table, "[b]")
    printed = stream.getvalue()
    assert "\033" not in printed
    assert "x?[2J" in printed
    assert "?]0;pwn" in printed
    assert "[b]" in printed


def test_nor_are_they_in_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    with readable_errors():
        assert logging.lastResort is not None
        logging.lastResort.handle(logging.makeLogRecord({"msg": "a class \033[31m"}))
    assert capsys.readouterr().err == "a class ?[31m\n"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_long_lines_of_plans(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    print_plan(PlainConsole(file=stream, width=30), "train:\n    color_jitter  p 0.5  brightness 0.8..1.2")
    end = "\n        " if is_terminal else " "
    assert stream.getvalue() == f"train:\n    color_jitter  p 0.5{' ' * (not is_terminal)}{end}brightness 0.8..1.2\n"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_only_terminals_show_moving_bars(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notebooks and CI set FORCE_COLOR, although their output is a file."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    monkeypatch.setattr("sys.stderr", stream)
    with progress_bar() as bar:
        bar.add_task("Reading", total=2)
    assert ("Reading" in stream.getvalue()) == is_terminal


_PRINTS = """
import sys
from augment.support.console import PlainConsole
console = PlainConsole()
console.print("a")
sys.stdin.read()
console.print("b")
console.print("c")
sys.stderr.write("continues")
"""


@pytest.mark.parametrize("make", [os.pipe, os.openpty])
def test_a_run_outlives_the_reader_of_its_output(make: Callable[[], tuple[int, int]]) -> None:
    """The reader may be `head`, or a terminal that is closed."""
    ours, theirs = make()
    given = {"stdin": subprocess.PIPE, "stdout": theirs, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", _PRINTS], **given) as process:  # type: ignore[call-overload]
        os.close(theirs)
        assert os.read(ours, 9).strip() == b"a"
        os.close(ours)
        _, said = process.communicate()
    assert (process.returncode, said) == (0, b"continues")


def test_notebooks_get_plain_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("augment.support.console.find_spec", lambda _: None)
    print_plan(PlainConsole(), "train\n  flip")
    assert capsys.readouterr().out == "train\n  flip\n"
    assert progress_bar().disable
    monkeypatch.setattr("augment.support.console.find_spec", lambda _: object())
    assert not progress_bar().disable
