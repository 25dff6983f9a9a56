"""Reference texts: nothing that is declared may be missing from them."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from generated import op_table

from augment.cli.conf import CONF
from augment.cli.tools import find_tools
from augment.data.sources import SOURCES
from augment.params import Param, settings
from augment.recipe.kinds import COMMON
from augment.recipe.op import OPS
from augment.recipe.steps import Aug
from trainer.callbacks.registry import known_callbacks
from trainer.cli.help import experiments, help_text
from trainer.models.registry import MODELS
from trainer.run.fit import Fit

HELP = help_text(["aug", "data"])
LINES = [line.strip() for line in HELP.splitlines()]


def assert_row(name: str, param: Param[Any]) -> None:
    """There is a line that begins with the name and says what it does, what is allowed, and the default."""
    default = "[]" if param.default == () else param.show(param.default)
    end = "required" if param.required else f"default {default}"
    assert f"{name}: {param.doc} ({param.allowed()}; {end})" in LINES


def test_every_setting_and_every_name_is_in_the_help() -> None:
    registries: dict[str, Mapping[str, type]] = {"data": SOURCES, "model": MODELS, "callbacks": known_callbacks()}
    sections: list[tuple[str, type]] = [("fit", Fit), ("aug", Aug)]
    for title, registry in registries.items():
        for name, cls in registry.items():
            sections.append((f"callbacks.{name}" if title == "callbacks" else title, cls))
            first = " ".join((cls.__doc__ or "").split("\n\n")[0].split())
            file = CONF / title / f"{name}.yaml"
            assert f"{f'{title}={name}' if file.exists() else f'callbacks.{name}'}  {first}" in LINES
    for prefix, cls in sections:
        for name, param in settings(cls).items():
            assert_row(f"{prefix}.{name}", param)
    for name in ("seed", "plugins"):
        assert [line for line in LINES if line.startswith(f"{name}: ") and "; default " in line]


def test_every_experiment_is_in_the_help() -> None:
    files = list((CONF / "experiment").glob("*.yaml"))
    assert files
    for file in files:
        mark, comment, *_ = file.read_text().splitlines()
        assert mark == "# @package _global_"
        assert any(line.startswith(f"{file.stem}: {comment.removeprefix('# ').partition('. ')[0]}") for line in LINES)
    assert all(text.endswith(".") for text in experiments().values())


def test_every_op_and_parameter_is_in_the_help() -> None:
    for op in OPS.values():
        head = next(index for index, line in enumerate(LINES) if line.startswith(f"{op.name} ({op.kind})  "))
        block = LINES[head + 1 : head + 1 + len(op.own_params)]
        assert [row.split(":")[0] for row in block] == list(op.own_params)
        for name, param in op.own_params.items():
            assert_row(name, param)


def test_the_commands_are_in_the_help() -> None:
    assert LINES[0].startswith("usage: python -m trainer [TOOL] [-m]")
    for package in ("augment", "trainer"):
        for name, tool in find_tools(package).items():
            assert [line for line in LINES if line.split()[:1] == [name] and line.endswith(tool.summary)]


def test_what_all_ops_share_is_said_once() -> None:
    for params in COMMON.values():
        for name, param in params.items():
            assert_row(name, param)
    assert len([line for line in LINES if line.startswith("p: probability")]) == 1
    shared = LINES[LINES.index("those of kind geometry also take") :][:7]
    after = {line.split(":")[0]: following for line, following in pairwise(shared)}
    assert (after["fill"], after["draw"]) == ("all but flip, rot90", "all but flip")


def test_the_op_table_has_a_row_for_each_op() -> None:
    _, _, *rows = op_table().splitlines()
    assert [row.split("`")[1] for row in rows] == list(OPS)
    assert {row.count(" | ") for row in rows} == {3}, "a cell has a bar or a line break of its own"
    by_hand = "| `rotate` | geometry | Rotate the image about its center. | `angle_range` (-7..7 deg) angle, counter-cl"
    assert [row for row in rows if row.startswith(by_hand)]
    assert [row for row in rows if "(horizontal) direction of mirroring; horizontal, vertical |" in row]
