"""Random parameters: reproducible, independent, uniform, and applied with probability p."""

from typing import Any

import numpy as np
import pytest
from op_cases import EVERY_APPLIED_OP, given, plan_with

from augment.recipe.op_kinds import Op
from augment.recipe.plan import build_plan
from augment.recipe.sampler import Sampler
from augment.recipe.stage import Draws
from augment.recipe.steps import SplitName, parse_aug
from augment.support.seeds import derive_seed


def sampler(steps: dict[str, Any], seed: int = 7, rank: int = 0, split: SplitName = "train") -> Sampler:
    return Sampler(build_plan(parse_aug({split: steps}), split), seed, rank)


def equal(one: Draws, other: Draws) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


THREE: dict[str, Any] = {
    "rotate": {"p": 0.5, "angle_range": [-7, 7]},
    "warp": {"p": 0.5, "magnitude_range": [-0.1, 0.1]},
    "hue": {"p": 0.5, "angle_range": [-18, 18]},
}


# --- reproducible ---


def test_seeds_are_the_same_in_every_process() -> None:
    assert derive_seed(0, "train", "rotate") == 237386257990824522494056462916912159748
    assert derive_seed(np.int64(0), "train", np.str_("rotate")) == derive_seed(0, "train", "rotate")
    assert 0 <= derive_seed() < 2**128


# Drawn once, in another process. A change of these numbers changes what every saved run would have been fed.
GOLDEN: dict[tuple[int, int, int], dict[str, dict[str, list[Any]]]] = {
    (0, 0, 4): {
        "rotate": {
            "applied": [True, True, True, False],
            "angle": [1.7077927483758675, 5.120399868970473, -4.194506876488709, -6.2847843239521515],
        },
        "warp": {
            "applied": [False, True, False, True],
            "u": [-0.06112358965222336, 0.09410221000494248, 0.039391315678037164, 0.05199416244286295],
            "v": [0.06968151761128547, 0.0013753118107412005, -0.06103547679622401, 0.03279597917046387],
        },
        "hue": {
            "applied": [False, False, False, False],
            "angle": [-7.163969152626386, 9.514875238742253, -12.98042315412085, -9.508875809055821],
        },
    },
    (3, 1000, 2): {
        "rotate": {"applied": [True, True], "angle": [3.2483165400663996, -2.3520093740025425]},
        "warp": {
            "applied": [True, False],
            "u": [0.07385239196010929, -0.005242695272452427],
            "v": [0.011108011559694056, 0.03450712417771898],
        },
        "hue": {"applied": [True, True], "angle": [17.032078284666433, 17.43998972494596]},
    },
}


@pytest.mark.parametrize(("position", "expected"), GOLDEN.items())
def test_draws_are_the_same_in_every_process(
    position: tuple[int, int, int], expected: dict[str, dict[str, list[Any]]]
) -> None:
    drawn = sampler(THREE).draw(*position)
    assert drawn.keys() == expected.keys()
    for key, values in expected.items():
        assert drawn[key].keys() == values.keys()
        for name, numbers in values.items():
            np.testing.assert_allclose(drawn[key][name], numbers, rtol=1e-14)


def all_equal(ones: dict[str, Draws], others: dict[str, Draws]) -> bool:
    return ones.keys() == others.keys() and all(equal(ones[key], others[key]) for key in ones)


@EVERY_APPLIED_OP
def test_draws_do_not_depend_on_the_batch_size(op: Op) -> None:
    one = Sampler(plan_with(op, p=0.5), seed=7)
    whole = one.draw(0, 0, 100)

    def rows(start: int, count: int) -> dict[str, Draws]:
        return {key: {n: v[start : start + count] for n, v in drawn.items()} for key, drawn in whole.items()}

    for start, count in ((37, 20), (0, 1), (1, 1), (2, 7), (3, 97), (99, 1)):
        assert all_equal(one.draw(0, start, count), rows(start, count))
    for start in range(0, 98, 7):
        assert all_equal(one.draw(0, start, 7), rows(start, 7))


# --- independent ---


@EVERY_APPLIED_OP
def test_adding_steps_changes_no_other_draw(op: Op) -> None:
    step = given(op, p=0.5)

    def draw(steps: dict[str, Any]) -> dict[str, Draws]:
        drawn = sampler(steps).draw(2, 3, 50)
        return {key: values for key, values in drawn.items() if key.split(".")[0] == "tested"}

    alone = draw({"tested": step})
    assert alone
    after: dict[str, Any] = {} if op.kind == "batch" else {"flip": {"p": 0.1}}  # nothing may follow those
    for steps in (
        {"before": {"op": "warp"}, "tested": step},
        {"tested": step, "after": given(op, p=0.5)},
        {"random_resized_crop": {}, "warp": {}, "renamed": {"op": "hue"}, "tested": step, **after},
        {"hue": {"p": 0}, "tested": step},
        {"one_of": {"steps": {"warp": {}, "hue": {}}}, "tested": step},
    ):
        assert all_equal(draw(steps), alone)


@EVERY_APPLIED_OP
def test_raising_p_changes_no_value_and_only_adds_samples(op: Op) -> None:
    rare, half, always = (Sampler(plan_with(op, p=p), seed=7).draw(0, 0, 500) for p in (0.1, 0.5, 1))
    assert rare.keys() == half.keys() == always.keys()
    for key in always:
        for value in always[key].keys() - {"applied"}:
            assert np.array_equal(rare[key][value], always[key][value])
            assert np.array_equal(half[key][value], always[key][value])
    few, some, most = (np.logical_or.reduce([d["applied"] for d in draws.values()]) for draws in (rare, half, always))
    assert (few <= some).all()
    assert (some <= most).all()
    assert few.sum() < some.sum() < most.sum()
    if op.kind != "policy":
        assert most.all()


def test_epochs_splits_ranks_seeds_and_keys_differ() -> None:
    steps: dict[str, Any] = {"warp": {"p": 0.5}}
    again: dict[str, Any] = {"again": {"op": "warp", "p": 0.5}}
    draws = [
        sampler(steps).draw(0, 0, 30)["warp"],
        sampler(steps).draw(1, 0, 30)["warp"],
        sampler(steps).draw(10, 0, 30)["warp"],
        sampler(steps).draw(0, 30, 30)["warp"],
        sampler(steps, seed=8).draw(0, 0, 30)["warp"],
        sampler(steps, rank=1).draw(0, 0, 30)["warp"],
        sampler(steps, split="val").draw(0, 0, 30)["warp"],
        sampler(again).draw(0, 0, 30)["again"],
    ]
    for name in ("u", "v", "applied"):
        assert len({drawn[name].tobytes() for drawn in draws}) == len(draws), name
    # Not one value in common: no stream is another one shifted.
    assert len(np.unique([drawn["u"] for drawn in draws] + [drawn["v"] for drawn in draws])) == 2 * 30 * len(draws)


# --- drawn once ---

ONCE: dict[str, Any] = {"warp": {"p": 0.5, "draw": "once"}, "again": {"op": "warp", "p": 0.5, "draw": "once"}}


def fixed_values(drawn: Draws, *names: str) -> tuple[float, ...]:
    """Return the values that all samples have in common."""
    assert all(len(np.unique(drawn[name])) == 1 for name in names)
    return tuple(float(drawn[name][0]) for name in names)


def test_values_drawn_once_are_those_of_the_seed_and_the_path() -> None:
    draws = [
        sampler(ONCE).draw(0, 0, 40),
        sampler(ONCE).draw(3, 1000, 40),
        sampler(ONCE, rank=1).draw(0, 0, 40),
        sampler(ONCE, split="val").draw(0, 0, 40),
        Sampler(sampler(ONCE).plan, 7, view=1).draw(0, 0, 40),
        sampler({"flip": {}, **ONCE}).draw(0, 0, 40),
    ]
    assert len({fixed_values(drawn["warp"], "u", "v") for drawn in draws}) == 1
    assert len({drawn["warp"]["applied"].tobytes() for drawn in draws[:5]}) == 5, "still drawn for each sample"
    others = {
        fixed_values(sampler(ONCE, seed=8).draw(0, 0, 40)["warp"], "u", "v"),
        fixed_values(draws[0]["again"], "u", "v"),
    }
    assert len(others | {fixed_values(draws[0]["warp"], "u", "v")}) == 3
