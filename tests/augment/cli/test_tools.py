"""The tools of both packages: each is listed, has a page of help, and is named where its name is mistaken."""

import importlib

import pytest

import augment.__main__
from augment.cli.tools import find_tools, run_tool
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
    assert "examples:\n" in printed
    assert ("--config-dir DIR" in printed) == ("key=value" in printed.partition("\n")[0])


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], []])
def test_the_tools_are_listed(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["augment", *arguments])
    assert augment.__main__.main() == (0 if arguments else 2)
    printed = capsys.readouterr().out
    for name, tool in find_tools("augment").items():
        assert [line for line in printed.splitlines() if line.split()[:1] == [name] and line.endswith(tool.summary)]


def test_a_tool_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run_tool("augment", ["preveiw", "+aug=none"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("error: preveiw: unknown tool. Did you mean 'preview'? Allowed: bench, ")


def test_a_tool_of_the_trainer_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        trainer(["evalute", "RUN"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("error: evalute: unknown tool. Did you mean 'evaluate'? Allowed: bench, ")
    with pytest.raises(SystemExit):
        trainer(["imagenette"])
    assert "'imagenette' is not an override. Did you mean '+aug=imagenette'?" in capsys.readouterr().err


def test_a_tool_of_the_other_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run_tool("augment", ["evaluate", "RUN"])
    assert stopped.value.code == 2
    assert "evaluate: unknown tool. Did you mean python -m trainer evaluate? Allowed: " in capsys.readouterr().err


@pytest.mark.parametrize("package", ["augment", "trainer"])
def test_the_version(package: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (run_tool("augment", ["--version"]) if package == "augment" else trainer(["--version"])) == 0
    assert capsys.readouterr().out == f"dali-trainer {importlib.import_module(package).__version__}\n"
