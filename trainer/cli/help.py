"""The text of `python -m trainer --help`, derived from the declarations."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from augment.cli.compose import TOP
from augment.cli.conf import CONFIG_DIR_FLAG, CONFIG_DIR_HELP, EXPERIMENT, config_files
from augment.cli.tools import list_own_files, list_tools
from augment.data.sources import SOURCES, Source
from augment.params import Param, settings
from augment.recipe.kinds import COMMON
from augment.recipe.op import OPS
from augment.recipe.steps import Aug
from augment.recipe.views import View, Views
from trainer.callbacks.registry import known_callbacks
from trainer.loop.stages import StageSettings
from trainer.models.registry import MODELS
from trainer.optim.settings import OptimizerSettings
from trainer.run.fit import Fit
from trainer.run.labels import RunLabels
from trainer.run.sweeping import LAUNCHERS, SearchSettings

_USAGE = """\
usage: python -m trainer [TOOL] [-m] [--cfg job] [+aug=NAME] [data=NAME] [model=NAME] [key=value ...]

Without the name of a tool, it trains. Each key=value changes one of the settings below.

  -m                       train once for each combination of comma-separated values
  fit.resume=RUN_FOLDER    resume a run; with --trust, also one that names code of your own
  --cfg job                print the configuration and exit
  --version                print the version and exit
"""


def help_text(groups: Sequence[str]) -> str:
    """Return the text of --help, with the config groups of conf/."""
    lines = [_USAGE]
    for package in ("trainer", "augment"):
        lines += [f"tools of python -m {package}", list_tools(package)]
    lines += [f"{CONFIG_DIR_FLAG} DIR: {CONFIG_DIR_HELP}", "", "files in conf/, chosen by GROUP=NAME"]
    lines += [f"  {group}: {', '.join(config_files(group))}" for group in groups if group != EXPERIMENT]
    lines += [list_own_files(), "experiment=NAME", *(f"  {name}: {text}" for name, text in experiments().items()), ""]
    optimizer, shared = settings(OptimizerSettings), settings(Source)
    fit = {name: param for name, param in settings(Fit).items() if name not in optimizer}
    launchers = [("hydra.launcher", settings(cls), f"hydra/launcher={name}  {summary_of(cls.__doc__)}")
                 for name, cls in LAUNCHERS.items()]  # fmt: skip
    sections: list[tuple[str, Mapping[str, Param[Any]], str]] = [
        ("run", settings(RunLabels), "run: its name and tags"),
        ("hydra.sweeper", settings(SearchSettings), "hydra/sweeper=optuna: a search, with -m"),
        *launchers,
        ("fit", fit, "fit"),
        ("fit", optimizer, "fit: the optimizer"),
        ("fit.stages.<stage>", settings(StageSettings), "fit.stages.<stage>: sizes that change over epochs"),
        ("aug", settings(Aug), "aug"),
        ("aug.views", settings(Views), "aug.views: several views of each train image, by the same steps"),
        ("aug.views.<view>", settings(View), "aug.views.<view>: a view with `steps` of its own"),
        ("data", shared, "data: settings of every source"),
    ]
    lines += [*_rows(TOP), "", *(line for section in sections for line in _section(*section))]
    for title, registry, key in (
        ("data", SOURCES, "data.source="),
        ("model", MODELS, "model.kind="),
        ("callbacks", known_callbacks(), "callbacks."),
    ):
        files = config_files(title)
        for name, cls in registry.items():
            prefix = f"callbacks.{name}" if title == "callbacks" else title
            chosen = f"{title}={name}" if name in files else f"{key}{name}"
            own = {name: param for name, param in settings(cls).items() if shared.get(name) is not param}
            lines += _section(prefix, own, f"{chosen}  {summary_of(cls.__doc__)}")
    lines += ["aug.train.<step>, aug.val.<step>: the ops", *_common_rows()]
    for op in OPS.values():
        lines.append(f"  {op.name} ({op.kind})  {summary_of(op.doc)}")
        lines += [f"    {row}" for row in _rows(op.own_params)]
    return "\n".join(lines) + "\n"


def experiments() -> dict[str, str]:
    """Return the experiments, each with the first sentence of its comment."""
    return {name: _comment(file.read_text()) for name, file in config_files(EXPERIMENT).items()}


def _comment(text: str) -> str:
    comments = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")]
    whole = " ".join(line for line in comments if not line.startswith("@package"))
    return re.split(r"(?<=\.) (?=[A-Z])", whole)[0]


def _section(prefix: str, params: Mapping[str, Param[Any]], head: str) -> list[str]:
    return [head, *(f"  {prefix}.{row}" for row in _rows(params)), ""]


def _rows(params: Mapping[str, Param[Any]]) -> Iterator[str]:
    for name, param in params.items():
        default = "required" if param.required else f"default {show_default(param)}"
        yield f"{name}: {param.doc} ({param.allowed()}; {default})"


def _common_rows() -> Iterator[str]:
    """Yield the parameters that all ops of a kind share; crops, which are applied to every image, have none."""
    kinds = {kind: params for kind, params in COMMON.items() if params}
    shared = {name: param for name, param in kinds["geometry"].items() if all(name in p for p in kinds.values())}
    yield "  all of them except crops take"
    yield from (f"    {row}" for row in _rows(shared))
    for kind, params in kinds.items():
        if rest := {name: param for name, param in params.items() if name not in shared}:
            yield f"  those of kind {kind} also take"
            for name, row in zip(rest, _rows(rest), strict=True):
                yield f"    {row}"
                if without := [op.name for op in OPS.values() if op.kind == kind and name not in op.params]:
                    yield f"      all but {', '.join(without)}"


def show_default(param: Param[Any]) -> str:
    """Return the default of a parameter as users write it."""
    if param.default is None:
        return "null"
    return "[]" if param.default == () else param.show(param.default)


def summary_of(doc: str | None) -> str:
    """Return the first paragraph of a docstring as one line."""
    return re.sub(r"\s+", " ", (doc or "").split("\n\n")[0]).strip()
