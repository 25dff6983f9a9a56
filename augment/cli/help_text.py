"""Help texts about settings and ops, generated from their declarations."""

import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from augment.params import Param, plain_value
from augment.recipe.equivalents import equivalents, op_like
from augment.recipe.op import OPS, find_op
from augment.recipe.op_kinds import KINDS, Op


def print_help(text: str) -> None:
    """Print a help text. In a terminal, wrap its lines."""
    if sys.stdout.isatty():
        text = "\n".join(map(_wrapped, text.splitlines())) + "\n"
    sys.stdout.write(text)


def _wrapped(line: str) -> str:
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    columns = shutil.get_terminal_size().columns
    return textwrap.fill(line, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def rows(params: Mapping[str, Param[Any]]) -> Iterator[str]:
    """Yield a line for each parameter: its description, allowed values and default."""
    for name, param in params.items():
        default = "required" if param.required else f"default {show_default(param)}"
        yield f"{name}: {param.doc} ({param.allowed()}; {default})"


def columns(texts: Mapping[str, str]) -> list[str]:
    """Return lines of two columns: names and their texts."""
    width = max(map(len, texts), default=0)
    return [f"  {name:<{width}}  {text}".rstrip() for name, text in texts.items()]


def show_default(param: Param[Any]) -> str:
    """Return the default of a parameter as users write it."""
    if param.default is None:
        return "null"
    return "[]" if param.default == () else param.show(param.default)


def summary_of(doc: str | None) -> str:
    """Return the first paragraph of a docstring as one line."""
    return re.sub(r"\s+", " ", (doc or "").split("\n\n")[0]).strip()


def op_list() -> str:
    """Return a line for each op, by kind."""
    lines = []
    for kind in KINDS:
        ops = {op.name: summary_of(op.doc) for op in OPS.values() if op.kind == kind}
        lines += [f"{kind} ops", *columns(ops), ""]
    return "\n".join([*lines, "`python -m augment ops NAME` describes an op, with its parameters and an example.\n"])


def explain_op(name: str, key: str) -> str:
    """Return the help page of an op: its parameters, an example, and its names in other libraries.

    Args:
        name: the op, or an equivalent transform of another library.
        key: the key or flag that named the op, for the error message.
    """
    op = find_op(name if name in OPS else op_like(name) or name, key)
    lines = [f"{op.name} ({op.kind}): {op.doc}", "", "parameters"]
    lines += [f"  {row}" for row in rows({**op.own_params, **op.params})] or ["  none"]
    lines += ["", "example: a step of aug.train in a file of conf/aug, and on the command line", f"  {example(op)}"]
    module = op.function.__module__
    plugin, gallery = "", f", or gallery.html#{op.name} on the website"
    if module.partition(".")[0] != "augment":
        plugin, gallery = f" aug.plugins=[{module}]", ""
    if "p" in op.params and not op.nests:
        lines.append(f"  python -m trainer aug=imagenette aug.train.{op.name}.p=0.5{plugin}")
    lines += ["", f"images: python -m augment preview --op {op.name}{plugin}{gallery}"]
    for row in equivalents():
        ops = [(params or {}).get("op", step) for step, params in row.parsed().items()]
        if op.name in ops:
            others = {"torchvision": row.torchvision, "albumentations": row.albumentations, "timm": row.timm}
            theirs = ", ".join(f"{text} of {library}" for library, text in others.items() if text)
            lines.append(f"{theirs}: {row.steps}")
    return "\n".join(lines) + "\n"


def example(op: Op) -> str:
    """Return an example step of an op as YAML, with p 0.5 and the op's defaults."""
    values: dict[str, Any] = {"p": 0.5} if "p" in op.params else {}
    values |= {name: plain_value(param.default) for name, param in op.own_params.items() if param.default is not None}
    if op.nests:
        values["steps"] = {"flip": {}, "grayscale": {}}
    text = yaml.safe_dump({op.name: values}, default_flow_style=True, sort_keys=False, width=10_000)
    return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.4g}", text.strip()[1:-1])
