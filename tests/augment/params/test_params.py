"""Parameters: which values each kind accepts, which it rejects, and its error messages."""

import re
from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from augment.params import (
    CacheSize,
    Channels,
    Choice,
    Count,
    Flag,
    ImageSize,
    Number,
    Param,
    Range,
    Size,
    Text,
    Texts,
    Values,
)  # fmt: skip
from augment.support.errors import UserError

KEY = "aug.train.step.parameter"

NUMBER = Number(doc="any number")
SHARE = Number(within=(0, 1), doc="share")
FACTOR = Number(within=(0, 10), above=0, doc="factor")
COUNT = Count(doc="any count")
SIDE = Count(within=(8, 16), unit="px", doc="side")
IMAGES = ImageSize(within=(8, 16), unit="px", doc="size")
FLAG = Flag(doc="flag")
TEXT = Text(doc="a name")
CHOICE = Choice(options=("horizontal", "vertical"), doc="direction")
VARIANT = Choice(options=("1", "320", "full"), doc="names that unquoted YAML turns into numbers")
TEXTS = Texts(doc="names")
CHANNELS = Channels(within=(0, 1), doc="mean")
DIVISORS = Channels(within=(0, 1), above=0, doc="std")
RANGE = Range(doc="any interval")
ANGLES = Range(within=(-90, 90), unit="deg", doc="angle")
AREAS = Range(within=(0, 1), above=0, doc="area")

TURNS = Range(within=(0, 3), whole=True, doc="quarter turns")
CACHE = CacheSize(doc="memory")

ALL: tuple[Param[Any], ...] = (NUMBER, COUNT, FLAG, TEXT, CHOICE, TEXTS, CHANNELS, RANGE)

HUGE = 10**400  # a whole number that no float can hold: float(HUGE) raises OverflowError


@pytest.mark.parametrize(
    ("param", "value", "parsed"),
    [
        (NUMBER, -3, -3.0),
        (SHARE, 0, 0.0),
        (SHARE, 1, 1.0),
        (FACTOR, 10, 10.0),
        (COUNT, 0, 0),
        (COUNT, 2**63, 2**63),
        (COUNT, np.int64(3), 3),
        (SIDE, 16, 16),
        (IMAGES, 16, Size(16, 16)),
        (IMAGES, [8, 12], Size(8, 12)),
        (FLAG, True, True),
        (TEXT, "a b", "a b"),
        (TEXT, 2024, "2024"),
        (CHOICE, "horizontal", "horizontal"),
        (VARIANT, 320, "320"),
        (TEXTS, [], ()),
        (TEXTS, ("a",), ("a",)),
        (CHANNELS, [0, 0.5, 1], (0.0, 0.5, 1.0)),
        (RANGE, [-7, 7.5], (-7.0, 7.5)),
        (RANGE, {"values": [3, -1.5, 3]}, Values((3.0, -1.5, 3.0))),
        (TURNS, [0, 3], (0.0, 3.0)),
        (TURNS, {"values": [0, 2]}, Values((0.0, 2.0))),
        (CACHE, "off", "off"),
        (CACHE, False, "off"),
    ],
)
def test_allowed_values_are_typed(param: Param[Any], value: object, parsed: object) -> None:
    result = param.parse(value, KEY)
    # repr also tells 1 from 1.0 and True, and a list from a tuple.
    assert repr(result) == repr(parsed)


REFUSED: list[tuple[Param[Any], str, list[object]]] = [
    (NUMBER, "a number", [True, False, nan, inf, -inf, "0.5", "", None, [0.5], {}]),
    (SHARE, "a number from 0 to 1", [-0.001, 1.001, 2, nan, inf, True]),
    (FACTOR, "a number above 0 up to 10", [0, 0.0, -1, 10.01]),
    (Number(within=(0, inf), doc=""), "a number of at least 0", [-1e-9, inf]),
    (COUNT, "a whole number of at least 0", [-1, 1.0, 1.5, True, "3", None, nan, inf, [3]]),
    (SIDE, "a whole number from 8 to 16", [7, 17, 8.0, True]),
    (
        IMAGES,
        "a whole number from 8 to 16 for a square, or [height, width]",
        [7, 17, 8.0, True, None, "9x12", [9], [9, 17], [0, 9], [9, 9, 9], [9, 9.0], [[9, 9], 9], []],
    ),
    (FLAG, "true or false", [0, 1, "true", "no", None, [], 1.0]),
    (TEXT, "text (a name)", ["", True, None, 1.5, ["a"], {}]),
    (CHOICE, "horizontal, vertical", [True, None, 1.5, ["horizontal"]]),
    (VARIANT, "1, 320, full", [True, 1.0]),
    (TEXTS, f"a list of names, such as {KEY}=[ab]", ["ab"]),
    (TEXTS, "a list of names", [["a", 1], ["a", ""], ["a", None], None, 3, {"a": 1}]),
    (
        CHANNELS,
        "three numbers from 0 to 1",
        [[0, 1], [0, 0, 0, 0], 0.5, "012", None, [0, 0, 1.5], [0, -0.1, 0], [0, nan, 0], [True, 0, 0], ["0", 0, 0]],
    ),
    (DIVISORS, "three numbers above 0 up to 1", [[0.1, 0.1, 0], [0, 0, 0]]),
    (
        RANGE,
        "[low, high] with low <= high or {values: [...]}, numbers",
        [[1, 0], [1], [0, 1, 2], 3, "01", None, ["0", "1"], {0: 1, 1: 2}, [0, None], [0, True], [nan, 1], [0, inf]],
    ),
    (
        ANGLES,
        "[low, high] with low <= high or {values: [...]}, numbers from -90 to 90",
        [
            *([-90.01, 0], [7, -7], {"values": []}, {"values": "12"}, {"values": [1, 91]}, {"values": [1, "2"]}),
            *({"values": [nan]}, {"values": [1, 2], "p": 1}, {}, {"value": [1]}, Values((91.0,))),
        ],
    ),
    (
        TURNS,
        "[low, high] with low <= high or {values: [...]}, whole numbers from 0 to 3",
        [[0, 2.5], {"values": [0, 4]}],
    ),
    (Range(few=False, doc="what DALI draws"), "[low, high] with low <= high, numbers", [{"values": [0.5]}]),
    (CACHE, "off, gpu, or a number of MiB", [0, -1, True, None, "on", "", 1.5, nan, ["gpu"], {}]),
    (AREAS, "[low, high] with low <= high or {values: [...]}, numbers above 0 up to 1", [[0, 1], [0.5, 1.1]]),
]


@pytest.mark.parametrize(
    ("param", "allowed", "value"), [(param, allowed, value) for param, allowed, values in REFUSED for value in values]
)
def test_error_names_key_value_and_allowed_values(param: Param[Any], allowed: str, value: object) -> None:
    with pytest.raises(UserError) as caught:
        param.parse(value, KEY)
    expected = rf"{re.escape(f'{KEY}: {value!r} is not allowed.')} (Use|Allowed:) {re.escape(allowed)}\."
    assert re.fullmatch(expected, str(caught.value))


@pytest.mark.parametrize(
    ("param", "value"),
    [(NUMBER, HUGE), (SHARE, -HUGE), (RANGE, [0, HUGE]), (CHANNELS, [0, 0, HUGE]), (COUNT, "9" * 5000)],
    ids=["number", "share", "range", "channels", "digits"],
)
def test_numbers_too_large_for_a_float_are_rejected(param: Param[Any], value: object) -> None:
    with pytest.raises(UserError, match=r"is not allowed\. Use "):
        param.parse(value, KEY)


@pytest.mark.parametrize("param", ALL, ids=lambda param: type(param).__name__)
def test_null_only_where_optional(param: Param[Any]) -> None:
    with pytest.raises(UserError, match="None is not allowed"):
        param.parse(None, KEY)
    optional = replace(param, optional=True)
    assert optional.parse(None, KEY) is None
    with pytest.raises(UserError, match=r" or null( \(a name\))?\.$"):
        optional.parse(object(), KEY)


@pytest.mark.parametrize(
    ("param", "value", "shown"),
    [
        (Number(unit="deg", doc=""), 0.5, "0.5 deg"),
        (SIDE, 12, "12 px"),
        (FLAG, True, "true"),
        (CHOICE, "vertical", "vertical"),
        (ANGLES, (-7.0, 7.5), "-7..7.5 deg"),
        (ANGLES, Values((30.0,)), "30 deg"),
        (ANGLES, Values((10.0, -10.0, 20.0, -20.0)), "+-(10 or 20) deg"),
        (RANGE, Values((3.0, 1.0, 3.0, 2.0)), "1 or 2 or 3"),
        (RANGE, Values((0.0, 1.0, 2.0, 3.0, 5.5)), "0..5.5 in 5 levels"),
    ],
)
def test_show(param: Param[Any], value: object, shown: str) -> None:
    assert param.show(value) == shown
    assert param.show(None) == "null"


def test_invalid_default_is_rejected_at_declaration() -> None:
    with pytest.raises(ValueError, match=r"the default 7 is not allowed\. Use a number from 0 to 1"):
        Number(default=7, within=(0, 1), doc="share")
    with pytest.raises(ValueError, match=r"the default \(1, 0\) is not allowed\. Use \[low, high\]"):
        Range(default=(1, 0), doc="reversed")
    with pytest.raises(ValueError, match=r"the default \(0, 0\.5\) is not allowed\. Use .*whole numbers"):
        Range(default=(0, 0.5), whole=True, doc="half")
