"""The tools of both packages: each is listed, has a page of help, and is named where its name is mistaken."""

import importlib

import pytest

import augment.__main__
from augment.cli.tools import find_tools, run_tool
from augment.recipe.op import OPS
from trainer.cli.main import main as trainer

TOOLS = [(package, name) for package in ("augment", "trainer") for name in find_tools(package)]


@pytest.mark.parametrize(("package", "name"), TOOLS)
def test_each_tool_has_a_page_of_help(package: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    tool = find_tools(package)[name]
    assert tool.summary.endswith(".")
    with pytest.raises(SystemExit) as stopped:
        importlib.import_module(tool.module).main(["--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: python -m {package} {name} ")
    assert "examples:\n" in printed or "examples of arguments:\n" in printed
    assert ("--config-dir" in printed) == ("key=value" in printed.partition("\n")[0])


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], []])
def test_the_tools_are_listed(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["augment", *arguments])
    assert augment.__main__.main() == (0 if arguments else 2)
    printed = capsys.readouterr().out
    for name, tool in find_tools("augment").items():
        assert [line for line in printed.splitlines() if line.split()[:1] == [name] and line.endswith(tool.summary)]


@pytest.mark.parametrize("package", ["augment", "trainer"])
def test_the_version(package: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (run_tool("augment", ["--version"]) if package == "augment" else trainer(["--version"])) == 0
    assert capsys.readouterr().out == f"dali-trainer {importlib.import_module(package).__version__}\n"


def test_ops_are_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool("augment", ["ops"]) == 0
    printed = capsys.readouterr().out
    names = [line.split()[0] for line in printed.splitlines() if line.startswith("  ")]
    assert names == list(OPS)
    assert run_tool("augment", ["ops", "rotate", "HorizontalFlip"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("rotate (geometry): Rotate the image about its center.\n\nparameters\n  angle_range: ")
    assert "\n  rotate: {p: 0.5, angle_range: [-7, 7]}\n" in printed
    assert "\nflip (geometry): " in printed
    assert "RandomHorizontalFlip of torchvision, HorizontalFlip of albumentations" in printed
