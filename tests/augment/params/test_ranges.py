"""Ranges: what is drawn from them, and one number in place of two."""

from typing import Any

import numpy as np
import pytest

from augment.params import Range, Values
from augment.support.errors import UserError

RANGE = Range(doc="any interval")
TURNS = Range(within=(0, 3), whole=True, doc="quarter turns")
UNIFORM = np.array([0.0, 0.25, 0.5, 0.75, np.nextafter(1, 0)])


@pytest.mark.parametrize(
    ("param", "value", "expected"),
    [
        (RANGE, (-2.0, 6.0), [-2, 0, 2, 4, 6]),
        (RANGE, (3.0, 3.0), [3, 3, 3, 3, 3]),
        (RANGE, Values((7.0, -1.0)), [7, 7, -1, -1, -1]),
        (RANGE, Values((1.0, 2.0, 3.0, 1.0)), [1, 2, 3, 1, 1]),
        (RANGE, Values((4.0,)), [4, 4, 4, 4, 4]),
        (Range(log=True, doc=""), (1.0, 16.0), [1, 2, 4, 8, 16]),
        # Each whole number has the same share, the ends too.
        (TURNS, (0.0, 3.0), [0, 1, 2, 3, 3]),
        (TURNS, (1.0, 2.0), [1, 1, 2, 2, 2]),
        (TURNS, (2.0, 2.0), [2, 2, 2, 2, 2]),
        (TURNS, Values((3.0, 0.0)), [3, 3, 0, 0, 0]),
    ],
)
def test_draws_from_a_range(param: Range, value: Any, expected: list[float]) -> None:
    np.testing.assert_allclose(param.draw(value, UNIFORM), expected, rtol=1e-12)
    two = np.stack([UNIFORM, UNIFORM[::-1]])
    np.testing.assert_allclose(param.draw(value, two), [expected, expected[::-1]], rtol=1e-12)
    if param.whole:
        assert (param.draw(value, UNIFORM) % 1 == 0).all()


@pytest.mark.parametrize(
    ("default", "given", "expected"),
    [
        ((-7, 7), 3, (-3, 3)),
        ((-7, 7), 0, (0, 0)),
        ((0, 0), 4, (-4, 4)),
        ((0.8, 1.2), 0.25, (0.75, 1.25)),
        ((0.8, 1.2), 1, (0, 2)),
        # Not within 0..2, of another sign, and of ranges whose middle changes images.
        ((0.8, 1.2), 1.5, None),
        ((-7, 7), -3, None),
        ((-7, 7), True, None),
        ((0.1, 2), 0.5, None),
        ((0, 0.25), 0.1, None),
    ],
)
def test_one_number_is_a_range_around_the_value_that_changes_nothing(default, given, expected) -> None:  # type: ignore[no-untyped-def]
    param = Range(default=default, within=(-10, 10) if default[0] <= 0 else (0, 2), doc="")
    if expected is None:
        with pytest.raises(UserError, match=r"Use \[low, high\]"):
            param.parse(given, "key")
    else:
        assert param.parse(given, "key") == pytest.approx(expected)


@pytest.mark.parametrize("span", [(0.0, 3.0), (1.0, 100.0), (0.0, 64.0), (-5.0, 5.0)])
def test_integer_draws_stay_in_range_for_uniforms_close_to_one(span: tuple[float, float]) -> None:
    drawn = Range(whole=True, doc="").draw(span, np.array([np.nextafter(1, 0), 1 - 2**-53, 0.0]))
    assert drawn.tolist() == [span[1], span[1], span[0]]
