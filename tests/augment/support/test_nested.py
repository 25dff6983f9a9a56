"""What nested mappings hold, by key paths."""

from augment.support.nested import leaves, section_of


def test_leaves_have_key_paths_and_empty_mappings_are_leaves() -> None:
    values = {"seed": 0, "fit": {"lr": 0.1, "stages": {}, "betas": [0.9, {"a": 1}]}, 3: {"x": None}}
    assert list(leaves(values)) == [
        ("seed", 0), ("fit.lr", 0.1), ("fit.stages", {}), ("fit.betas", [0.9, {"a": 1}]), ("3.x", None),
    ]  # fmt: skip
    assert list(leaves(values["fit"], "fit.")) == list(leaves({"fit": values["fit"]}))
    assert list(leaves({})) == []


def test_a_section_that_is_no_mapping_is_empty() -> None:
    values = {"run": {"name": "a"}, "data": "photos"}
    assert section_of(values, "run") == {"name": "a"}
    assert section_of(values, "data") == section_of(values, "nothing") == {}
