"""What the README says is true: derived parts, commands, keys, and the examples of one's own op and callback."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import augment.registry
import trainer.callbacks
from augment.compose import compose
from augment.config import parse_aug
from augment.plan import build_plan
from augment.sampler import Sampler
from trainer.config import parse_config
from trainer.reference import README, with_derived_parts

TEXT = README.read_text()
CODE = {block.splitlines()[0].split()[1].rstrip(","): block for block in re.findall(r"```python\n(.*?)```", TEXT, re.S)}


def test_derived_parts_are_up_to_date():
    assert with_derived_parts(TEXT) == TEXT, "run: python -m trainer.reference"


def test_nothing_is_left_to_fill_in():
    assert "@@" not in TEXT


def test_pictures_and_modules_exist():
    for path in [*re.findall(r"!\[[^]]*\]\(([^)]+)\)", TEXT), *re.findall(r"`((?:augment|trainer)/\w+\.py)`", TEXT)]:
        assert (README.parent / path).is_file(), path


def commands():
    lines = [line.split("#")[0].strip() for line in TEXT.splitlines() if re.match(r"    .*python -m trainer ", line)]
    return [line.split("python -m trainer ")[1].strip() for line in lines]


@pytest.mark.parametrize("command", commands())
def test_commands_compose(command, tmp_path, monkeypatch):
    tokens = [t for t in command.split() if not t.startswith("-") and "resume" not in t]
    # What is swept is composed value by value.
    tokens = [t if "[" in t else t.split(",")[0] for t in tokens]
    assert parse_config(compose(tokens)).fit.epochs >= 1


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """The README's modules, importable; what they register is taken back."""
    for name, code in CODE.items():
        (tmp_path / name).write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    ops, callbacks = dict(augment.registry._OPS), dict(trainer.callbacks._CALLBACKS)
    yield
    for registry, before in ((augment.registry._OPS, ops), (trainer.callbacks._CALLBACKS, callbacks)):
        registry.clear()
        registry.update(before)
    for name in CODE:
        sys.modules.pop(Path(name).stem, None)


def test_an_op_of_ones_own(modules):
    aug = parse_aug({"plugins": ["my_ops"], "train": {"fade": {"amount_range": [0.25, 0.25]}, "brightness": {}}})
    plan = build_plan(aug, "train")
    assert len(plan.stages) == 1
    draws = Sampler(plan, seed=0).draw(0, 0, 3)
    matrix = augment.registry.OPS["fade"].function(draws["fade"]["amount"])
    assert matrix.shape == (3, 3, 4)
    # A quarter of (100, 0, 0) turns into its gray, 29.9.
    np.testing.assert_allclose(matrix[0] @ [100, 0, 0, 1], [82.475, 7.475, 7.475])


def test_a_callback_of_ones_own(modules):
    import my_callbacks

    (make,) = trainer.callbacks.parse_callbacks({"stop_early": {"patience": 5}})
    assert isinstance(make(), my_callbacks.StopEarly)
    assert make().patience == 5


def test_the_test_command_is_the_one_that_ci_runs():
    assert len(re.findall(r"&& pytest$", TEXT, re.M)) == 1
    assert 'grep -m 1 "&& pytest$" README.md' in (README.parent / ".ci" / "run").read_text()
