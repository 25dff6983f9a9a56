"""Policies: which steps are chosen, how often and in which order, and that pixels match the chosen steps."""

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from rendering import SIZE, Pixels, chi_square, draws_of, plan_of, read, render, save, step_matrix

from augment.params import Size
from augment.recipe.plan import Plan

N = 6000
Mask = NDArray[np.bool_]

ROTATE = {"angle_range": [-40, 40]}
HUE = {"angle_range": [-90, 90]}
GAMMA = {"gamma_range": [0.4, 2.5]}
STEPS: dict[str, Any] = {"rotate": ROTATE, "hue": HUE, "gamma": GAMMA}


def applied(plan: Plan, count: int = N) -> dict[str, Mask]:
    return {path: drawn["applied"].astype(bool) for path, drawn in draws_of(plan, count).items()}


def policy(op: str, steps: dict[str, Any] | None = None, **params: Any) -> dict[str, Any]:
    return {"op": op, "steps": STEPS if steps is None else steps, **params}


def likely(counts: Any, expected: Any) -> bool:
    return chi_square(counts, expected) > 1e-3


def test_alternatives_of_one_op_share_an_operator_and_keep_their_own_values() -> None:
    steps = {name: {"op": "salt_and_pepper", "share_range": [s, s]} for name, s in (("soft", 0.1), ("strong", 0.5))}
    plan = plan_of({"one_of": policy("one_of", steps, p=0.6)})
    (stage,) = plan.stages
    draws = draws_of(plan, 300)
    soft, strong = (draws[f"one_of.{name}"]["applied"] for name in steps)
    found = stage.values(draws, SIZE, neutral=True)["share"]
    np.testing.assert_array_equal(found, np.where(soft, 0.1, np.where(strong, 0.5, 0)))
    assert set(found.tolist()) == {0.1, 0.5, 0}


def test_some_of_draws_the_number_of_steps() -> None:
    # A number above that of the steps means all of them.
    for given, expected in (([1, 3], [0, 1, 1, 1]), ({"values": [0, 2, 2]}, [1, 0, 2, 0]), ([2, 5], [0, 0, 1, 3])):
        chosen = np.stack(list(applied(plan_of({"some": policy("some_of", count_range=given)})).values()))
        counts = np.bincount(chosen.sum(axis=0), minlength=4)
        assert likely([c for c, e in zip(counts, expected, strict=True) if e], [e for e in expected if e])
        assert sum(counts) == sum(c for c, e in zip(counts, expected, strict=True) if e)


def test_some_of_chooses_all_steps_and_pairs_equally_often() -> None:
    plan = plan_of({"some": policy("some_of", count_range=[2, 2])})
    assert [step.key for step in plan.steps] == ["some.rotate", "some.hue", "some.gamma"]
    chosen = np.stack(list(applied(plan).values()))
    assert (chosen.sum(axis=0) == 2).all()
    assert likely([(~row).sum() for row in chosen], [1, 1, 1]), "the one that is left out"


def orders(plan: Plan, name: str, count: int) -> list[tuple[str, ...]]:
    """Return the names of the steps that each sample goes through, in order."""
    runs: list[list[str]] = [[] for _ in range(count)]
    slots = sorted(applied(plan, count).items(), key=lambda item: item[0].split(".")[1])
    for path, rows in slots:
        assert path.startswith(f"{name}.")
        for sample in np.flatnonzero(rows):
            runs[sample].append(path.split(".")[2])
    return [tuple(run) for run in runs]


def test_sequence_in_random_order_draws_all_orders_equally_often() -> None:
    runs = orders(plan_of({"all": policy("sequence", order="random")}), "all", N)
    possible = list(permutations(STEPS))
    assert set(runs) == set(possible)
    assert likely([runs.count(run) for run in possible], [1] * 6)


# --- nesting, chances ---

NESTED: dict[str, Any] = {
    "outer": {
        "op": "one_of",
        "p": 0.8,
        "steps": {
            "both": {"op": "sequence", "p": 0.5, "weight": 2, "steps": {"rotate": {}, "hue": {"p": 0.5}}},
            "some": {"op": "some_of", "count_range": [1, 2], "order": "random", "steps": {"warp": {}, "gamma": {}}},
            "flip": {},
        },
    }
}


def test_policies_nest() -> None:
    chosen = applied(plan_of(NESTED))
    assert set(chosen) == {
        "outer.both.rotate", "outer.both.hue", "outer.flip",
        "outer.some.1.warp", "outer.some.1.gamma", "outer.some.2.warp", "outer.some.2.gamma",
    }  # fmt: skip
    both, some = chosen["outer.both.rotate"], chosen["outer.some.1.warp"] | chosen["outer.some.1.gamma"]
    assert (both & ~chosen["outer.both.hue"]).any()
    assert not (chosen["outer.both.hue"] & ~both).any()
    assert np.max(both.astype(int) + some + chosen["outer.flip"]) == 1
    second = chosen["outer.some.2.warp"] | chosen["outer.some.2.gamma"]
    assert not (second & ~some).any()
    assert not (chosen["outer.some.1.warp"] & chosen["outer.some.2.warp"]).any()


@pytest.mark.parametrize(
    "steps",
    [
        NESTED,
        {"one_of": policy("one_of", {"rotate": {"weight": 3}, "hue": {"p": 0.3}}, p=0.6)},
        {"some": policy("some_of", count_range=[0, 3])},
        {"some": policy("some_of", count_range={"values": [1, 3, 3]}, order="random")},
        {"all": policy("sequence", {"rotate": {"p": 0.2}, "hue": {}}, order="random", p=0.7)},
    ],
)
def test_probability_of_a_nested_step_matches_the_plan(steps: dict[str, Any]) -> None:
    plan, samples = plan_of(steps), 50_000
    rates = applied(plan, samples)
    assert {step.key for step in plan.steps} == set(rates)
    for step in plan.steps:
        count = int(rates[step.key].sum())
        assert 0 < step.p < 1
        assert likely([count, samples - count], [step.p, 1 - step.p]), step.key


# --- pixels ---


def one_by_one(plan: Plan, files: list[Path], device: torch.device, folder: Path, ops: dict[str, str]) -> Pixels:
    """Carry out what a policy chose for each sample, one step after the other, each in a pipeline of its own.

    Args:
        ops: for the last part of a path, the range of the one value that its op draws.
    """
    draws = draws_of(plan, len(files))
    result = read(files)
    # Slot by slot; of one_of there is only one.
    for path, drawn in sorted(draws.items(), key=lambda item: item[0].split(".")[1]):
        rows = np.flatnonzero(drawn["applied"])
        name = path.split(".")[-1]
        value = next(v for n, v in drawn.items() if n != "applied")
        for row in rows:
            step = {name: {ops[name]: [float(value[row])] * 2}}
            (result[row],) = render(plan_of(step), save(folder, [result[row]]), device)
    return result


RANGES = {"rotate": "angle_range", "hue": "angle_range", "gamma": "gamma_range"}


def test_one_of_matches_the_chosen_step(soft: list[Path], tmp_path: Path, device: torch.device) -> None:
    plan = plan_of({"one_of": policy("one_of", p=0.6)})
    ours = render(plan, soft[:8], device)
    np.testing.assert_allclose(ours, one_by_one(plan, soft[:8], device, tmp_path, RANGES), atol=0)
    left = ~np.logical_or.reduce(list(applied(plan, 8).values()))
    assert left.any()
    np.testing.assert_array_equal(ours[left], read(soft[:8])[left])


@pytest.mark.parametrize(("op", "fuse"), [("sequence", True), ("some_of", False)])
def test_random_order_matches_the_steps_in_the_drawn_order(
    op: str, fuse: bool, soft: list[Path], tmp_path: Path, device: torch.device
) -> None:
    steps = STEPS | {"hue": HUE | {"angle_range": [-30, 30]}}
    params: dict[str, Any] = {"order": "random"} | ({"count_range": [2, 3]} if op == "some_of" else {})
    plan = plan_of({"policy": policy(op, steps, **params)}, fuse=fuse)
    ours = render(plan, soft[:5], device)
    expected = one_by_one(plan, soft[:5], device, tmp_path, RANGES)
    assert len(set(orders(plan, "policy", 5))) > 2
    # The same operators in the same order, with the same rounding; the GPU rounds ties differently.
    np.testing.assert_allclose(ours, expected, atol=0 if device.type == "cpu" else 4)


@pytest.mark.parametrize("op", ["sequence", "some_of"])
def test_geometry_in_random_order_is_one_matrix_in_the_drawn_order(op: str) -> None:
    steps: dict[str, Any] = {"rotate": ROTATE, "scale": {"factor_range": [2, 2]}, "translate": {"x_range": [0.2, 0.3]}}
    params: dict[str, Any] = {"order": "random"} | ({"count_range": [1, 3]} if op == "some_of" else {})
    plan = plan_of({"policy": policy(op, steps, **params)})
    (stage,) = plan.stages
    draws = draws_of(plan, 40)
    matrices = stage.matrix(draws, Size(SIZE, SIZE))
    by_key = {step.key: step for step in plan.steps}
    for sample, run in enumerate(orders(plan, "policy", 40)):
        expected = np.eye(3)
        for slot, name in enumerate(run, 1):
            key = f"policy.{slot}.{name}"
            expected = step_matrix(by_key[key], draws[key], SIZE)[sample] @ expected
        np.testing.assert_allclose(matrices[sample], expected, atol=1e-9)
