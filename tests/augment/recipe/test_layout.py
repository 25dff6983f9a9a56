"""How steps and policies become stages: fusion, reordering, and the probability of each step."""

from typing import Any

import pytest
from rendering import plan_of

from augment.recipe.plan import Plan

WARP: dict[str, Any] = {"op": "warp"}
ROTATE: dict[str, Any] = {"op": "rotate"}
HUE: dict[str, Any] = {"op": "hue"}
TONE: dict[str, Any] = {"op": "contrast"}
NOISE: dict[str, Any] = {"op": "gaussian_noise"}


def one_of(*steps: dict[str, Any], **params: Any) -> dict[str, Any]:
    return {"op": "one_of", "steps": {f"{step['op']}_{i}": step for i, step in enumerate(steps)}, **params}


def shape(plan: Plan) -> list[tuple[str, list[list[str]]]]:
    """Return the kind of each stage, with the keys of the steps at each of its positions."""
    return [(stage.kind, [[step.key for step in steps] for steps in stage.positions]) for stage in plan.stages]


def kinds(plan: Plan) -> list[str]:
    return [stage.kind for stage in plan.stages]


def test_alternatives_fuse_with_their_neighbors() -> None:
    plan = plan_of({"before": ROTATE, "one": one_of(ROTATE, WARP), "two": one_of(WARP, ROTATE), "after": WARP})
    assert shape(plan) == [
        ("geometry", [["before"], ["one.rotate_0", "one.warp_1"], ["two.warp_0", "two.rotate_1"], ["after"]])
    ]
    plan = plan_of({"one": one_of(HUE, TONE), "after": {"op": "brightness"}})
    assert shape(plan) == [("color", [["one.hue_0", "one.contrast_1"], ["after"]])]


def test_alternatives_of_several_kinds_are_reordered_to_fuse_with_both_neighbors() -> None:
    # At most one of them is applied to a sample, so their order is free.
    for steps in ((HUE, ROTATE), (ROTATE, HUE)):
        plan = plan_of({"before": WARP, "one": one_of(*steps), "after": TONE})
        assert kinds(plan) == ["geometry", "color"]
        plan = plan_of({"before": TONE, "one": one_of(*steps), "after": WARP})
        assert kinds(plan) == ["color", "geometry"]


def test_steps_of_a_sequence_are_not_reordered() -> None:
    plan = plan_of({"before": WARP, "all": {"op": "sequence", "steps": {"hue": {}, "rotate": {}}}, "after": TONE})
    assert shape(plan) == [
        ("geometry", [["before"]]),
        ("color", [["all.hue"]]),
        ("geometry", [["all.rotate"]]),
        ("color", [["after"]]),
    ]
    listed = plan_of({"some": {"op": "some_of", "steps": {"hue": {}, "rotate": {}, "warp": {}}}})
    assert shape(listed) == [("color", [["some.hue"]]), ("geometry", [["some.rotate"], ["some.warp"]])]


def test_random_order_has_all_steps_in_every_slot() -> None:
    plan = plan_of({"all": {"op": "sequence", "order": "random", "steps": {"hue": {}, "rotate": {}}}})
    # Each slot has both; one kind of the second slot is joined to that of the first one.
    assert shape(plan) == [
        ("geometry", [["all.1.rotate"]]),
        ("color", [["all.1.hue"], ["all.2.hue"]]),
        ("geometry", [["all.2.rotate"]]),
    ]


def test_rand_augment_has_one_warp_between_its_two_slots() -> None:
    plan = plan_of({"rand_augment": {"num_ops": 2}})
    joined = [
        {step.key.split(".")[1] for step in stage.steps} for stage in plan.stages if stage.kind in ("geometry", "color")
    ]
    # Eight of thirteen ops are matrices: without joining each slot would have a warp and a color matrix of its own.
    assert sorted(map(sorted, joined)) == [["1"], ["1", "2"], ["2"]]
    (both,) = [stage for stage in plan.stages if len({step.key.split(".")[1] for step in stage.steps}) == 2]
    assert (both.kind, len(both.positions)) == ("geometry", 2)
    apart = plan_of({"rand_augment": {"num_ops": 2}}, fuse=False)
    assert len(apart.stages) == len(apart.steps) == 26


def test_a_local_op_with_the_same_fixed_parameters_is_one_operator() -> None:
    strong, weak = {**NOISE, "std_range": [20, 30]}, {**NOISE, "std_range": [1, 2]}
    assert shape(plan_of({"one": one_of(strong, weak)})) == [
        ("local", [["one.gaussian_noise_0", "one.gaussian_noise_1"]])
    ]
    holes = [{"op": "erase", "fill": fill} for fill in ("constant", "mean", "constant")]
    assert shape(plan_of({"one": one_of(*holes)})) == [
        ("local", [["one.erase_0", "one.erase_2"]]),
        ("local", [["one.erase_1"]]),
    ]
    # One after the other they are two operators.
    assert kinds(plan_of({"a": strong, "b": weak})) == ["local", "local"]


def test_nested_steps_with_p_zero_do_not_run_but_count_as_choices() -> None:
    plan = plan_of({"one": one_of(ROTATE, HUE | {"p": 0}, WARP)})
    assert shape(plan) == [("geometry", [["one.rotate_0", "one.warp_2"]])]
    assert [step.p for step in plan.steps] == [pytest.approx(1 / 3)] * 2
    nothing = plan_of({"one": one_of(ROTATE, p=0), "hue": {}})
    assert shape(nothing) == [("color", [["hue"]])]
    assert [step.key for step in nothing.skipped] == ["one"]
    empty = plan_of({"one": one_of(ROTATE | {"p": 0})})
    assert empty.stages == ()


def chances(steps: dict[str, Any]) -> dict[str, float]:
    return {step.key: round(step.p, 6) for step in plan_of(steps).steps}


def test_overall_probabilities() -> None:
    weighted = one_of(ROTATE | {"weight": 3, "p": 0.5}, WARP, p=0.8)
    assert chances({"one": weighted}) == {"one.rotate_0": 0.3, "one.warp_1": 0.2}
    three: dict[str, Any] = {"rotate": {}, "warp": {}, "flip": {"p": 0.5}}
    some = {"op": "some_of", "steps": three, "count_range": [1, 2]}
    # One and a half of three, on average.
    assert chances({"some": some}) == {"some.rotate": 0.5, "some.warp": 0.5, "some.flip": 0.25}
    # All have a first step, half of them a second one.
    assert chances({"some": some | {"order": "random"}}) == {
        "some.1.rotate": 0.333333, "some.1.warp": 0.333333, "some.1.flip": 0.166667,
        "some.2.rotate": 0.166667, "some.2.warp": 0.166667, "some.2.flip": 0.083333,
    }  # fmt: skip
    inner = {"op": "sequence", "p": 0.5, "steps": {"rotate": {}, "hue": {"p": 0.2}}}
    outer = {"op": "one_of", "p": 0.6, "steps": {"inner": inner | {"weight": 2}, "warp": {}}}
    assert chances({"outer": outer}) == {"outer.inner.rotate": 0.2, "outer.inner.hue": 0.04, "outer.warp": 0.2}
