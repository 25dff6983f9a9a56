"""What holds for every op in the registry, so that a new op is tested by its declaration; and declarations."""

import itertools
import re
from typing import Any

import numpy as np
import pytest
from op_cases import MATRICES, cases, given, plan_with
from rendering import step_matrix

from augment.params import Number, Range
from augment.recipe.op import OPS, batch, color, combinator, crop, geometry, local, numpy_op, policy, remap
from augment.recipe.op_kinds import Op
from augment.recipe.step import parse_steps, plain_steps
from augment.support.errors import UserError

SIZE = 64

EVERY_OP = pytest.mark.parametrize("op", OPS.values(), ids=OPS)


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
    assert set(getattr(op, "neutral", {})) <= set(drawn), "neutral are values that are drawn"
    assert op.nests <= (op.kind == "policy")
    moves = {"crop": ["window"], "geometry": ["matrix"], "remap": ["function"], "local": ["other", None]}
    assert op.moves in moves.get(op.kind, [None])


@EVERY_OP
def test_defaults_are_allowed_values(op: Op) -> None:
    (step,) = parse_steps({op.name: given(op)}, "train")
    for name, param in op.params.items():
        assert param.required or param.optional or param.default is not None, name
        value = step.p if name == "p" else step.params[name]
        assert param.parse(value, name) == value
    assert parse_steps(plain_steps((step,)), "train") == (step,)


@cases([op for op in MATRICES if op.kind == "geometry"])
def test_geometry_matrices_are_invertible_at_all_extremes_of_the_allowed_ranges(op: Op, params: dict[str, Any]) -> None:
    plan = plan_with(op, size=SIZE, **params)
    bounds = [op.params[name].within for name in op.draws.values()]  # type: ignore[attr-defined]
    assert np.isfinite(bounds).all(), "a geometry range needs bounds, or its matrix cannot be trusted"
    names = [*op.draws, *op.uniforms]
    corners = np.array(list(itertools.product(*bounds, *([(0, 1)] * len(op.uniforms)))), float)
    drawn = {"applied": np.ones(len(corners), bool)} | dict(zip(names, corners.T, strict=True))
    matrix = step_matrix(plan.steps[0], drawn, SIZE)
    np.testing.assert_allclose(np.linalg.inv(matrix) @ matrix, np.broadcast_to(np.eye(3), matrix.shape), atol=1e-9)
    assert (np.linalg.det(matrix) != 0).all()


# --- declarations ---


@pytest.mark.usefixtures("clean_registry")
def test_declaration_without_a_docstring_is_rejected() -> None:
    def silent() -> None:
        pass

    for declare in (color(), geometry(), remap(), crop(), local(), batch(), policy(), combinator(lambda weights: [])):
        with pytest.raises(ValueError, match="op 'silent' needs a docstring"):
            declare(silent)
    assert "silent" not in OPS


@pytest.mark.usefixtures("clean_registry")
@pytest.mark.parametrize(
    ("declare", "params", "message"),
    [
        (geometry, {"border": Number(doc="")}, "the parameter names border are reserved"),
        (crop, {"op": Number(doc="")}, "the parameter names op are reserved"),
        (color, {"weight": Number(doc="")}, "the parameter names weight are reserved"),
        (numpy_op, {"amount": 0.5}, "amount=0.5 is not a parameter. Use a type such as Number"),
    ],
)
def test_parameters_that_are_rejected(declare: Any, params: dict[str, Any], message: str) -> None:
    def mine() -> None:
        """Do something."""

    with pytest.raises(ValueError, match=re.escape(f"op 'mine': {message}")):
        declare(**params)(mine)
    assert "mine" not in OPS


@pytest.mark.usefixtures("clean_registry")
def test_redeclaring_an_op_of_another_module_is_rejected_but_reloading_is_allowed() -> None:
    def rotate() -> None:
        """Do something else."""

    with pytest.raises(UserError, match=r"op 'rotate' is declared in augment\.recipe\.ops\.geometry and "):
        color()(rotate)
    rotate.__module__ = "augment.recipe.ops.geometry"
    color()(rotate)
    assert OPS["rotate"].kind == "color"


@pytest.mark.usefixtures("clean_registry")
@pytest.mark.parametrize(
    ("declare", "call"),
    [
        (geometry, "(size, amount, level): "),
        (remap, "(x, y, size, amount, level): "),
        (local, "(images, dali, amount, level): "),
        (numpy_op, "(image, amount, level): "),
        (batch, "(images, partners, amount, level): "),
        (crop, "(source, size, amount_range, level): "),
        (policy, "(amount_range, level): "),
    ],
)
def test_a_function_that_does_not_take_its_values_is_rejected(declare: Any, call: str) -> None:
    def mine(amount: Any, wrong: Any) -> None:
        """Do something."""

    params = {"amount_range": Range(default=(0.0, 1.0), doc=""), "level": Number(default=3.0, doc="")}
    with pytest.raises(ValueError, match=re.escape(f"op 'mine' must take {call}")):
        declare(**params)(mine)
    assert "mine" not in OPS

    def prepare(amount: Any, level: Any) -> None: ...

    if declare in (batch, local, remap):
        with pytest.raises(ValueError, match=re.escape("op 'mine' must take (size, amount, level): ")):
            declare(prepare=prepare, **params)(mine)
