"""What holds for every op in the registry, so that a new op is tested by its declaration; and plugins."""

import itertools
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from op_cases import APPLIED, LEAVES, MATRICES, given, label, plan_with, variants

from augment import load_recipe
from augment.data.dataset import Split
from augment.params import Count, Number, Range
from augment.pipeline.loader import Loader
from augment.recipe.op import (
    _OPS,
    OPS,
    Op,
    batch,
    color,
    combinator,
    crop,
    find_op,
    geometry,
    load_plugins,
    local,
    policy,
)
from augment.recipe.plan import Plan, build_plan
from augment.recipe.sampler import Sampler
from augment.recipe.stage import step_matrix
from augment.recipe.steps import parse_aug, parse_steps, plain_steps
from augment.support.errors import UserError
from trainer.tools.reference import op_table

SIZE = 64
COUNT = 400

EVERY_OP = pytest.mark.parametrize("op", OPS.values(), ids=OPS)
EVERY_APPLIED_OP = pytest.mark.parametrize("op", APPLIED, ids=lambda op: op.name)
EVERY_LEAF = pytest.mark.parametrize("op", LEAVES, ids=lambda op: op.name)

_MATRICES = [(op, params) for op in MATRICES for params in variants(op)]
EVERY_MATRIX = pytest.mark.parametrize(("op", "params"), _MATRICES, ids=map(label, _MATRICES))
_GEOMETRY = [(op, params) for op, params in _MATRICES if op.kind == "geometry"]


def one_op(op: Op, **params: Any) -> tuple[Plan, Any]:
    """Return the plan that has this op alone, and its draws for `COUNT` samples."""
    plan = plan_with(op, size=SIZE, **params)
    return plan, Sampler(plan, seed=5).draw(0, 0, COUNT)["tested"]


@EVERY_OP
def test_declaration_is_complete(op: Op) -> None:
    assert OPS[op.name] is op
    assert len(op.doc) > 10
    assert op.doc.split("\n\n")[0].endswith((".", ")"))
    for name, param in op.params.items():
        assert param.doc, name
        assert isinstance(param, Range) == name.endswith("_range"), name
    drawn = [*op.draws, *op.uniforms]
    assert len({"applied", "p", *drawn}) == 2 + len(drawn), "a value of that name is drawn already"
    assert set(op.neutral) <= set(drawn), "neutral are values that are drawn"
    assert op.nests <= (op.kind == "policy")


@EVERY_OP
def test_common_parameters_of_the_kind(op: Op) -> None:
    common = set(op.params) - set(op.own_params)
    expected = {"crop": set(), "geometry": {"p", "border", "fill", "draw"}}.get(op.kind, {"p"})
    if op.moves_inside:
        expected -= {"border", "fill"}
    assert common == (expected if op.draws or op.uniforms else expected - {"draw"})


@EVERY_OP
def test_defaults_are_allowed_values(op: Op) -> None:
    (step,) = parse_steps({op.name: given(op)}, "train")
    for name, param in op.params.items():
        assert param.required or param.optional or param.default is not None, name
        value = step.p if name == "p" else step.params[name]
        assert param.parse(value, name) == value
    assert parse_steps(plain_steps((step,)), "train") == (step,)


@EVERY_OP
def test_row_of_the_op_table(op: Op) -> None:
    rows = [row for row in op_table().splitlines() if row.startswith(f"| `{op.name}` | {op.kind} | ")]
    assert len(rows) == 1
    for name, param in op.own_params.items():
        assert re.search(rf"`{name}` \(.*\) {re.escape(param.doc)}", rows[0])


@EVERY_MATRIX
@pytest.mark.parametrize("p", [0.3, 1.0])
def test_matrices_have_shape_and_type(op: Op, params: dict[str, Any], p: float) -> None:
    plan, drawn = one_op(op, p=p, **params)
    whole = plan.stages[0].matrix({"tested": drawn}, SIZE)
    single = step_matrix(plan.steps[0], drawn, SIZE)
    columns = 7 if plan.stages[0].uses_mean else 4  # with the mean color of the image, or without
    assert whole.shape == (COUNT, 3, 3 if op.kind == "geometry" else columns)
    assert single.shape == ((COUNT, 3, 3) if op.kind == "geometry" else (COUNT, columns, columns))
    assert whole.dtype == single.dtype == np.float64
    assert np.isfinite(whole).all()
    if op.kind == "geometry":
        np.testing.assert_allclose(single[:, 2, 2], 1)
    else:
        np.testing.assert_array_equal(single[:, -1], np.broadcast_to(np.eye(columns)[-1], single[:, -1].shape))


@EVERY_MATRIX
def test_function_keeps_the_shape_it_documents(op: Op, params: dict[str, Any]) -> None:
    plan, drawn = one_op(op, **params)
    values = op.values(plan.steps[0].params, {name: v for name, v in drawn.items() if name != "applied"})
    matrix = op.function(size=SIZE, **values) if op.kind == "geometry" else op.function(**values)
    samples = (COUNT,) if len(drawn) > 1 else ()
    assert matrix.shape in {(*samples, 3, 3)} if op.kind == "geometry" else {(*samples, 3, 4), (*samples, 3, 7)}
    assert matrix.dtype == np.float64


@EVERY_LEAF
def test_a_range_of_one_value_draws_that_value(op: Op) -> None:
    highs = {name: op.params[name].default[1] for name in op.draws.values()}  # type: ignore[index]
    ranges: dict[str, Any] = {name: [high, high] for name, high in highs.items()}
    _, drawn = one_op(op, **ranges)
    for value, name in op.draws.items():
        assert (drawn[value] == highs[name]).all()


@EVERY_APPLIED_OP
def test_a_step_with_p_zero_is_not_in_the_plan(op: Op) -> None:
    plan = plan_with(op, p=0)
    assert plan.stages == ()
    assert plan.tree == ()
    assert [step.key for step in plan.skipped] == ["tested"]
    assert Sampler(plan, 0).draw(0, 0, 3) == {}


@EVERY_MATRIX
def test_identity_exactly_where_not_applied(op: Op, params: dict[str, Any]) -> None:
    plan, drawn = one_op(op, p=0.5, **params)
    matrix = step_matrix(plan.steps[0], drawn, SIZE)
    is_identity = (matrix == np.eye(matrix.shape[-1])).all(axis=(1, 2))
    assert 0.4 < drawn["applied"].mean() < 0.6
    assert is_identity[~drawn["applied"]].all()
    # Of a few whole values (quarter turns, orders of three channels) one is the identity too.
    changes = 1 if any(not isinstance(p, Range) or not p.whole for p in op.own_params.values()) else 0.65
    assert (~is_identity[drawn["applied"]]).mean() >= (changes if op.own_params else 0.65)


@pytest.mark.parametrize(("op", "params"), _GEOMETRY, ids=map(label, _GEOMETRY))
def test_geometry_matrices_are_invertible_at_all_extremes_of_the_allowed_ranges(op: Op, params: dict[str, Any]) -> None:
    plan, _ = one_op(op, **params)
    bounds = [op.params[name].within for name in op.draws.values()]  # type: ignore[attr-defined]
    assert np.isfinite(bounds).all(), "a geometry range needs bounds, or its matrix cannot be trusted"
    names = [*op.draws, *op.uniforms]
    corners = np.array(list(itertools.product(*bounds, *([(0, 1)] * len(op.uniforms)))), float)
    drawn = {"applied": np.ones(len(corners), bool)} | dict(zip(names, corners.T, strict=True))
    matrix = step_matrix(plan.steps[0], drawn, SIZE)
    np.testing.assert_allclose(np.linalg.inv(matrix) @ matrix, np.broadcast_to(np.eye(3), matrix.shape), atol=1e-9)
    assert (np.linalg.det(matrix) != 0).all()


def test_registry_cannot_be_written_by_accident() -> None:
    with pytest.raises(TypeError, match="does not support item assignment"):
        OPS["mine"] = OPS["rotate"]  # type: ignore[index]


def test_names_of_draws() -> None:
    assert OPS["rotate"].draws == {"angle": "angle_range"}
    assert OPS["warp"].draws == {"u": "magnitude_range", "v": "magnitude_range"}
    assert OPS["flip"].draws == {}
    assert OPS["random_resized_crop"].draws == {}, "DALI draws the window"


@pytest.mark.parametrize(
    ("given", "near"), [("rotat", "rotate"), ("random_resize_crop", "random_resized_crop"), ("Flip", "flip")]
)
def test_unknown_op_suggests_the_closest(given: str, near: str) -> None:
    with pytest.raises(UserError) as caught:
        find_op(given, "aug.train.step")
    message = str(caught.value)
    assert message.startswith(f"aug.train.step: unknown op '{given}'. Did you mean '{near}'? Allowed: affine, ")
    assert all(name in message for name in OPS)


# --- declarations that are refused, and a user's own ---


@pytest.mark.usefixtures("clean_registry")
def test_declaration_without_a_docstring_is_refused() -> None:
    def silent() -> None:
        pass

    for declare in (color(), geometry(), crop(), local(), batch(), policy(), combinator(lambda weights: [])):
        with pytest.raises(ValueError, match="op 'silent' needs a docstring"):
            declare(silent)
    assert "silent" not in OPS


@pytest.mark.usefixtures("clean_registry")
@pytest.mark.parametrize("name", ["p", "border", "fill"])
def test_declaration_of_a_common_parameter_is_refused(name: str) -> None:
    def mine() -> None:
        """Do something."""

    params: dict[str, Any] = {name: Number(doc="")}
    with pytest.raises(ValueError, match=f"op 'mine': {name} is a parameter of every geometry op"):
        geometry(**params)(mine)


@pytest.mark.usefixtures("clean_registry")
@pytest.mark.parametrize("declare", [crop, color, local, policy])
@pytest.mark.parametrize("name", ["op", "steps", "weight"])
def test_declaration_of_a_reserved_parameter_is_refused(declare: Any, name: str) -> None:
    def mine() -> None:
        """Do something."""

    with pytest.raises(ValueError, match=f"op 'mine': {name} is reserved for the step itself"):
        declare(**{name: Number(doc="")})(mine)
    assert "mine" not in OPS


@pytest.mark.usefixtures("clean_registry")
def test_redeclaring_an_op_of_another_module_is_refused_but_reloading_is_allowed() -> None:
    def rotate() -> None:
        """Do something else."""

    with pytest.raises(ValueError, match=r"op 'rotate' is already declared in augment\.recipe\.ops\.geometry"):
        color()(rotate)
    rotate.__module__ = "augment.recipe.ops.geometry"
    color()(rotate)
    assert OPS["rotate"].kind == "color"


@pytest.mark.usefixtures("clean_registry")
def test_draws_follow_the_declaration() -> None:
    @color(
        low_range=Range(default=(0.0, 1.0), doc="one draw, named after the parameter"),
        pair_range=Range(default=(0.0, 1.0), draws=("left", "right"), doc="two draws"),
        level=Number(default=3.0, doc="fixed"),
    )
    def mine(low: Any, left: Any, right: Any, level: float) -> None:
        """Do something."""

    op = OPS["mine"]
    assert op.draws == {"low": "low_range", "left": "pair_range", "right": "pair_range"}
    drawn = {"low": np.zeros(2), "left": np.ones(2), "right": np.ones(2)}
    params = {"low_range": (0.0, 1.0), "pair_range": (0.0, 1.0), "level": 4.0}
    assert op.values(params, drawn) == drawn | {"level": 4.0}


PLUGIN = '''
"""Ops of a user's own."""

import numpy as np

from augment.recipe.ops.geometry import stack
from augment.params import Number, Range
from augment.recipe.op import color, geometry, local


@color(
    weight_range=Range(default=(0.2, 0.6), within=(0, 1), doc="weight of the gray"),
    level=Number(default=100.0, within=(0, 255), doc="the gray"),
)
def fog(weight, level):
    """Blend the image with a gray."""
    keep, gray = 1 - weight, weight * level
    return stack((keep, 0, 0, gray), (0, keep, 0, gray), (0, 0, keep, gray))


@geometry(moves_inside=True)
def transpose(size):
    """Swap rows and columns."""
    return np.array([[0.0, 1, 0], [1, 0, 0], [0, 0, 1]])


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
    aug = parse_aug({"plugins": [plugin], "train": {"fog": {"p": 0.5, "weight_range": [0.25, 0.25]}, "transpose": {}}})
    assert (OPS["fog"].kind, OPS["transpose"].kind) == ("color", "geometry")
    assert "| `fog` | color | Blend the image with a gray. | `weight_range` (" in op_table()
    assert "| `transpose` | geometry | Swap rows and columns. | none |" in op_table()
    plan = build_plan(aug, "train")
    assert "    fog  p 0.5  weight 0.25..0.25, level 100" in str(plan)
    drawn = {"fog": {"applied": np.array([True, False]), "weight": np.array([0.25, 0.25])}}
    expected = [np.c_[0.75 * np.eye(3), [25, 25, 25]], np.eye(3, 4)]
    np.testing.assert_allclose(plan.stages[0].matrix(drawn, SIZE), expected)
    with pytest.raises(UserError, match=r"^aug\.train\.fog\.wait_range: unknown key\. Did you mean 'weight_range'\?"):
        parse_aug({"plugins": [plugin], "train": {"fog": {"wait_range": [0, 1]}}})
    with pytest.raises(UserError, match=r"^aug\.train\.fg: unknown op 'fg'\. Did you mean 'fog'\?"):
        parse_aug({"plugins": [plugin], "train": {"fg": {}}})


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


def test_plugin_runs(plugin: str, photos: tuple[Path, ...], device: torch.device) -> None:
    def run(steps: dict[str, Any]) -> np.ndarray[Any, Any]:
        plan = build_plan(parse_aug({"size": SIZE, "plugins": [plugin], "val": steps}), "val")
        split = Split(photos, (0,) * len(photos))
        (batch,) = Loader(plan, split, batch_size=len(photos), seed=0, device=device, raw=True)
        return batch.images.cpu().numpy().astype(float)

    plain = run({})
    fogged = run({"transpose": {}, "fog": {"weight_range": [0.25, 0.25]}})
    # Rounding; on the GPU results may be off by one, where a product of floats is close to a half.
    np.testing.assert_allclose(fogged, 0.75 * plain.transpose(0, 1, 3, 2) + 25, atol=1.01)
    lifted = run({"lift": {"steps_range": [2, 2]}})  # prepared as NumPy's own whole numbers
    np.testing.assert_array_equal(lifted, np.minimum(plain + 20, 255))


@pytest.mark.usefixtures("clean_registry")
def test_missing_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UserError, match=r"^aug\.plugins: no module named 'no_such_ops' \(looked for in this folder and PYTHONPATH\)\.$"
    ):
        parse_aug({"plugins": ["no_such_ops"]})
    (tmp_path / "needs_another.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match="no module named 'no_such_library'"):
        load_plugins(("needs_another",), "aug.plugins")


@pytest.mark.usefixtures("clean_registry")
def test_plugin_that_redeclares_an_op(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "clashing_ops.py").write_text(PLUGIN.replace("def fog(", "def contrast("))
    monkeypatch.syspath_prepend(str(tmp_path))
    expected = (
        r"^aug\.plugins: clashing_ops: op 'contrast' is already declared in augment\.recipe\.ops\.color \(.*, line \d+"
    )
    with pytest.raises(UserError, match=expected):
        parse_aug({"plugins": ["clashing_ops"]})
    assert OPS["contrast"].function.__module__ == "augment.recipe.ops.color"


@pytest.mark.usefixtures("clean_registry")
def test_plugin_with_an_invalid_declaration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mistaken_ops.py").write_text(PLUGIN.replace("default=100.0", "default=300"))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=r"^aug\.plugins: mistaken_ops: the default 300 is not allowed\. Allowed: "):
        parse_aug({"plugins": ["mistaken_ops"]})


@pytest.mark.usefixtures("clean_registry")
def test_op_with_an_optional_parameter() -> None:
    @color(level=Number(default=None, optional=True, doc="null: not set"), count=Count(optional=True, doc="null: one"))
    def mine(level: float | None, count: int | None) -> Any:
        """Do something."""
        return np.eye(3, 4) * (2 if level is None and count is None else 1)

    aug = parse_aug({"train": {"mine": None}})
    assert parse_steps(plain_steps(aug.train), "train") == aug.train
    plan = build_plan(aug, "train")
    np.testing.assert_array_equal(plan.stages[0].matrix(Sampler(plan, 0).draw(0, 0, 2), SIZE), [2 * np.eye(3, 4)] * 2)
    assert "| `mine` | color |" in op_table()
    assert "mine  p 1\n" in str(plan)


@EVERY_OP
def test_default_spelled_out_is_the_same_plan(op: Op) -> None:
    short = {op.name: given(op)}
    spelled_out = plain_steps(parse_steps(short, "train"))
    silent, loud = (build_plan(parse_aug({"train": steps}), "train") for steps in (short, spelled_out))
    assert silent.digest == loud.digest


@pytest.mark.usefixtures("clean_registry")
def test_default_written_as_an_integer() -> None:
    @color(level=Number(default=2, doc="level"))
    def mine(level: float) -> Any:
        """Do something."""
        return np.eye(3, 4) * level

    silent, spelled_out = (build_plan(parse_aug({"train": {"mine": given}}), "train") for given in ({}, {"level": 2}))
    assert silent.digest == spelled_out.digest
