"""A user's module of ops: its ops are like any other; mistakes in it are told in one message."""

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from augment import load_recipe
from augment.recipe.op import _OPS, OPS
from augment.recipe.plan import build_plan
from augment.recipe.steps import parse_aug
from augment.support.errors import UserError
from augment.support.user_code import load_plugins
from augment.tools.plan import main

SIZE = 64

PLUGIN = '''
"""Ops of a user's own."""

from augment.recipe.ops.geometry import stack
from augment.params import Number, Range
from augment.recipe.op import color, local


@color(
    weight_range=Range(default=(0.2, 0.6), within=(0, 1), doc="weight of the gray"),
    level=Number(default=100.0, within=(0, 255), doc="the gray"),
)
def fog(weight, level):
    """Blend the image with a gray."""
    keep, gray = 1 - weight, weight * level
    return stack((keep, 0, 0, gray), (0, keep, 0, gray), (0, 0, keep, gray))


@local(
    prepare=lambda size, steps: {"levels": 10 * steps.astype(int)},
    steps_range=Range(default=(1, 3), within=(0, 9), whole=True, doc="tens of levels"),
)
def lift(images, dali, levels):
    """Add some levels."""
    return dali.fn.cast_like(images + levels, images)
'''


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_registry: None) -> str:
    """Write a user's module and return its name."""
    (tmp_path / "my_own_ops.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "my_own_ops"


def test_plugin_is_an_op_like_any_other(plugin: str) -> None:
    assert "fog" not in OPS
    aug = parse_aug({"plugins": [plugin], "train": {"fog": {"p": 0.5, "weight_range": [0.25, 0.25]}}})
    plan = build_plan(aug, "train")
    assert "    fog  p 0.5  weight 0.25..0.25, level 100" in str(plan)
    drawn = {"fog": {"applied": np.array([True, False]), "weight": np.array([0.25, 0.25])}}
    expected = [np.c_[0.75 * np.eye(3), [25, 25, 25]], np.eye(3, 4)]
    np.testing.assert_allclose(plan.stages[0].matrix(drawn, plan.size), expected)
    with pytest.raises(UserError, match=r"^aug\.train\.fog\.wait_range: unknown key\. Did you mean 'weight_range'\?"):
        parse_aug({"plugins": [plugin], "train": {"fog": {"wait_range": [0, 1]}}})
    with pytest.raises(UserError, match=r"^aug\.train\.fg: unknown op 'fg'\. Did you mean 'fog'\?"):
        parse_aug({"plugins": [plugin], "train": {"fg": {}}})


def test_a_plugin_of_the_whole_run_may_declare_ops(plugin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"plugins=[{plugin}]", "+aug.train.fog.p=0.5"]) == 0
    assert "fog  p 0.5  weight 0.2..0.6, level 100" in capsys.readouterr().out


def test_a_recipe_is_pickled_with_the_names_of_its_ops(plugin: str) -> None:
    steps = {"one_of": {"p": 0.5, "steps": {"fog": {}, "lift": {"weight": 2}}}}
    recipe = load_recipe({"size": SIZE, "plugins": [plugin], "train": steps})
    pickled = pickle.dumps(recipe)
    for name in ("fog", "lift"):  # as in a process that has not imported the module
        _OPS.pop(name)
    del sys.modules[plugin]
    again = pickle.loads(pickled)
    assert [step.op for step in again.aug.train[0].steps] == [OPS["fog"], OPS["lift"]]
    assert str(build_plan(again.aug, "train")) == str(build_plan(recipe.aug, "train"))
    with pytest.raises(TypeError):
        again.aug.train[0].steps[0].params["level"] = 1.0


@pytest.mark.usefixtures("clean_registry")
def test_missing_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UserError, match=r"^aug\.plugins: .* module 'no_such_ops' in the current folder or on PYTHONPATH\.$"
    ):
        parse_aug({"plugins": ["no_such_ops"]})
    (tmp_path / "needs_another.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=r"No module named 'no_such_library' .*line 1"):
        load_plugins(("needs_another",), "aug.plugins")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"module 'need_another' .*\. Did you mean 'needs_another'\?$"):
        load_plugins(("need_another",), "aug.plugins")
