"""Captions of steps: the ends of their ranges, and the values that were drawn."""

from typing import Any

import numpy as np
import pytest

from augment.recipe.captions import drawn_step
from augment.recipe.steps import parse_steps


def step(name: str, **params: object) -> Any:
    (parsed,) = parse_steps({name: params}, "test")
    return parsed


@pytest.mark.parametrize(
    ("name", "params", "drawn", "expected"),
    [
        ("rotate", {}, {"angle": -5.2349}, "rotate -5.2 deg"),
        ("rotate", {}, {"angle": -0.0004}, "rotate 0 deg"),
        ("brightness", {}, {"factor": 1.1234}, "brightness 1.12"),
        ("warp", {}, {"u": 0.03339, "v": -0.0801}, "warp (u 0.033, v -0.08)"),
        ("shear", {}, {"x": 4.44, "y": 0.0}, "shear x 4.4 deg"),
        ("erase", {"area_range": [0.001, 0.9]}, {"area": 0.00231, "aspect": 2}, "erase (area 0.0023, aspect 2)"),
        ("rotate", {"angle_range": {"values": [-44.7123, 90]}}, {"angle": -44.7123}, "rotate -45 deg"),
        ("flip", {}, {}, "flip"),
    ],
)
def test_drawn_values_are_rounded_to_suit_their_range(
    name: str, params: dict[str, object], drawn: dict[str, float], expected: str
) -> None:
    assert drawn_step(step(name, **params), {n: np.array([v]) for n, v in drawn.items()}, 0) == expected
