"""Every command of the README and docs/ is valid, and the first one of each tool runs, here or in a test of its own."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from documented import QUICK, TEXTS, commands, photos_folder

import trainer
from augment.cli.compose import compose, compose_recipe
from augment.cli.config_files import group_names
from augment.cli.overrides import key_of, normalize, parse, split_sweep
from augment.cli.parser import Parser
from augment.cli.tools import find_tools
from augment.recipe.steps import parse_aug
from trainer.cli.help import explain, sections
from trainer.run.config.schema import parse_config
from trainer.sweeps.launchers import parse_launcher
from trainer.sweeps.search_space import SearchPlan
from trainer.sweeps.sweep.command import Request, is_search

__all__ = ["photos_folder"]

BRIEF, SMALL = ["--rounds", "1", "--seconds", "0.01"], ["--batch-size", "4", "--threads", "1"]
# How the first line of each tool is made short; tests of their own run the others in the same way.
SHORTENED: dict[tuple[str, str], list[str]] = {
    ("augment", "bench"): ["data=folder", "data.root=DIR", *BRIEF, "--rows", "fused", *SMALL],
    ("trainer", "dashboard"): ["RUN_FOLDER"],
}
OTHERS = {("augment", "fusion"), ("augment", "preview"), ("trainer", "bench"), ("trainer", "find_lr")}
OTHERS |= {("augment", "export"), ("trainer", "export"), ("trainer", "push")}


class Parsed(BaseException):
    """Raised where a tool has parsed its command line."""


@pytest.mark.parametrize("command", commands(), ids=" ".join)
@pytest.mark.usefixtures("sample_drawn")
def test_commands_are_valid(command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corrections.csv").write_text("path,label\n")
    package, *arguments = command
    tools = find_tools(package)
    if arguments[0] == "--help":
        assert all(map(explain, arguments[1:]))
        return
    if package == "trainer" and arguments[0] not in tools:
        tokens = [token for token in arguments if token not in ("-m", "--trust") and not token.startswith("fit.resume")]
        request = Request.of(normalize(tokens))
        section = request.section() if "-m" in arguments else {"sweeper": {"_target_": "basic_sweeper"}}
        assert "-m" not in arguments or parse_launcher(section["launcher"]).at_a_time >= 1
        if is_search(section["sweeper"]):
            swept = [*request.params(section["sweeper"]), *request.swept]
            plan = SearchPlan.of(section["sweeper"], request.fixed, swept, Path("outputs/search"), check=False)
            assert plan.study([]).sampler
            return
        tokens = [*request.fixed, *request.swept]
        assert ("-m" in arguments) == (len(split_sweep(normalize(tokens))) > 1)
        # The first value of each key that is swept stands for the others.
        first = split_sweep(normalize(tokens))[0]
        if not any("plugins" in token for token in tokens):
            assert parse_config(compose(first)).fit.epochs >= 1
        return
    split = Parser.split

    def parse(self: Parser, given: list[str]) -> Any:
        raise Parsed(split(self, given)[1])

    monkeypatch.setattr(Parser, "split", parse)
    with pytest.raises(Parsed) as parsed:
        tools[arguments[0]].run(arguments[1:])
    overrides = [token for token in parsed.value.args[0] if "=" in token and not token.startswith("hydra.")]
    assert min(compose_recipe(overrides).aug.size) >= 1


def test_every_tool_is_shown() -> None:
    shown = {command[:2] for command in commands()}
    for package in ("augment", "trainer"):
        assert {(package, tool) for tool in find_tools(package)} - {("trainer", "reference")} <= shown


def tool_lines() -> list[tuple[str, ...]]:
    """Return the first line of each tool."""
    first: dict[tuple[str, ...], tuple[str, ...]] = {}
    tools = {package: find_tools(package) for package in ("augment", "trainer")}
    for command in commands():
        searches = any(token.startswith("hydra.") for token in command)
        if command[1] in tools[command[0]] and command[:2] not in OTHERS and not searches:
            first.setdefault(command[:2], command)
    return list(first.values())


@pytest.fixture(scope="module")
def run_folder(photos_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on these photos."""
    folder = tmp_path_factory.mktemp("outputs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder.parent)
        trainer.train("data=folder", f"data.root={photos_folder}", *QUICK, folder=folder)
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("no_settling")
@pytest.mark.parametrize("command", tool_lines(), ids=" ".join)
def test_the_first_line_of_each_tool_runs(
    command: tuple[str, ...],
    photos_folder: Path,
    run_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(run_folder, tmp_path / "run")
    shutil.copytree(photos_folder / "val" / "cat", tmp_path / "photos")
    package, tool, *arguments = command
    arguments += SHORTENED.get((package, tool), [])
    known = {"DIR": str(photos_folder), "RUN": str(run), "RUN_FOLDER": str(run), "OUT": str(tmp_path / "out")}
    arguments = [re.sub(r"\b(DIR|RUN|RUN_FOLDER|OUT)\b", lambda m: known[m.group()], token) for token in arguments]
    arguments = [str(run) if token.split("/")[0] == "outputs" else token for token in arguments]
    if (package, tool) == ("trainer", "sweep"):
        (tmp_path / "sweep.yaml").write_text("launcher: {kind: local}\nsweeper: {_target_: basic_sweeper}\n")
        shutil.copy(run / "config.yaml", run / "planned.yaml")
        (run / "job.json").write_text('{"order": 0, "overrides": []}')
        arguments = [str(tmp_path) if token == str(run) else token for token in arguments]
    if (package, tool) == ("augment", "convert"):
        arguments = [token for token in arguments if token not in ("--size", "256")]
    assert find_tools(package)[tool].run(arguments) == 0
    assert capsys.readouterr().out


def test_what_others_write_is_valid_here() -> None:
    """Keys, files and steps in the last column of coming_from.md."""
    text = TEXTS["docs/coming_from.md"]
    here = [code for row in re.findall(r"^\|.*\| (.*) \|$", text, re.M) for code in re.findall(r"`([^`]+)`", row)]
    steps = [code for code in here if re.match(r"\w+: \{", code)]
    overrides = [code for code in here if re.match(r"\+?[a-z_.]+=", code)]
    assert len(steps) > 15
    assert len(overrides) > 40
    for code in steps:
        assert parse_aug({"val" if "crop" in code else "train": yaml.safe_load(f"{{{code}}}")})
    params = {(section.prefix, name): param for section in sections() for name, param in section.params.items()}
    for override in [parse(token) for code in overrides for token in code.split()]:
        key, value = key_of(override), override.value()
        if key in group_names():
            assert explain(f"{key}={value}")
        else:
            prefix, _, name = key.rpartition(".")
            params[prefix, name].parse(value, key)
