"""Errors that are written for people."""

from augment.support.errors import describe_error, nearest, suggest
from augment.support.user_code import OwnCodeError


def test_the_nearest_name_is_suggested() -> None:
    assert nearest("lable", ["label", "image"]) == " Did you mean 'label'?"
    assert nearest("x", ["label", "image"]) == ""


def test_long_names_and_further_names_are_not_compared() -> None:
    assert nearest("a" * 100, ["a" * 99]) == f" Did you mean '{'a' * 99}'?"
    assert nearest("a" * 101, ["a" * 99]) == nearest("a" * 99, ["a" * 101]) == ""
    assert nearest("label", [*(f"name {number}" for number in range(10_000)), "lable"]) == ""


def test_suggest_sorts_names_and_accepts_none() -> None:
    assert suggest("rotat", ["warp", "rotate"]) == " Did you mean 'rotate'? Allowed: rotate, warp."
    assert suggest("rotate", []) == " Allowed: (none)."
    assert suggest("AdamW", ["adam", "adamw"]) == " Did you mean 'adamw'? Allowed: adam, adamw."


def test_only_errors_of_other_code_name_their_type() -> None:
    assert describe_error(ValueError("odd")) == "ValueError: odd"
    assert describe_error(OwnCodeError("TypeError: odd (mine.py, line 3).")) == "TypeError: odd (mine.py, line 3)."
