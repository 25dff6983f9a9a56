"""Counts, shares, numbers and lists of names as text."""

import pytest

from augment.support.text import (
    amount,
    from_table_cell,
    list_some,
    percent,
    plural,
    printable,
    short_number,
    table_cell,
)


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@x", "\tx", "\rx", "'x", "cat", "", "'=x"])
def test_a_cell_is_no_formula_and_gives_the_name_again(name: str) -> None:
    cell = table_cell(name)
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert name == "'=x" or from_table_cell(cell) == name


def test_control_characters_do_not_reach_a_terminal() -> None:
    assert printable("a\x1b]0;title\x07\nü\t\x9b") == "a?]0;title?\nü\t?"


def test_amount() -> None:
    assert amount(1, "class", "classes") == "1 class"
    assert amount(2000, "class", "classes") == "2,000 classes"
    assert amount(0, "image") == "0 images"


def test_plural() -> None:
    words = {"image": "images", "class": "classes", "batch": "batches", "box": "boxes", "epoch": "epochs"}
    assert {one: plural(2, one) for one in words} == words
    assert [plural(count, "has", "have") for count in (0, 1, 2)] == ["have", "has", "have"]


def test_percent_has_two_digits() -> None:
    assert [percent(share) for share in (0.1, 0.123, 0.00512, 0.996, 1.0)] == ["10%", "12%", "0.51%", "100%", "100%"]


def test_short_number() -> None:
    assert [short_number(value) for value in (0.12345, 12.345, -99.94, 1234.5)] == ["0.123", "12.3", "-99.9", "1,234"]


def test_list_some_counts_the_rest() -> None:
    assert list_some("ab") == "a, b"
    assert list_some(map(str, range(5))) == "0, 1, 2, 3, 4"
    assert list_some(map(str, range(1006))) == "0, 1, 2, 3, 4 and 1,001 more"
    assert list_some("abc", most=1, separator=" = ") == "a and 2 more"
