"""Parameters: which values each kind accepts, which it refuses, and its error messages."""

import re
from dataclasses import dataclass, replace
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
    Number,
    Param,
    Range,
    Text,
    Texts,
    Values,
    parse_params,
    parse_settings,
    setting,
    settings,
)
from augment.support.errors import UserError, first_line, suggest

KEY = "aug.train.step.parameter"

NUMBER = Number(doc="any number")
SHARE = Number(within=(0, 1), doc="share")
FACTOR = Number(within=(0, 10), above=0, doc="factor")
COUNT = Count(doc="any count")
SIDE = Count(within=(8, 16), unit="px", doc="side")
FLAG = Flag(doc="flag")
TEXT = Text(doc="text")
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
        (NUMBER, 1e-300, 1e-300),
        (SHARE, 0, 0.0),
        (SHARE, 1, 1.0),
        (SHARE, 0.025, 0.025),
        (FACTOR, 1e-9, 1e-9),
        (FACTOR, 10, 10.0),
        (COUNT, 0, 0),
        (COUNT, 2**63, 2**63),
        (COUNT, np.int64(3), 3),
        (SIDE, 8, 8),
        (SIDE, 16, 16),
        (FLAG, True, True),
        (FLAG, False, False),
        (TEXT, "a b", "a b"),
        (TEXT, 2024, "2024"),
        (TEXT, 0, "0"),
        (CHOICE, "horizontal", "horizontal"),
        (CHOICE, "vertical", "vertical"),
        (VARIANT, "320", "320"),
        (VARIANT, 320, "320"),
        (TEXTS, [], ()),
        (TEXTS, ["a", "b"], ("a", "b")),
        (TEXTS, ("a",), ("a",)),
        (CHANNELS, [0, 0.5, 1], (0.0, 0.5, 1.0)),
        (DIVISORS, (0.1, 0.2, 1), (0.1, 0.2, 1.0)),
        (RANGE, [-7, 7.5], (-7.0, 7.5)),
        (RANGE, (2, 2), (2.0, 2.0)),
        (ANGLES, [-90, 90], (-90.0, 90.0)),
        (AREAS, [0.001, 1], (0.001, 1.0)),
        (RANGE, {"values": [3, -1.5, 3]}, Values((3.0, -1.5, 3.0))),
        (RANGE, Values((1, 2)), Values((1.0, 2.0))),
        (ANGLES, {"values": (90,)}, Values((90.0,))),
        (TURNS, [0, 3], (0.0, 3.0)),
        (TURNS, [1.0, 2], (1.0, 2.0)),
        (TURNS, {"values": [0, 2]}, Values((0.0, 2.0))),
        (CACHE, "off", "off"),
        (CACHE, False, "off"),
        (CACHE, "gpu", "gpu"),
        (CACHE, 1, 1),
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
    (FLAG, "true or false", [0, 1, "true", "no", None, [], 1.0]),
    (TEXT, "text", ["", True, None, 1.5, ["a"], {}]),
    (CHOICE, "horizontal, vertical", [True, None, 1.5, ["horizontal"]]),
    (VARIANT, "1, 320, full", [True, 1.0]),
    (TEXTS, f"a list of names, as {KEY}=[ab]", ["ab"]),
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
        [[1, 0], [1e-9, 0], [1], [], [0, 1, 2], 3, 0.5, "01", None, True, ["0", "1"], {0: 1, 1: 2}, [0, None]],
    ),
    (
        RANGE,
        "[low, high] with low <= high or {values: [...]}, numbers",
        [[True, 1], [0, True], [nan, 1], [0, nan], [-inf, 0], [0, inf]],
    ),
    (
        ANGLES,
        "[low, high] with low <= high or {values: [...]}, numbers from -90 to 90",
        [[-90.01, 0], [0, 91], [7, -7]],
    ),
    (
        ANGLES,
        "[low, high] with low <= high or {values: [...]}, numbers from -90 to 90",
        [
            {"values": []},
            {"values": None},
            {"values": 3},
            {"values": "12"},
            {"values": [1, 91]},
            {"values": [1, "2"]},
            {"values": [True]},
            {"values": [nan]},
            {"values": [1, 2], "p": 1},
            {},
            {"value": [1]},
            Values((91.0,)),
        ],
    ),
    (
        TURNS,
        "[low, high] with low <= high or {values: [...]}, whole numbers from 0 to 3",
        [[0, 2.5], [0.5, 1], [0, 4], [-1, 0], [2, 1], {"values": [1.5]}, {"values": [0, 4]}],
    ),
    (
        Range(within=(0, 1), few=False, doc="what DALI draws"),
        "[low, high] with low <= high, numbers from 0 to 1",
        [{"values": [0.5]}, Values((0.5,)), [0.5, 1.1]],
    ),
    (CACHE, "off, gpu, or a number of MiB", [0, -1, True, None, "on", "", 1.5, nan, ["gpu"], {}]),
    (
        AREAS,
        "[low, high] with low <= high or {values: [...]}, numbers above 0 up to 1",
        [[0, 1], [-0.1, 1], [0.5, 1.1]],
    ),
]


@pytest.mark.parametrize(
    ("param", "allowed", "value"), [(param, allowed, value) for param, allowed, values in REFUSED for value in values]
)
def test_error_names_key_value_and_allowed_values(param: Param[Any], allowed: str, value: object) -> None:
    with pytest.raises(UserError) as caught:
        param.parse(value, KEY)
    hint = r"( Did you mean [^?]*\?)?"
    expected = rf"{re.escape(f'{KEY}: {value!r} is not allowed.')}{hint}{re.escape(f' Allowed: {allowed}.')}"
    assert re.fullmatch(expected, str(caught.value))


@pytest.mark.parametrize(
    ("param", "value", "meant"),
    [
        (SHARE, "0,5", "0.5"),
        (SHARE, "0.5", "0.5"),
        (SHARE, "50%", "0.5"),
        (SHARE, "p=.5", "0.5"),
        (NUMBER, "1e-3", "0.001"),
        (COUNT, 3.0, "3"),
        (COUNT, "64 px", "64"),
        (COUNT, [64, 64], "64"),
        (RANGE, "-7..7", "[-7, 7]"),
        (RANGE, "(-7, 7)", "[-7, 7]"),
        (RANGE, [7, -7], "[-7, 7]"),
        (RANGE, ["-7", "7,5"], "[-7, 7.5]"),
        (FLAG, "yes", "true"),
        (FLAG, "Off", "false"),
        (CHANNELS, [0, 485, 0, 456, 0, 406], "[0.485, 0.456, 0.406]"),
    ],
)
def test_slips_of_the_pen_are_understood(param: Param[Any], value: object, meant: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"{KEY}: {value!r} is not allowed. Did you mean {meant}? Allowed:")):
        param.parse(value, KEY)


@pytest.mark.parametrize(
    ("param", "value"),
    [
        (SHARE, "half"),
        (SHARE, "5"),
        (SHARE, 5.0),
        (SHARE, [0.2, 0.5]),
        (COUNT, "3.5"),
        (COUNT, []),
        (COUNT, "auto"),
        (RANGE, [1, 2, 3]),
        (RANGE, "7"),
        (CHANNELS, [0.1, 0.2]),
        (FLAG, "maybe"),
    ],
)
def test_what_means_nothing_has_no_hint(param: Param[Any], value: object) -> None:
    with pytest.raises(UserError, match=r"is not allowed\. Allowed: "):
        param.parse(value, KEY)


@pytest.mark.parametrize(
    ("param", "value"),
    [(NUMBER, HUGE), (SHARE, -HUGE), (RANGE, [0, HUGE]), (CHANNELS, [0, 0, HUGE])],
    ids=["number", "share", "range", "channels"],
)
def test_numbers_too_large_for_a_float_are_refused(param: Param[Any], value: object) -> None:
    with pytest.raises(UserError, match=r"is not allowed\. Allowed: "):
        param.parse(value, KEY)


@pytest.mark.parametrize(
    ("param", "given", "near"),
    [
        (CHOICE, "horizontl", "horizontal"),
        (CHOICE, "Vertical", "vertical"),
        (CHOICE, "vert", "vertical"),
        (VARIANT, "32", "320"),
        (VARIANT, 32, "320"),
    ],
)
def test_unknown_choice_suggests_the_closest(param: Choice, given: object, near: str) -> None:
    with pytest.raises(UserError) as caught:
        param.parse(given, KEY)
    expected = f"{KEY}: unknown name '{given}'. Did you mean '{near}'? Allowed: {', '.join(param.options)}."
    assert str(caught.value) == expected


def test_unknown_choice_without_a_close_name() -> None:
    with pytest.raises(UserError) as caught:
        CHOICE.parse("xyz", KEY)
    assert str(caught.value) == f"{KEY}: unknown name 'xyz'. Allowed: horizontal, vertical."


@pytest.mark.parametrize("param", ALL, ids=lambda param: type(param).__name__)
def test_null_only_where_optional(param: Param[Any]) -> None:
    with pytest.raises(UserError, match="None is not allowed"):
        param.parse(None, KEY)
    optional = replace(param, optional=True)
    assert optional.parse(None, KEY) is None
    with pytest.raises(UserError, match=r" or null\.$"):
        optional.parse(object(), KEY)


@pytest.mark.parametrize(
    ("param", "value", "shown"),
    [
        (NUMBER, 1.0, "1"),
        (Number(unit="deg", doc=""), 0.5, "0.5 deg"),
        (SIDE, 12, "12 px"),
        (FLAG, True, "true"),
        (CHOICE, "vertical", "vertical"),
        (ANGLES, (-7.0, 7.5), "-7..7.5 deg"),
        (AREAS, (0.35, 1.0), "0.35..1"),
        (ANGLES, Values((30.0,)), "30 deg"),
        (ANGLES, Values((-30.0, 30.0)), "+-30 deg"),
        (ANGLES, Values((10.0, -10.0, 20.0, -20.0)), "+-(10 or 20) deg"),
        (RANGE, Values((3.0, 1.0, 3.0, 2.0)), "1 or 2 or 3"),
        (RANGE, Values((0.0, 1.0, 2.0, 3.0, 5.5)), "0..5.5 in 5 levels"),
    ],
)
def test_show(param: Param[Any], value: object, shown: str) -> None:
    assert param.show(value) == shown


@pytest.mark.parametrize("param", ALL, ids=lambda param: type(param).__name__)
def test_show_nothing(param: Param[Any]) -> None:
    assert param.show(None) == "null"


@pytest.mark.parametrize(
    ("param", "default"),
    [
        (Number(default=2, doc=""), 2.0),
        (Range(default=(-7, 7), doc=""), (-7.0, 7.0)),
        (Channels(default=(0, 0, 1), within=(0, 1), doc=""), (0.0, 0.0, 1.0)),
        (Count(default=2, doc=""), 2),
        (Number(doc=""), None),
    ],
)
def test_default_is_converted_like_a_configured_value(param: Param[Any], default: object) -> None:
    assert repr(param.default) == repr(default)


UNIFORM = np.array([0.0, 0.25, 0.5, 0.75, np.nextafter(1, 0)])


@pytest.mark.parametrize(
    ("param", "value", "expected"),
    [
        (RANGE, (-2.0, 6.0), [-2, 0, 2, 4, 6]),
        (RANGE, (3.0, 3.0), [3, 3, 3, 3, 3]),
        (RANGE, Values((7.0, -1.0)), [7, 7, -1, -1, -1]),
        (RANGE, Values((1.0, 2.0, 3.0, 1.0)), [1, 2, 3, 1, 1]),
        (RANGE, Values((4.0,)), [4, 4, 4, 4, 4]),
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
        with pytest.raises(UserError, match=r"Allowed: \[low, high\]"):
            param.parse(given, "key")
    else:
        assert param.parse(given, "key") == pytest.approx(expected)


@pytest.mark.parametrize("span", [(0.0, 3.0), (1.0, 100.0), (0.0, 64.0), (-5.0, 5.0)])
def test_integer_draws_stay_in_range_for_uniforms_close_to_one(span: tuple[float, float]) -> None:
    drawn = Range(whole=True, doc="").draw(span, np.array([np.nextafter(1, 0), 1 - 2**-53, 0.0]))
    assert drawn.tolist() == [span[1], span[1], span[0]]


def test_invalid_default_is_refused_at_declaration() -> None:
    with pytest.raises(ValueError, match=r"the default 7 is not allowed\. Allowed: a number from 0 to 1"):
        Number(default=7, within=(0, 1), doc="share")
    with pytest.raises(ValueError, match=r"the default \(1, 0\) is not allowed\. Allowed: \[low, high\]"):
        Range(default=(1, 0), doc="reversed")
    with pytest.raises(ValueError, match=r"the default \(0, 0\.5\) is not allowed\. Allowed: .*whole numbers"):
        Range(default=(0, 0.5), whole=True, doc="half")


def test_first_line_of_an_error() -> None:
    assert first_line(ValueError("what\nand where")) == "what"
    assert first_line(KeyError()) == "KeyError"


def test_suggest_sorts_names_and_accepts_none() -> None:
    assert suggest("rotat", ["warp", "rotate"]) == " Did you mean 'rotate'? Allowed: rotate, warp."
    assert suggest("rotate", []) == " Allowed: (none)."
    assert suggest("AdamW", ["adam", "adamw"]) == " Did you mean 'adamw'? Allowed: adam, adamw."


PARAMS: dict[str, Param[Any]] = {
    "angle_range": Range(default=(-7.0, 7.0), within=(-90, 90), doc="angle"),
    "fill": Count(default=3, within=(0, 255), doc="gray level"),
    "root": Text(required=True, doc="folder"),
}


def test_mapping_is_completed_with_defaults_in_the_order_of_declaration() -> None:
    parsed = parse_params(PARAMS, {"root": "here", "fill": 9}, "step")
    assert list(parsed.items()) == [("angle_range", (-7.0, 7.0)), ("fill", 9), ("root", "here")]


def test_null_counts_as_an_empty_mapping() -> None:
    assert parse_params({"fill": PARAMS["fill"]}, None, "step") == {"fill": 3}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"root": "r", "angel_range": [0, 1]}, "step.angel_range: unknown key. Did you mean 'angle_range'? "),
        ({"root": "r", "xyz": 1}, "step.xyz: unknown key. Allowed: angle_range, fill, root."),
        ({"root": "r", 7: 1}, "step.7: unknown key. Allowed: angle_range, fill, root."),
        ({"root": "r", "fill": 256}, "step.fill: 256 is not allowed. Allowed: a whole number from 0 to 255."),
        ({"root": "r", "fill": None}, "step.fill: None is not allowed. Allowed: a whole number from 0 to 255."),
        ({}, "step.root: missing. Allowed: text (folder)."),
        (None, "step.root: missing. Allowed: text (folder)."),
        ({"root": None}, "step.root: missing. Allowed: text (folder)."),
        ([1], "step: [1] is not allowed. Allowed: a mapping of angle_range, fill, root."),
        ("root", "step: 'root' is not allowed. Allowed: a mapping of angle_range, fill, root."),
        (0, "step: 0 is not allowed. Allowed: a mapping of angle_range, fill, root."),
    ],
)
def test_invalid_mappings(given: object, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_params(PARAMS, given, "step")
    assert str(caught.value).startswith(expected)


def test_key_path_at_the_top_has_no_dot_before_it() -> None:
    with pytest.raises(UserError, match=r"^fil: unknown key\. Did you mean 'fill'\?"):
        parse_params(PARAMS, {"root": "r", "fil": 1}, "")
    with pytest.raises(UserError, match=r"^root: missing\."):
        parse_params(PARAMS, {}, "")
    with pytest.raises(UserError, match=r"^fill: 256 is not allowed\."):
        parse_params(PARAMS, {"root": "r", "fill": 256}, "")


@dataclass(frozen=True, kw_only=True)
class Section:
    root: str = setting(Text(required=True, doc="folder"))
    epochs: int = setting(Count(default=8, within=(1, 100), doc="epochs"))
    made: str = "not a setting"


def test_a_name_that_others_use() -> None:
    params = {
        "epochs": Count(aliases=("max_epochs", "rounds"), doc="epochs"),
        "around": Flag(default=False, doc="flag"),
    }
    for name in ("max_epochs", "rounds"):
        with pytest.raises(
            UserError, match=rf"^fit\.{name}: unknown key\. Did you mean 'epochs'\? Allowed: around, ep"
        ):
            parse_params(params, {name: 3}, "fit")


def test_dataclass_of_settings() -> None:
    assert list(settings(Section)) == ["root", "epochs"]
    assert Section(root="r") == Section(root="r", epochs=8)
    assert parse_settings(Section, {"root": "r", "epochs": 9}, "fit") == Section(root="r", epochs=9)
    with pytest.raises(TypeError, match="root"):
        Section()
    with pytest.raises(UserError, match=r"^fit\.epoch: unknown key\. Did you mean 'epochs'\?"):
        parse_settings(Section, {"root": "r", "epoch": 9}, "fit")
    with pytest.raises(UserError, match=r"^fit\.epochs: 0 is not allowed\. Allowed: a whole number from 1 to 100\.$"):
        parse_settings(Section, {"root": "r", "epochs": 0}, "fit")
    with pytest.raises(UserError, match=r"^fit\.made: unknown key"):
        parse_settings(Section, {"root": "r", "made": "up"}, "fit")
