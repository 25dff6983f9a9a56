"""YAML files that would run code, take long or fill the memory are refused in a sentence."""

from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from augment.support.errors import UserError
from augment.support.yaml_files import MAX_DEPTH, MAX_VALUES, _saved_loader, read_list, read_yaml

LETTERS = "abcdefghij"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in pairwise(LETTERS)
)  # fmt: skip
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, MAX_DEPTH + 1))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "x.yaml"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(BOMB, f"more than {MAX_VALUES:,} values, aliases included", id="aliases of aliases"),
        pytest.param("a: &a [*a]", f"more than {MAX_VALUES:,} values, aliases included", id="an alias of itself"),
        pytest.param(CHAIN, f"nested more than {MAX_DEPTH} levels deep", id="aliases that nest"),
        pytest.param("[" * 100_000, f"nested more than {MAX_DEPTH} levels deep", id="a deep list"),
        pytest.param("\n".join(" " * i + "a:" for i in range(500)), "nested more than", id="a deep mapping"),
        pytest.param("\n".join(f"k{i}: 1" for i in range(MAX_VALUES)), "more than", id="many values"),
        pytest.param("#" * 2**21, "2,097,152 bytes. Allowed: a", id="a large file"),
        pytest.param("a: !!python/object/apply:os.system [ls]", "the tag tag:yaml.org,2002:python/object", id="code"),
        pytest.param("a: !!python/object/apply:pathlib.Path [x]", "the tag tag:yaml.org", id="an object"),
        pytest.param("a: !mine x", "could not determine a constructor for the tag '!mine'", id="an unknown tag"),
        pytest.param("a: [", "line 2, column 1: a value, or the end of a { or [, is missing.", id="an open end"),
        pytest.param("a: [1, 2\nb: 3", "line 1, column 4: this [ is not closed by a ] before line 2", id="a list"),
        pytest.param("a: {b: 1\nc: {}", "line 1, column 4: this { is not closed by a } before line 2", id="a brace"),
        pytest.param("a: {b: 1]}", "line 1, column 4: this { is not closed by a } before line 1", id="another bracket"),
        pytest.param("a: \0", "line 1, column 4: a control character. Allowed: text without them.", id="no text"),
        pytest.param("a:\n  b: 1\n  b: 2", "line 3, column 3: the key b is in this mapping already.", id="a key twice"),
        pytest.param("a:\n\tb: 1", "line 2, column 1: a tab. Allowed: spaces.", id="a tab"),
        pytest.param("a: @b", "line 1, column 4: no value begins with @. Allowed: quotes around it.", id="a sign"),
        pytest.param('a: "b\nc: 1', "line 1, column 4: this quote is not closed.", id="a quote"),
        pytest.param("a:\n  b: 1\n c: 2", "line 3, column 2: while parsing a block mapping did not", id="an indent"),
        pytest.param("a: 1\n---\nb: 2", "a second document begins", id="two documents"),
        pytest.param("a: " + "9" * 5000, "cannot be read: ", id="a number of 5,000 digits"),
    ],
)
@pytest.mark.parametrize("saved", [False, True])
def test_what_cannot_be_used_is_refused(file: Path, text: str, reason: str, saved: bool) -> None:
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        read_yaml(file, folder=file.parent if saved else None)
    assert str(caught.value).startswith(f"{file}: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_saved_file_has_the_same_values(file: Path) -> None:
    values = "a: 1e-3\nb: 2020-01-01\nc: .nan\nd: ${x}\ne: 'é'\nf: {g: [yes, 0x10, null], h: {}}\ni: 1_0\nj: |\n  x\n"
    file.write_text(values)
    assert repr(read_yaml(file, folder=file.parent)) == repr(read_yaml(file))
    assert issubclass(_saved_loader(), yaml.CSafeLoader)


def test_a_file_that_is_missing(file: Path) -> None:
    with pytest.raises(UserError, match=r"x\.yaml: cannot be read: No such file or directory\. Allowed: a YAML file\."):
        read_yaml(file)


def test_what_is_not_utf_8_is_found(file: Path) -> None:
    file.write_bytes("a: é\nb: ".encode() + b"\xff\n")
    with pytest.raises(UserError, match=r"x\.yaml: line 2, column 4: this is not UTF-8\."):
        read_yaml(file)


def test_values_are_those_of_hydra_and_interpolations_stay_text(file: Path) -> None:
    file.write_text("lr: 1e-3\nday: 2020-01-01\nhome: ${oc.env:HOME}\nbase: &b {x: 1}\nmine: {<<: *b, y: null}\n")
    assert read_yaml(file) == {
        "lr": 0.001,
        "day": "2020-01-01",
        "home": "${oc.env:HOME}",
        "base": {"x": 1},
        "mine": {"x": 1, "y": None},
    }


@pytest.mark.parametrize(("text", "expected"), [("", {}), ("[1, 2]", [1, 2]), ("x", "x")])
def test_a_file_need_not_hold_a_mapping(file: Path, text: str, expected: object) -> None:
    file.write_text(text)
    assert read_yaml(file) == expected


def test_a_missing_file_is_named(file: Path) -> None:
    with pytest.raises(UserError, match=r"x\.yaml: cannot be read: .*No such file"):
        read_yaml(file)


def test_lists(file: Path) -> None:
    file.write_text("")
    assert read_list(file, file.parent) == []
    file.write_text("a: 1")
    with pytest.raises(UserError, match=r"holds no list. Allowed: a YAML list\."):
        read_list(file, file.parent)
