"""The generated parts of the README and docs/: tables, the recipe, the loop; run as a program, it updates them.

They are derived from the declarations, as the text of --help is.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from augment.cli.compose import compose_recipe
from augment.cli.config_files import CONF
from augment.cli.help_text import show_default, summary_of
from augment.data.sources import SOURCES, Source
from augment.params import Choice, Param, settings
from augment.recipe.equivalents import Equivalent, equivalents
from augment.recipe.op import OPS
from augment.recipe.plan import build_plan
from augment.support.yaml_files import read_yaml
from trainer.cli.help import sections
from trainer.loop.callback import known_callbacks, loop_text, parse_callbacks, sort_callbacks
from trainer.run.config.sweep_settings import SearchSettings
from trainer.run.train import loop_callbacks
from trainer.tasks.registry import known_tasks

ROOT = CONF.parent
CLUSTER_FILES = ("trainjob.yaml", "skypilot.yaml")


def op_table() -> str:
    """Return the table of ops in Markdown."""
    lines = ["| op | kind | what it does | parameters with their defaults |", "|---|---|---|---|"]
    for op in OPS.values():
        params = [f"`{name}` {_markdown(param)}" for name, param in op.own_params.items()]
        lines.append(f"| `{op.name}` | {op.kind} | {_cell(summary_of(op.doc))} | {'<br>'.join(params) or 'none'} |")
    return "\n".join(lines) + "\n"


# What the values of `Op.channels` mean for a user.
CHANNELS = {
    "any": "any number of channels",
    "separable": "any number of channels. With `per_channel: true`, each channel gets its own random value",
    "separate": "any number of channels. Each channel always gets its own random value",
    "rgb": "red, green and blue, see `data.rgb`",
}


def channel_table() -> str:
    """Return a table of the channels that ops support in Markdown."""
    lines = ["| supported channels | ops |", "|---|---|"]
    for channels, meaning in CHANNELS.items():
        names = [f"`{op.name}`" for op in OPS.values() if op.channels == channels and op.kind != "policy"]
        lines.append(f"| {meaning} | {', '.join(names)} |")
    return "\n".join(lines) + "\n"


def source_table() -> str:
    """Return the table of sources in Markdown."""
    shared = settings(Source)
    lines = ["| `data=` | what it reads | required | optional |", "|---|---|---|---|"]
    for name, cls in SOURCES.items():
        own = {key: param for key, param in settings(cls).items() if shared.get(key) is not param}
        needed = ", ".join(f"`{key}`" for key, param in own.items() if param.required)
        optional = ", ".join(f"`{key}`" for key, param in own.items() if not param.required)
        doc = _cell(summary_of(cls.__doc__))
        lines.append(f"| `{name}` | {doc} | {needed} | {optional} |")
    lines.append(f"| all of them | | | {', '.join(f'`{key}`' for key in shared)} |")
    return "\n".join(lines) + "\n"


def is_missing(row: Equivalent) -> bool:
    """Return whether a row has no equivalent."""
    return not (row.steps or row.note)


def equivalent_table() -> str:
    """Return the table of other libraries' transforms in Markdown; rows of which no op is registered say so."""
    lines = ["| torchvision v2 | Albumentations | timm | here |", "|---|---|---|---|"]
    for row in sorted(equivalents(), key=is_missing):
        note = row.note[:1].upper() + row.note[1:] if row.steps else row.note
        here = "missing" if is_missing(row) else ". ".join(filter(None, (row.steps and f"`{row.steps}`", note)))
        lines.append(f"| {' | '.join((row.torchvision, row.albumentations, row.timm, here))} |")
    return "\n".join(lines) + "\n"


def settings_table(params: Mapping[str, Param[Any]], prefix: str) -> str:
    """Return a table of settings in Markdown."""
    lines = ["| key | default | allowed | meaning |", "|---|---|---|---|"]
    for name, param in params.items():
        default = "required" if param.required else f"`{show_default(param)}`"
        key = f"{prefix}.{name}" if prefix else name
        lines.append(f"| `{key}` | {default} | {_cell(param.allowed())} | {_cell(param.doc)} |")
    return "\n".join(lines) + "\n"


def configuration() -> str:
    """Return the reference of all configuration keys: a heading and a table for each section with settings."""
    parts: dict[str, str] = {}
    # Callbacks are registered in the order in which a process imports them.
    found = sorted(sections(), key=lambda section: section.prefix if section.prefix.startswith("callbacks.") else "")
    for section in found:
        title, _, doc = section.head.partition("  ") if "  " in section.head else section.head.partition(": ")
        title = f"`{title}`" if section.prefix else "Outside the sections"
        doc = _cell(doc).replace("progressive resizing", "[Progressive resizing](callbacks.md#progressive-resizing)")
        table = settings_table(section.params, section.prefix)
        if title in parts:
            parts[title] += table.split("\n", 2)[2]
        elif section.params:
            parts[title] = "\n".join([f"## {title}", "", *([doc, ""] if doc else []), table])
    return "\n".join(parts.values())


def metric_table() -> str:
    """Return a table of the metrics of each task in Markdown, with the forms of the names of single classes."""
    lines = ["| task | always | on request |", "|---|---|---|"]
    for _, task in sorted(known_tasks().items()):
        always = [f"`{metric.name}`" for metric in task.metrics if not metric.on_request and not metric.own]
        asked = [f"`{metric.name}`" for metric in task.metrics if metric.on_request and not metric.own]
        asked += [f"`{metric.stem}_{task.unit.upper()}`" for metric in task.metrics if task.has_units(metric)]
        asked += ["`topK`"] if any(metric.name == "top5" for metric in task.metrics) else []
        lines.append(f"| `{task.name}` | {', '.join(always)} | {', '.join(asked) or 'none'} |")
    return "\n".join(lines) + "\n"


def default_loop() -> str:
    """Return the loop with the callbacks of the default configuration."""
    configured = read_yaml(CONF / "callbacks" / "default.yaml")
    callbacks = [known_callbacks()[name](**values) for name, values in parse_callbacks(configured).items()]
    return loop_text(sort_callbacks([*loop_callbacks({}), *callbacks]))


def imagenette_plan() -> str:
    """Return the plan of the training recipe above."""
    return str(build_plan(compose_recipe(["aug=imagenette"]).aug, "train"))


def public_names(package: str) -> str:
    """Return a table of the names that a package exports, each with the first line of its docstring."""
    module = import_module(package)
    rows = [f"| `{name}` | {_cell(summary_of(getattr(module, name).__doc__))} |" for name in module.__all__]
    return "\n".join(["| name | description |", "|---|---|", *rows]) + "\n"


def pages() -> list[Path]:
    """Return the README and the pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@cache
def derived_parts() -> dict[str, str]:
    """Return the generated parts of the pages by the name of their marks."""
    recipe = (CONF / "aug" / "imagenette.yaml").read_text()
    return {
        "recipe": f"```yaml\n# conf/aug/imagenette.yaml\n{recipe}```\n",
        "plan": f"```\n{imagenette_plan()}\n```\n",
        "sources": source_table(),
        "ops": op_table(),
        "channels of ops": channel_table(),
        "equivalents": equivalent_table(),
        "search": settings_table(settings(SearchSettings), "hydra.sweeper"),
        "configuration": configuration(),
        "names of augment": public_names("augment"),
        "names of trainer": public_names("trainer"),
        "metrics": metric_table(),
        "loop": f"```\n{default_loop()}\n```\n",
        **{name: f"```yaml\n{(ROOT / 'docs/cluster' / name).read_text()}```\n" for name in CLUSTER_FILES},
    }


def with_derived_parts(text: str) -> str:
    """Return a page with its generated parts updated, each between <!-- name --> and <!-- /name -->."""
    for name, part in derived_parts().items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        if begin:
            _, end, after = rest.partition(f"<!-- /{name} -->")
            text = before + begin + part + end + after
    return text


def _cell(text: str) -> str:
    """Return a text for a cell, with marks of Markdown escaped outside code."""
    parts = [re.sub(r"([|*<[])", r"\\\1", part) if i % 2 == 0 else part for i, part in enumerate(text.split("`"))]
    return "`".join(parts)


def _markdown(param: Param[Any]) -> str:
    """Return default and doc of a parameter, and its allowed values where these are a few names."""
    names = f"; {param.allowed()}" if isinstance(param, Choice) else ""
    return f"({show_default(param)}) {_cell(param.doc + names)}"


if __name__ == "__main__":
    for page in pages():
        page.write_text(with_derived_parts(page.read_text()))
