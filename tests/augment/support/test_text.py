"""Counts, shares, numbers and lists of names as text."""

import pytest

from augment.support.formatting import from_table_cell, list_some, printable, table_cell


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@x", "\tx", "\rx", "'x", "cat", "", "'=x"])
def test_a_cell_is_no_formula_and_gives_the_name_again(name: str) -> None:
    cell = table_cell(name)
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert name == "'=x" or from_table_cell(cell) == name


def test_control_characters_do_not_reach_a_terminal() -> None:
    assert printable("a\x1b]0;title\x07\nü\t\x9b") == "a?]0;title?\nü\t?"


def test_list_some_counts_the_rest() -> None:
    assert list_some("ab") == "a, b"
    assert list_some(map(str, range(5))) == "0, 1, 2, 3, 4"
    assert list_some(map(str, range(1006))) == "0, 1, 2, 3, 4 and 1,001 more"
    assert list_some("abc", most=1, separator=" = ") == "a and 2 more"
