"""Errors that are written for people."""

from pathlib import Path

import pytest

from augment.support import errors
from augment.support.errors import UserError, describe_error, for_each, nearest, suggest, unknown_key
from augment.support.user_code import OwnCodeError


def test_the_nearest_name_is_suggested() -> None:
    assert nearest("lable", ["label", "image"]) == " Did you mean 'label'?"
    assert nearest("x", ["label", "image"]) == ""


def test_long_names_and_further_names_are_not_compared() -> None:
    assert nearest("a" * 100, ["a" * 99]) == f" Did you mean '{'a' * 99}'?"
    assert nearest("a" * 101, ["a" * 99]) == nearest("a" * 99, ["a" * 101]) == ""
    assert nearest("label", [*(f"name {number}" for number in range(10_000)), "lable"]) == ""


def test_suggest_sorts_up_to_a_hundred_names_and_accepts_none() -> None:
    assert suggest("rotat", ["warp", "rotate"]) == " Did you mean 'rotate'? Allowed: rotate, warp."
    assert suggest("rotate", []) == " Allowed: (none)."
    assert suggest("AdamW", ["adam", "adamw"]) == " Did you mean 'adamw'? Allowed: adam, adamw."
    assert suggest("x", [f"{number:03}" for number in range(1101)]).endswith("098, 099 and 1,001 more.")


def test_only_errors_of_other_code_name_their_type() -> None:
    assert describe_error(ValueError("odd")) == "ValueError: odd"
    assert describe_error(OwnCodeError("TypeError: odd (mine.py, line 3).")) == "TypeError: odd (mine.py, line 3)."


def test_up_to_five_wrong_lines_are_reported_at_once() -> None:
    def halve(number: int) -> int:
        if number % 2:
            raise UserError(f"{number} is odd.")
        return number // 2

    assert for_each(halve, [2, 4]) == [1, 2]
    with pytest.raises(UserError, match=r"^1 is odd\.\n3 is odd\.$"):
        for_each(halve, [1, 2, 3])
    with pytest.raises(UserError) as caught:
        for_each(halve, range(100))
    odd = [f"{number} is odd." for number in (1, 3, 5, 7, 9)]
    assert str(caught.value).splitlines() == [*odd, "... and 45 more."]


def test_an_unknown_key_on_the_upgrade_page_leads_there(monkeypatch: pytest.MonkeyPatch) -> None:
    hint = " See docs/upgrading.md, which mentions this key."
    assert str(unknown_key("data", "max_bad", ["dir"])) == f"data.max_bad: unknown key.{hint} Allowed: dir."
    assert str(unknown_key("data", "max", ["dir"])) == "data.max: unknown key. Allowed: dir."
    monkeypatch.setattr(errors, "_UPGRADING", Path("none"))  # as in an installed wheel
    assert str(unknown_key("data", "max_bad", ["dir"])) == "data.max_bad: unknown key. Allowed: dir."
