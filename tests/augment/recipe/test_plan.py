"""Plans: grouping of steps into stages, composed matrices, text and digest."""

from typing import Any

import numpy as np
import pytest
from op_cases import NESTED, given, other_values, plan_with

from augment.params import Size
from augment.recipe.op import OPS
from augment.recipe.op_kinds import Op
from augment.recipe.plan import Plan, build_plan
from augment.recipe.sampler import Sampler
from augment.recipe.step import parse_steps
from augment.recipe.steps import SplitName, parse_aug

SIZE = 64


def plan_of(split: SplitName = "train", *, fuse: bool = True, size: Any = SIZE, **steps: object) -> Plan:
    return build_plan(parse_aug({"size": size, "fuse": fuse, split: steps}), split)


def groups(plan: Plan) -> list[list[str]]:
    return [[step.key for step in stage.steps] for stage in plan.stages]


# A geometry step and a color step each, as an op and the one value that its range is.
QUARTER = {"op": "rotate", "angle_range": [90, 90]}
SHIFT = {"op": "affine", "translate_range": [0.25, 0.25], "scale_range": [1, 1], "shear_range": [0, 0]}
LARGER = {"op": "affine", "translate_range": [0, 0], "scale_range": [2, 2], "shear_range": [0, 0]}
SLANT = {"op": "warp", "magnitude_range": [0.05, 0.05]}
MIRROR = {"op": "flip", "direction": "horizontal"}
PALER = {"op": "contrast", "factor_range": [0.6, 0.6]}
LIGHTER = {"op": "brightness", "factor_range": [1.5, 1.5]}
GRAYER = {"op": "saturation", "factor_range": [0.5, 0.5]}


def composed(*steps: dict[str, Any]) -> Any:
    """Return the matrix of the one stage that the steps make, for each of three samples."""
    named: dict[str, Any] = {f"step_{i}": step for i, step in enumerate(steps)}
    plan = plan_of(**named)
    assert len(plan.stages) == 1
    return plan.stages[0].matrix(Sampler(plan, 0).draw(0, 0, 3), Size(SIZE, SIZE))


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        # By hand, with S = 64: the quarter turn is (x, y) -> (y, -x), the shift adds (16, 16), the mirror negates x.
        ((QUARTER, SHIFT), [[0, 1, 16], [-1, 0, 16], [0, 0, 1]]),
        ((SHIFT, QUARTER), [[0, 1, 16], [-1, 0, -16], [0, 0, 1]]),
        ((QUARTER, SHIFT, MIRROR), [[0, -1, -16], [-1, 0, 16], [0, 0, 1]]),
        # The warp is [[11, -1, -32], [-1, 11, -32]] / 12 (test_ops.py).
        ((SLANT, QUARTER, LARGER), [[-1 / 6, 11 / 6, -16 / 3], [-11 / 6, 1 / 6, 16 / 3], [0, 0, 1]]),
        # Contrast .6 adds 51.2.
        ((PALER, LIGHTER), [[0.9, 0, 0, 76.8], [0, 0.9, 0, 76.8], [0, 0, 0.9, 76.8]]),
        ((LIGHTER, PALER), [[0.9, 0, 0, 51.2], [0, 0.9, 0, 51.2], [0, 0, 0.9, 51.2]]),
        (
            (GRAYER, PALER),
            [[0.3897, 0.1761, 0.0342, 51.2], [0.0897, 0.4761, 0.0342, 51.2], [0.0897, 0.1761, 0.3342, 51.2]],
        ),
    ],
)
def test_matrix_of_a_stage_is_the_product_in_order(steps: tuple[dict[str, Any], ...], expected: Any) -> None:
    np.testing.assert_allclose(composed(*steps), [expected] * 3, atol=1e-6, rtol=0)


# --- grouping ---


def test_another_fill_starts_a_new_stage_only_where_it_is_visible() -> None:
    def steps(border: str) -> Plan:
        return plan_of(rotate={"border": border, "fill": 0}, warp={"border": border, "fill": 9})

    plan = steps("constant")
    assert groups(plan) == [["rotate"], ["warp"]]
    assert [stage.border for stage in plan.stages] == [("constant", 0), ("constant", 9)]
    for border in ("reflect_101", "replicate", "wrap"):
        assert groups(steps(border)) == [["rotate", "warp"]]
    assert groups(plan_of(rotate={"border": "constant", "fill": 9}, warp={"border": "constant", "fill": 9})) == [
        ["rotate", "warp"]
    ]


@pytest.mark.parametrize("border", ["constant", "wrap"])
def test_flip_joins_any_border(border: str) -> None:
    given = {"border": border, "fill": 7}
    expected = (border, 7 if border == "constant" else 0)
    for plan in (
        plan_of(flip={}, rotate=given, warp=given),
        plan_of(rotate=given, flip={}, warp=given),
        plan_of(rotate=given, warp=given, flip={}),
    ):
        assert len(plan.stages) == 1
        assert plan.stages[0].border == expected


def test_without_fusion_the_matrices_are_the_factors_of_the_fused_one() -> None:
    steps: dict[str, Any] = {"quarter": QUARTER, "shift": SHIFT, "slant": SLANT}
    fused, apart = plan_of(**steps), plan_of(**steps, fuse=False)
    draws = Sampler(apart, 0).draw(0, 0, 2)
    first, second, third = (stage.matrix(draws, Size(SIZE, SIZE)) for stage in apart.stages)
    np.testing.assert_allclose(fused.stages[0].matrix(draws, Size(SIZE, SIZE)), third @ second @ first, atol=1e-12)


# --- crop and normalization ---


def test_without_a_crop_images_are_resized() -> None:
    for plan, split in ((plan_of("train", rotate={}), "train"), (plan_of("val"), "val")):
        assert (plan.crop.key, plan.crop.op, plan.split, plan.size.plain) == ("resize", OPS["resize"], split, SIZE)
    assert plan_of(zoom={"op": "center_crop", "scale": 0.5}).crop.key == "zoom"
    assert groups(plan_of(center_crop={}, flip={})) == [["flip"]]


# --- what a plan says about itself ---

GOLDEN = """\
train: 64 x 64 px
  crop      random_resized_crop  area 0.35..1, aspect 0.75..1.333
  geometry  3 steps in one warp, border constant 114
    flip  p 0.5  direction horizontal
    rotate  p 0.075  angle -7..7 deg
    again (rotate)  p 1  angle 0..90 deg
  geometry  1 step in one warp, border reflect_101
    warp  p 0.5  magnitude -0.1..0.1
  color     2 steps in one color matrix
    brightness  p 0.3  factor 0.8..1.2
    hue  p 1  angle -18..18 deg
  normalize mean [0.485, 0.456, 0.406], std [0.25, 0.25, 0.25]
  left out (p 0): contrast, saturation"""


def test_plan_as_text() -> None:
    fill = {"border": "constant", "fill": 114}
    train = {
        "random_resized_crop": {},
        "flip": {"p": 0.5},
        "rotate": {"p": 0.075, **fill},
        "again": {"op": "rotate", "angle_range": [0, 90], **fill},
        "warp": {"p": 0.5},
        "contrast": {"p": 0},
        "brightness": {"p": 0.3},
        "saturation": {"p": 0},
        "hue": {},
    }
    aug = parse_aug({"size": 64, "std": [0.25, 0.25, 0.25], "train": train, "val": {}})
    assert str(build_plan(aug, "train")) == GOLDEN
    assert str(build_plan(aug, "val")) == (
        "val: 64 x 64 px\n  crop      resize  side both\n  normalize mean [0.485, 0.456, 0.406], std [0.25, 0.25, 0.25]"
    )


BASE: dict[str, Any] = {
    "size": 64,
    "mean": [0.5, 0.5, 0.5],
    "std": [0.25, 0.25, 0.25],
    "train": {
        "random_resized_crop": {"area_range": [0.35, 1]},
        "rotate": {"p": 0.5, "angle_range": [-7, 7]},
        "flip": {"p": 0.5},
        "hue": {"p": 0.5},
    },
}


def digest(split: SplitName = "train", **changes: Any) -> str:
    return build_plan(parse_aug(BASE | changes), split).digest


def with_step(name: str, **changes: Any) -> str:
    """Return the digest after a change to one step."""
    return digest(train=BASE["train"] | {name: BASE["train"][name] | changes})


def test_digest_changes_with_everything_that_determines_pixels() -> None:
    steps: dict[str, Any] = BASE["train"]
    others = {
        "size": digest(size=65),
        "wide": digest(size=[64, 65]),
        "tall": digest(size=[65, 64]),
        "mean": digest(mean=[0.5, 0.5, 0.5000001]),
        "std": digest(std=[0.2500001, 0.25, 0.25]),
        "fuse": digest(fuse=False),
        "crop's parameter": with_step("random_resized_crop", area_range=[0.3500001, 1]),
        "crop": digest(train={"resize": {}} | {n: s for n, s in steps.items() if n != "random_resized_crop"}),
        "p": with_step("rotate", p=0.5000001),
        "low": with_step("rotate", angle_range=[-7.000001, 7]),
        "high": with_step("rotate", angle_range=[-7, 7.000001]),
        "border": with_step("rotate", border="wrap"),
        "choice": with_step("flip", direction="vertical"),
        "order": digest(train={n: steps[n] for n in ("random_resized_crop", "flip", "rotate", "hue")}),
        "a step less": digest(train={n: s for n, s in steps.items() if n != "hue"}),
        "a step more": digest(train=steps | {"warp": {}}),
        # The key names the step's random draws.
        "key": digest(train={{"hue": "tint"}.get(n, n): s | {"op": n} for n, s in steps.items()}),
        "op": digest(train=steps | {"hue": {"p": 0.5, "op": "contrast"}}),
        "split": build_plan(parse_aug({**BASE, "val": steps}), "val").digest,
        "as it was": digest(),
    }
    # Two ops of the same parameters, under the same key.
    assert plan_of(tone={"op": "brightness"}).digest != plan_of(tone={"op": "contrast"}).digest
    same = {(one, other) for one in others for other in others if one < other and others[one] == others[other]}
    assert not same


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_digest_changes_with_every_parameter_of_every_op(op: Op) -> None:
    plan = plan_with(op)
    (step,) = parse_steps({"tested": given(op)}, "train")
    values = {"p": step.p, **step.params}
    seen = [plan.digest]
    for name, param in op.params.items():
        seen += [plan_with(op, **{name: other}).digest for other in other_values(param, values[name])]
    if op.nests:
        others = {key: {**NESTED[key], "p": 0.5} for key in NESTED}
        seen += [plan_with(op, steps=NESTED | {key: other}).digest for key, other in others.items()]
        seen += [plan_with(op, steps=dict(reversed(NESTED.items()))).digest]
    assert len(set(seen)) == len(seen) > len(op.params)


def test_digest_does_not_change_otherwise() -> None:
    steps: dict[str, Any] = BASE["train"]
    assert digest() == digest(val={"center_crop": {}}), "the other split"
    assert digest() == digest(size=[SIZE, SIZE]), "a square with both of its sides"
    assert digest() == digest(train=steps | {"warp": {"p": 0}}), "a step that is left out"
    assert with_step("hue", p=0) == digest(train={n: s for n, s in steps.items() if n != "hue"}), "p = 0, and gone"
    assert digest() == with_step("rotate", angle_range=(-7.0, 7.0)), "whole numbers and floats"
    assert digest() == digest(train={n: dict(reversed(s.items())) for n, s in steps.items()}), "order of parameters"
    assert plan_of(rotate={}, hue={}).digest == plan_of(rotate={}, hue={}, fuse=False).digest, "nothing to fuse"
