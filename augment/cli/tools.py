"""Find the tools of a package, list them for `--help`, and run them by name."""

import ast
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from augment.cli.config_files import own_files
from augment.cli.parser import USAGE, readable_errors
from augment.support.errors import UserError

# Names of tools in other programs, and our equivalent commands.
_MEANT = {
    **dict.fromkeys(("train", "fit", "run"), "python -m trainer"),
    **dict.fromkeys(("test", "val", "validate", "score"), "python -m trainer evaluate"),
    **dict.fromkeys(("infer", "inference", "classify"), "python -m trainer predict"),
    **dict.fromkeys(("detect", "draw", "overlay", "visualize"), "python -m trainer predict --overlay"),
    **dict.fromkeys(("threshold", "thresholds"), "python -m trainer predict --threshold"),
    **dict.fromkeys(("audit", "clean"), "python -m trainer labels"),
    **dict.fromkeys(("robustness", "corruptions"), "python -m trainer stress"),
    **dict.fromkeys(("quantize", "quantization", "int8"), "python -m trainer export --variants int8"),
    **dict.fromkeys(("publish", "upload"), "python -m trainer push"),
    **dict.fromkeys(("list", "runs", "status"), "python -m trainer dashboard"),
    **dict.fromkeys(("init", "new", "config"), "python -m trainer --help"),
    **dict.fromkeys(("tune", "search"), "python -m trainer -m hydra/sweeper=optuna"),
    "resume": "fit.resume=RUN_FOLDER",
    "help": "--help",
    "version": "--version",
}


@dataclass(frozen=True)
class Tool:
    """A tool of a package."""

    module: str  # full name of the module whose `main` runs it
    summary: str  # one sentence

    def run(self, arguments: Sequence[str]) -> int:
        """Import and run the tool, and return its exit code."""
        return int(import_module(self.module).main(arguments))


def find_tools(package: str) -> dict[str, Tool]:
    """Return the tools of a package by name, without importing them.

    A tool is a module in the package `tools`, or any package with a module `command`. The first line of its docstring
    is its summary.
    """
    root = Path(str(import_module(package).__file__)).parent
    files = [*root.glob("tools/[!_]*.py"), *root.glob("*/*/command.py"), *root.glob("*/command.py")]
    tools = {}
    for file in files:
        module = ".".join((package, *file.relative_to(root).with_suffix("").parts))
        summary = (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]
        summary = summary.rpartition("`: ")[2]  # some summaries begin with a command line
        name = file.parent.name if file.stem == "command" else file.stem
        tools[name] = Tool(module, summary[:1].upper() + summary[1:])
    return dict(sorted(tools.items()))


def list_tools(package: str) -> str:
    """Return lines with the name and the summary of each tool of a package."""
    tools = find_tools(package)
    width = max(map(len, tools))
    return "".join(f"  {name:<{width}}  {tool.summary}\n" for name, tool in tools.items())


def reject_tool(arguments: Sequence[str], package: str, *, only_similar: bool = False) -> None:
    """Reject a first argument that is not a tool, and suggest a tool of either package.

    With `only_similar`, accept a word that resembles no tool.
    """
    word, *rest = arguments
    folder = next((other for other in rest if other[:1] != "-" and "=" not in other), "RUN_FOLDER")
    own = find_tools(package)
    commands = {name: f"python -m {other} {name}" for other in ("trainer", "augment") for name in find_tools(other)}
    commands |= {name: f"'{name}'" for name in own}
    near = [word] if word in _MEANT else get_close_matches(word.lower(), [*commands, "train"], n=1)
    if near or not only_similar:
        hint = f" Did you mean {(commands | _MEANT)[near[0]].replace('RUN_FOLDER', folder)}?" if near else ""
        raise UserError(f"unknown tool '{word}'.{hint} Allowed: {', '.join(own)}.")


def print_version() -> int:
    """Print the version of dali-trainer, and return the exit code."""
    sys.stdout.write(f"dali-trainer {version('dali-trainer')}\n")
    return 0


def list_own_files() -> str:
    """Return a line with the overrides that choose the user's own config files, or an empty string."""
    return f"\nyour own files: {', '.join(files)}\n" if (files := own_files()) else ""


def run_tool(package: str, arguments: Sequence[str]) -> int:
    """Run the tool that the first argument names, or list the tools. Return the exit code."""
    name, *rest = arguments or ["--help"]
    with readable_errors():
        if name in ("-h", "--help"):
            sys.stdout.write(
                f"usage: python -m {package} TOOL ...\n\ntools:\n{list_tools(package)}{list_own_files()}\n"
                f"`python -m {package} TOOL --help` describes a tool.\n"
            )
            return 0 if arguments else USAGE
        if name == "--version":
            return print_version()
        tools = find_tools(package)
        if name not in tools:
            reject_tool([name, *rest], package)
        return tools[name].run(rest)
