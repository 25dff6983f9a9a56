"""Mappings of parameters, and dataclasses of settings."""

from dataclasses import dataclass
from typing import Any

import pytest

from augment.params import Count, Flag, Param, Range, Text, parse_params, parse_settings, setting, settings
from augment.support.errors import UserError

PARAMS: dict[str, Param[Any]] = {
    "angle_range": Range(default=(-7.0, 7.0), within=(-90, 90), doc="angle"),
    "fill": Count(default=3, within=(0, 255), doc="gray level"),
    "root": Text(required=True, doc="folder"),
}


def test_mapping_is_completed_with_defaults_in_the_order_of_declaration() -> None:
    parsed = parse_params(PARAMS, {"root": "here", "fill": 9}, "step")
    assert list(parsed.items()) == [("angle_range", (-7.0, 7.0)), ("fill", 9), ("root", "here")]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"root": "r", "angel_range": [0, 1]}, "step.angel_range: unknown key. Did you mean 'angle_range'? "),
        ({"root": "r", "xyz": 1}, "step.xyz: unknown key. Allowed: angle_range, fill, root."),
        ({"root": "r", 7: 1}, "step.7: unknown key. Allowed: angle_range, fill, root."),
        ({"root": "r", "fill": 256}, "step.fill: 256 is not allowed. Use a whole number from 0 to 255."),
        ({"root": "r", "fill": None}, "step.fill: None is not allowed. Use a whole number from 0 to 255."),
        ({}, "step.root is required: folder."),
        (
            [1],
            "step: [1] is not allowed. Use a mapping, such as step.angle_range=... Allowed keys: angle_range,",
        ),
    ],
)
def test_invalid_mappings(given: object, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_params(PARAMS, given, "step")
    assert str(caught.value).startswith(expected)


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
    with pytest.raises(UserError, match=r"^fit\.epochs: 0 is not allowed\. Use a whole number from 1 to 100\.$"):
        parse_settings(Section, {"root": "r", "epochs": 0}, "fit")
    with pytest.raises(UserError, match=r"^fit\.made: unknown key"):
        parse_settings(Section, {"root": "r", "made": "up"}, "fit")


def test_a_forgotten_dataclass_is_named() -> None:
    class Bare:
        epochs: int = setting(Count(default=8, within=(1, 100), doc="epochs"))

    class Derived(Section):
        deep: int = setting(Count(default=8, within=(1, 100), doc="depth"))

    class Without(Section):
        """It has no settings of its own, so it needs none."""

    for cls in (Bare, Derived, int):
        with pytest.raises(UserError, match=rf"{cls.__name__} is not a dataclass\. Decorate it with @dataclass\.$"):
            settings(cls)
    assert list(settings(Without)) == ["root", "epochs"]
