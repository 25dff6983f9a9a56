"""Reference texts for README and --help, derived from the declarations."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from augment.config import Aug
from augment.params import Param, settings
from augment.registry import OPS
from augment.sources import SOURCES
from trainer.callbacks import CALLBACKS
from trainer.config import Fit
from trainer.models import MODELS

_USAGE = """\
python -m trainer [+aug=NAME] [data=NAME] [model=NAME] [fit=NAME] [key=value ...]     train
python -m trainer -m key=value,value ...                                              sweep: a run for each
python -m trainer fit.resume=RUN_FOLDER                                               go on with a run
python -m trainer.evaluate RUN_FOLDER [data=folder data.root=DIR]                     score its best model
python -m trainer --cfg job ...                                                       show what is composed
"""


def help_text(groups: Sequence[str]) -> str:
    """Return the text of --help.

    Args:
        groups: config groups, whose files lie in conf/.
    """
    lines = [_USAGE, f"Groups of files in conf/: {', '.join(groups)}", ""]
    lines += _section("fit", settings(Fit))
    lines += _section("aug", settings(Aug))
    for title, registry in (("data", SOURCES), ("model", MODELS), ("callbacks", CALLBACKS)):
        for name, cls in registry.items():
            prefix = f"callbacks.{name}" if title == "callbacks" else title
            lines += _section(prefix, settings(cls), head=f"{title}={name}  {_first_line(cls.__doc__)}")
    lines.append("aug.train.<step>, aug.val.<step>: the ops")
    for op in OPS.values():
        lines.append(f"  {op.name} ({op.kind})  {_first_line(op.doc)}")
        lines += [f"    {row}" for row in _rows(op.params)]
    return "\n".join(lines) + "\n"


def op_table() -> str:
    """Return the table of ops in Markdown."""
    lines = ["| op | kind | what it does | parameters (default) |", "|---|---|---|---|"]
    for op in OPS.values():
        params = [f"`{name}` {_markdown(param)}" for name, param in op.own_params.items()]
        lines.append(f"| `{op.name}` | {op.kind} | {_first_line(op.doc)} | {'<br>'.join(params) or 'none'} |")
    return "\n".join(lines) + "\n"


def _section(prefix: str, params: Mapping[str, Param[Any]], head: str | None = None) -> list[str]:
    return [head or prefix, *(f"  {prefix}.{row}" for row in _rows(params)), ""]


def _rows(params: Mapping[str, Param[Any]]) -> Iterator[str]:
    for name, param in params.items():
        default = "required" if param.required else f"default {_default(param)}"
        yield f"{name}: {param.doc}; {param.allowed()}; {default}"


def _markdown(param: Param[Any]) -> str:
    return f"{param.doc}; {param.allowed()} ({_default(param)})"


def _default(param: Param[Any]) -> str:
    if param.default is None:
        return "null"
    return "[]" if param.default == () else param.show(param.default)


def _first_line(doc: str | None) -> str:
    return re.sub(r"\s+", " ", (doc or "").split("\n\n")[0]).strip()
