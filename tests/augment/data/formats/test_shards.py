"""Patterns of file names, and error messages about them."""

from pathlib import Path

import pytest

from augment.data.formats.records import expand_braces, find_shards
from augment.support.errors import UserError


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("a-{08..11}.tar", ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]),
        ("a-{8..11}.tar", ["a-8.tar", "a-9.tar", "a-10.tar", "a-11.tar"]),
        ("a-{0..10}", [f"a-{number}" for number in range(11)]),
        ("{x,y}-{0..1}", ["x-0", "x-1", "y-0", "y-1"]),
        ("a{,-b}", ["a", "a-b"]),
    ],
)
def test_braces(pattern: str, names: list[str]) -> None:
    assert expand_braces(pattern, "k") == names


@pytest.mark.parametrize("pattern", ["a{0..", "a}", "a{3..1}", "a{b}", "a{b,{c}}"])
def test_malformed_braces_are_rejected(pattern: str) -> None:
    with pytest.raises(UserError, match=r"^k: .*braces must hold a range or a list"):
        expand_braces(pattern, "k")


def test_files_in_the_order_of_braces_and_names(tmp_path: Path) -> None:
    for name in ("b-1", "a-2", "a-1", "a-[3]"):
        (tmp_path / name).touch()
    found = find_shards(f"{tmp_path}/{{b,a}}-[12]", "k")
    assert [file.name for file in found] == ["b-1", "a-1", "a-2"]
    assert [file.name for file in find_shards(f"{tmp_path}/a-[3]", "k")] == ["a-[3]"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("train-{0..2}.tar", r"the file .*train-2\.tar does not exist\. Did you mean .*train-[01]\.tar\?"),
        ("tain-*.tar", r"no file matches\. Did you mean .*train-[01]\.tar\?"),
        ("no/train.tar", "The folder .*no does not exist either"),
        ("{train-0,train-*}.tar", r"names .*train-0\.tar twice"),
        ("", "is a folder"),
    ],
)
def test_missing_files_are_named(pattern: str, message: str, tmp_path: Path) -> None:
    for name in ("train-0.tar", "train-1.tar"):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=message):
        find_shards(f"{tmp_path}/{pattern}", "data.train")


def test_indexes_next_to_files_are_skipped(tmp_path: Path) -> None:
    for name in ("t-0.tar", "t-0.tar.idx", "t-1.rec", "t-1.idx", "t-1.lst"):
        (tmp_path / name).touch()
    found = [file.name for file in find_shards(f"{tmp_path}/t-*", "k")]
    assert found == ["t-0.tar", "t-1.rec"]
    assert [file.name for file in find_shards(f"{tmp_path}/*.lst", "k")] == ["t-1.lst"]
