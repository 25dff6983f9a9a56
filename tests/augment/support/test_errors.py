"""Errors that are written for people."""

from augment.support.errors import nearest, suggest


def test_the_nearest_name_is_suggested() -> None:
    assert nearest("lable", ["label", "image"]) == " Did you mean 'label'?"
    assert nearest("x", ["label", "image"]) == ""


def test_suggest_sorts_names_and_accepts_none() -> None:
    assert suggest("rotat", ["warp", "rotate"]) == " Did you mean 'rotate'? Allowed: rotate, warp."
    assert suggest("rotate", []) == " Allowed: (none)."
    assert suggest("AdamW", ["adam", "adamw"]) == " Did you mean 'adamw'? Allowed: adam, adamw."
