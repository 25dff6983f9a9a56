"""YAML files that would run code, take long or fill the memory are rejected in a sentence."""

from itertools import pairwise
from pathlib import Path

import pytest

from augment.support.errors import UserError
from augment.support.yaml_files import MAX_YAML_VALUES, read_list, read_yaml

TOO_LARGE = "the file is too large. The limits are 1,048,576 bytes, 20,000 values, 40 levels"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "x.yaml"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("[" * 100_000, TOO_LARGE, id="a deep list"),
        pytest.param("\n".join(" " * i + "a:" for i in range(500)), TOO_LARGE, id="a deep mapping"),
        pytest.param("\n".join(f"k{i}: 1" for i in range(MAX_YAML_VALUES)), TOO_LARGE, id="many values"),
        pytest.param(f"a: [{{{'.' * 256}: 1}}]", "255 characters per key", id="a long key"),
        pytest.param("#" * 2**21, "the file has 2,097,152 bytes, but at most 1,048,576", id="a large file"),
        pytest.param("a: !!python/object/apply:os.system [ls]", "the tag tag:yaml.org,2002:python/object", id="code"),
        pytest.param("a: !mine x", "the tag !mine", id="an unknown tag"),
        pytest.param("a: [1, 2\nb: 3", "while parsing a flow sequence from line 1, column 4. Write ", id="a list"),
        pytest.param("a: \0", "control characters are not allowed. Write ", id="no text"),
        pytest.param("a:\n  b: 1\n  b: 2", "line 3, column 3: found duplicate key b while", id="a key twice"),
        pytest.param("a:\n\tb: 1", "line 2, column 1: found character that cannot start any token", id="a tab"),
        pytest.param('a: "b\nc: 1', "from line 1, column 4. Write the", id="a quote"),
        pytest.param("a:\n  b: 1\n c: 2", "line 3, column 2: did not find expected key", id="an indent"),
        pytest.param("a: 1\n---\nb: 2", "expected a single document in the stream", id="two documents"),
        pytest.param("a: " + "9" * 5000, "cannot be read: ", id="a number of 5,000 digits"),
    ],
)
@pytest.mark.parametrize("saved", [False, True])
def test_what_cannot_be_used_is_rejected(file: Path, text: str, reason: str, saved: bool) -> None:
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        read_yaml(file, folder=file.parent if saved else None)
    assert str(caught.value).startswith(f"{file}: ")
    assert reason in str(caught.value) or (len(text) > 2**20 and TOO_LARGE in str(caught.value))
    assert "\n" not in str(caught.value)


def test_aliases_count_as_what_they_repeat(file: Path) -> None:
    file.write_text("a: &a {b: 1}\nc: *a\n")
    assert read_yaml(file) == {"a": {"b": 1}, "c": {"b": 1}}
    bomb = "a: &a [x, x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}, *{a}]\n" for a, b in pairwise("abcdefghijk"))
    for text, why in (("a: &a [*a]", r"the alias \*a contains itself"), (bomb, "the file is too large")):
        file.write_text(text)
        with pytest.raises(UserError, match=rf"x\.yaml: {why}"):
            read_yaml(file)


def test_a_saved_file_has_the_same_values(file: Path) -> None:
    values = "a: 1e-3\nb: 2020-01-01\nc: .nan\nd: ${x}\ne: 'é'\nf: {g: [yes, 0x10, null], h: {}}\ni: 1_0\nj: |\n  x\n"
    file.write_text(values)
    assert repr(read_yaml(file, folder=file.parent)) == repr(read_yaml(file))


def test_what_is_not_utf_8_is_found(file: Path) -> None:
    file.write_bytes("a: é\nb: ".encode() + b"\xff\n")
    with pytest.raises(UserError, match=r"x\.yaml: cannot be read: 'utf-8' codec can't decode byte 0xff .* in UTF-8\."):
        read_yaml(file)


def test_lists(file: Path) -> None:
    file.write_text("")
    assert read_list(file, file.parent) == []
    file.write_text("a: 1")
    with pytest.raises(UserError, match=r"must contain a YAML list\."):
        read_list(file, file.parent)
