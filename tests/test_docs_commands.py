"""Every command of the README and docs/ is valid, and the first one of each tool runs, here or in a test of its own."""

import argparse
import re
import runpy
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
import yaml
from documented import QUICK, TEXTS, blocks, commands, is_name, photos_folder, shell_commands
from generated import ROOT

import trainer
from augment.cli.compose import compose, compose_recipe
from augment.cli.config_files import group_names
from augment.cli.overrides import key_of, normalize, parse, split_sweep
from augment.cli.parser import Parser
from augment.cli.tools import find_tools
from augment.recipe.steps import parse_aug
from trainer.cli.help import explain, sections
from trainer.cli.main import main
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
PLACEHOLDERS = {"KEY": "fit.lr", "NAME": "rotate", "data=NAME": "data=folder"}
BENCHMARKS = [words[1:] for words in shell_commands() if words[0] == "python" and "benchmarks/" in words[1]]
# How other commands start: what checks them, or why nothing can.
OTHERS_START = {
    "python -c": "test_the_check_of_the_gpu_runs",
    "python tests/benchmarks/": "test_benchmarks_accept_their_arguments",
    "python tests/support/generated.py": "tests/test_docs.py compares its result with the pages",
    "python tests/support/simulated_verdicts.py": "tests/trainer/sweeps/test_verdict.py, with fewer samples",
    "python tests/support/stress_agreement.py": "test_the_comparison_with_imagenet_c_runs",
    "pip install": "test_extras_that_pip_installs_exist",
    "python predict.py": "tests/trainer/tools/test_export.py",
    "ovc": "tests/trainer/tools/test_export.py, if OpenVINO is installed",
    "kubectl apply": "needs a cluster. tests/test_docs_cluster.py checks its file",
    "sky jobs launch": "needs a cluster. tests/test_docs_cluster.py checks its file",
    "FIRST=$": "needs Slurm",
    "scontrol show hostnames": "needs Slurm",
    "head -1": "needs Slurm",
    "pytest": "runs these tests",
    "python3 -m venv .venv": ".ci/run",
    ". .venv/bin/activate": ".ci/run",
    "pip uninstall": "removes the package",
    "cd dali-trainer": "needs the address of the repository",
    "git clone REPOSITORY": "needs the address of the repository",
    "git pull": "needs the address of the repository",
    "conda": "needs conda",
    "docker run": "needs Docker",
    "trtexec": "needs TensorRT. The page states that this is not tested",
    "hf auth login": "needs an account",
    "wandb": "needs an account",
    "tensorboard --logdir": "starts a server",
    "mlflow ui": "starts a server",
    "diff": "compares the output of two commands, which are checked",
    "torchrun --nproc-per-node 2 train.py": "timm's command",
    "python -m augment.plan": "the form before 0.9.7, which upgrading.md replaces",
}
# Packages of other projects that the pages install.
OTHER_PACKAGES = {"coremltools", "fastai", "mlflow", "nvidia-ml-py", "openvino", "pillow-heif", "pylibjpeg"}


class Parsed(BaseException):
    """Raised where a tool has parsed its command line."""


def test_every_command_is_checked() -> None:
    """By a test of this file, or as OTHERS_START states."""
    unused = set(OTHERS_START)
    for words in shell_commands():
        if any(words[-len(command) :] == command for command in commands()):
            continue
        starts = [start for start in OTHERS_START if " ".join(words).startswith(start)]
        assert starts, f"{' '.join(words)}: add a test or a reason, or show it in a fenced block if it is no command"
        unused -= {*starts}
    assert not unused


def test_tools_that_are_named_exist() -> None:
    named = {
        tuple(code.split()[2:]) for text in TEXTS.values() for code in re.findall("`([^`]+)`", text) if is_name(code)
    }
    assert ("trainer", "find_lr") in named
    assert [name for name in named if name[1:] not in ((), ("...",)) and name[1] not in find_tools(name[0])] == []


@pytest.mark.parametrize(
    "words", [words for words in shell_commands() if "torchrun" in words and "-m" in words], ids=" ".join
)
def test_torchrun_starts_the_trainer(words: tuple[str, ...]) -> None:
    from torch.distributed.run import get_args_parser

    options = get_args_parser().parse_args(words[words.index("torchrun") + 1 :])
    assert (options.module, options.training_script) == (True, "trainer")
    assert ("trainer", *options.training_script_args) in commands()


def test_extras_that_pip_installs_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    installed = {word for words in shell_commands() if words[:2] == ("pip", "install") for word in words[2:]}
    assert len(installed) > 10
    known = {"-e", ".", *(re.split(r"[<>=!\[]", package)[0] for packages in extras.values() for package in packages)}
    for word in installed - known:
        name, _, extra = word.rstrip("]").partition("[")
        assert extra in extras if name in (".", project["name"]) else name in OTHER_PACKAGES, word


@pytest.mark.parametrize("words", BENCHMARKS, ids=" ".join)
def test_benchmarks_accept_their_arguments(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [*words])
    for name in ("kornia", "kornia.augmentation"):  # not installed
        monkeypatch.setitem(sys.modules, name, MagicMock())
    parse = argparse.ArgumentParser.parse_known_args

    def parsed(self: argparse.ArgumentParser, *given: Any) -> Any:
        raise Parsed(parse(self, *given)[1])

    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", parsed)
    monkeypatch.syspath_prepend((ROOT / words[0]).parent)
    with pytest.raises(Parsed) as rest:
        runpy.run_path(str(ROOT / words[0]), run_name="__main__")
    assert min(compose_recipe(rest.value.args[0]).aug.size) >= 1


def test_the_check_of_the_gpu_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = [words[2] for words in shell_commands() if words[:2] == ("python", "-c")]
    exec(code)
    assert capsys.readouterr().out == f"{torch.cuda.is_available()}\n"


def test_the_arguments_for_your_own_data_are_valid() -> None:
    """The last column of the README's table of tasks replaces the data of the command."""
    rows = re.findall(r"^\| .* \| `python -m trainer ([^`]+)` \| (.*) \|$", TEXTS["README.md"], re.M)
    assert len(rows) == 6
    for command, own in rows:
        given = own.split("`")[1].split() if "`" in own else []
        kept = [token for token in command.split() if not (given and token.startswith("data="))]
        assert parse_config(compose([*kept, *given])).fit.epochs >= 1


@pytest.mark.parametrize("command", commands(), ids=" ".join)
@pytest.mark.usefixtures("sample_drawn")
def test_commands_are_valid(command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corrections.csv").write_text("path,label\n")
    package, *arguments = command
    arguments = [PLACEHOLDERS.get(token, token) for token in arguments]
    tools = find_tools(package)
    if arguments[0] == "--help":
        assert all(map(explain, arguments[1:]))
        return
    if arguments == ["--version"]:
        assert main(arguments) == 0
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


@pytest.mark.slow
def test_the_comparison_with_imagenet_c_runs(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (command,) = [
        words[1:] for words in shell_commands() if words[:2] == ("python", "tests/support/stress_agreement.py")
    ]
    monkeypatch.setattr(sys, "argv", [str(run_folder) if token == "RUN" else token for token in command[:2]])
    runpy.run_path(str(ROOT / command[0]), run_name="__main__")
    assert capsys.readouterr().out.count("same ranking: True") == 6


@pytest.mark.slow
def test_the_page_lists_the_files_of_a_run(run_folder: Path) -> None:
    (shown,) = [code for page, code in blocks("") if page == "docs/run_folder.md"]
    listed = [name.strip("/") for line in shown.splitlines()[1:] for name in line[2:22].replace(",", "").split()]
    assert len(listed) > 15
    assert {file.name for file in run_folder.iterdir()} <= {*listed}


def test_keys_that_are_named_exist() -> None:
    params = {f"{section.prefix}.{name}" for section in sections() for name in section.params}
    known = {*params, "fit.stages", "fit.stages.all.size", *(section.prefix for section in sections())}
    named = {
        (page, key)
        for page, text in TEXTS.items()
        for key in re.findall(r"`'?((?:callbacks|data|fit|model|run)\.[a-z_][a-z0-9_.]*[a-z0-9_])(?=[`=])", text)
        if not key.endswith((".json", ".onnx", ".pt2", ".safetensors", ".yaml"))
        and page != "docs/upgrading.md"  # has keys of old versions
    }
    assert len(named) > 300
    assert [(page, key) for page, key in named if key not in known and key.rpartition(".")[0] not in params] == []


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
