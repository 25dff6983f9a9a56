"""Reference texts: nothing that is declared may be missing from them."""

from itertools import pairwise
from typing import Any

import pytest

from augment.cli.conf import CONF
from augment.cli.tools import find_tools
from augment.data.sources import SOURCES
from augment.params import Param, settings
from augment.recipe.kinds import COMMON, Op
from augment.recipe.op import OPS
from augment.recipe.steps import Aug
from trainer.callbacks.registry import known_callbacks
from trainer.models.registry import MODELS
from trainer.run.fit import Fit
from trainer.tools.reference import experiments, help_text, op_table

HELP = help_text(["aug", "data"])
LINES = [line.strip() for line in HELP.splitlines()]


def assert_row(name: str, param: Param[Any]) -> None:
    """There is a line that begins with the name and says what it does and what is allowed."""
    rows = [line for line in LINES if line.startswith(f"{name}: {param.doc} ({param.allowed()}; ")]
    assert rows, name
    if param.required:
        assert all(row.endswith("; required)") for row in rows)
    elif param.default is None:
        assert any(row.endswith("; default null)") for row in rows)
    elif isinstance(param.default, bool):
        assert any(row.endswith("; default true)" if param.default else "; default false)") for row in rows)
    elif isinstance(param.default, str | int) and not param.unit:
        assert any(row.endswith(f"; default {param.default})") for row in rows)


@pytest.mark.parametrize(
    ("prefix", "cls"),
    [
        ("fit", Fit),
        ("aug", Aug),
        *(("data", cls) for cls in SOURCES.values()),
        *(("model", cls) for cls in MODELS.values()),
        *((f"callbacks.{name}", cls) for name, cls in known_callbacks().items()),
    ],
)
def test_every_setting_is_in_the_help(prefix: str, cls: type) -> None:
    for name, param in settings(cls).items():
        assert_row(f"{prefix}.{name}", param)


@pytest.mark.parametrize(
    ("title", "registry"), [("data", SOURCES), ("model", MODELS), ("callbacks", known_callbacks())]
)
def test_every_name_is_in_the_help(title: str, registry: dict[str, type]) -> None:
    assert registry
    for name, cls in registry.items():
        assert cls.__doc__
        first = " ".join(cls.__doc__.split("\n\n")[0].split())
        file = CONF / title / f"{name}.yaml"
        assert f"{f'{title}={name}' if file.exists() else f'callbacks.{name}'}  {first}" in LINES


def test_what_an_experiment_is_for_is_a_whole_sentence() -> None:
    assert all(text.endswith(".") for text in experiments().values())


def test_every_experiment_is_in_the_help() -> None:
    files = list((CONF / "experiment").glob("*.yaml"))
    assert files
    for file in files:
        mark, comment, *_ = file.read_text().splitlines()
        assert mark == "# @package _global_"
        assert any(line.startswith(f"{file.stem}: {comment.removeprefix('# ').partition('. ')[0]}") for line in LINES)


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_every_op_and_parameter_is_in_the_help(op: Op) -> None:
    head = next(index for index, line in enumerate(LINES) if line.startswith(f"{op.name} ({op.kind})  "))
    block = LINES[head + 1 : head + 1 + len(op.own_params)]
    assert [row.split(":")[0] for row in block] == list(op.own_params)
    for name, param in op.own_params.items():
        assert_row(name, param)


@pytest.mark.parametrize("name", ["seed", "plugins"])
def test_the_keys_outside_of_sections_are_in_the_help(name: str) -> None:
    assert [line for line in LINES if line.startswith(f"{name}: ") and "; default " in line]


def test_the_files_of_each_group_are_in_the_help() -> None:
    assert [line.split(", ")[:2] for line in LINES if line.startswith(("aug: ", "data: "))][:2] == [
        ["aug: auto_augment", "byol"],
        ["data: filelist", "folder"],
    ]


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


def test_ops_without_a_parameter_that_their_kind_shares_are_named() -> None:
    shared = LINES[LINES.index("those of kind geometry also take") :][:7]
    after = {line.split(":")[0]: following for line, following in pairwise(shared)}
    assert after["fill"] == "all but flip, rot90"
    assert after["draw"] == "all but flip"


def test_the_help_fits_a_wide_terminal() -> None:
    assert HELP.endswith("\n")
    assert "\n\n\n" not in HELP


def test_the_op_table_has_a_row_for_each_op() -> None:
    head, ruler, *rows = op_table().splitlines()
    assert head == "| op | kind | what it does | parameters with their defaults |"
    assert ruler == "|---|---|---|---|"
    assert [row.split("`")[1] for row in rows] == list(OPS)
    for row, op in zip(rows, OPS.values(), strict=True):
        cells = row.strip("| ").split(" | ")
        assert len(cells) == 4, "a cell has a bar or a line break of its own"
        assert cells[:2] == [f"`{op.name}`", op.kind]
        assert cells[2] == " ".join(op.doc.split("\n\n")[0].split())
        for name, param in op.own_params.items():
            shown = "null" if param.default is None else param.show(param.default)
            assert f"`{name}` ({shown}) {param.doc}" in cells[3]
        if not op.own_params:
            assert cells[3] == "none"


def test_a_row_by_hand() -> None:
    row = next(line for line in op_table().splitlines() if line.startswith("| `rotate`"))
    assert row == (
        "| `rotate` | geometry | Rotate the image about its center. | "
        "`angle_range` (-7..7 deg) angle, counter-clockwise |"
    )
    row = next(line for line in op_table().splitlines() if line.startswith("| `flip`"))
    assert row.endswith("| `direction` (horizontal) direction of mirroring; horizontal, vertical |")
