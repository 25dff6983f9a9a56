"""Errors that are written for people."""

from augment.support.errors import nearest


def test_the_nearest_name_is_suggested() -> None:
    assert nearest("lable", ["label", "image"]) == " Did you mean 'label'?"
    assert nearest("x", ["label", "image"]) == ""
