"""Reading and writing in a folder that may come from a stranger."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from augment.support.errors import UserError
from augment.support.untrusted_files import (
    UnreadableError,
    append,
    check_folder,
    explained_damage,
    locked,
    parse_json,
    read_as,
    read_bytes,
    read_object,
    regular,
    unlinked_folder,
)


def test_a_regular_file_is_read_through_no_link(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "inner").mkdir(parents=True)
    (run / "inner" / "a").write_text('{"a": 1}')
    assert read_object(run / "inner" / "a", run) == {"a": 1}
    (run / "file").symlink_to(run / "inner" / "a")
    (run / "folder").symlink_to("inner")
    for name in ("file", "folder/a"):
        with pytest.raises(UnreadableError, match="is a link, which is not followed"):
            read_bytes(run / name, run)
    (tmp_path / "mine").symlink_to(run)  # the folder itself may be one
    assert regular(tmp_path / "mine" / "inner" / "a", tmp_path / "mine").exists()


def test_what_never_ends_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(UnreadableError, match="not a regular file"):
            read_bytes(tmp_path / name)
    (tmp_path / "large").write_bytes(bytes(11))
    with pytest.raises(UnreadableError, match=r"11 bytes, but at most 10"):
        read_bytes(tmp_path / "large", most=10)


class Pair(NamedTuple):
    name: str
    within: tuple[float, float] = (0, 1)


@dataclass(frozen=True)
class Made:
    count: int
    folder: Path
    best: Mapping[str, float]
    pairs: tuple[Pair, ...] = ()
    seconds: float | None = None
    rest: Any = None


def test_a_dataclass_is_read(tmp_path: Path) -> None:
    file = tmp_path / "made.json"
    text = (
        '{"count": 3, "folder": 1, "best": {"a": 1, "b": null}, "pairs": [["x", [0, 2.5]], {"name": "y"}], "more": 1}'
    )
    file.write_text(text)
    made = read_as(Made, file, folder=tmp_path)
    assert (made.count, made.folder, made.seconds, made.rest) == (3, tmp_path, None, None)
    assert made.pairs == (Pair("x", (0, 2.5)), Pair("y"))
    assert isinstance(made.best["a"], int)
    assert math.isnan(made.best["b"])


@pytest.mark.parametrize(
    "wrong",
    [
        *('"count": "3"', '"count": 9007199254740992', '"count": null', '"best": [1]', '"best": {"a": "1"}'),
        *('"pairs": [["x", [1]]]', '"pairs": [[]]', '"pairs": 1', '"seconds": {}'),
    ],
)
def test_values_of_other_types_are_rejected(wrong: str, tmp_path: Path) -> None:
    file = tmp_path / "made.json"
    file.write_text('{"count": 3, "best": {}, ' + wrong + "}")
    with pytest.raises(UnreadableError, match=r"made\.json is damaged, or was not written by a run"):
        read_as(Made, file, folder=tmp_path)


@pytest.mark.parametrize("text", ["", "[" * 10**5, "[" * 50 + "]" * 50, "1" * 5000, '{"a":', "NULL"])
def test_json_that_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


@pytest.mark.parametrize("text", ["[]", "1", "null", "\0", "{"])
def test_other_contents_are_named(text: str, tmp_path: Path) -> None:
    file = tmp_path / "summary.json"
    file.write_text(text)
    with pytest.raises(UnreadableError, match=r"summary\.json is damaged, or was not written by a run \(.+\)\."):
        read_object(file)
    with pytest.raises(UnreadableError, match=r"summary\.json is damaged"), explained_damage(file):
        int(float("inf"))


def test_a_folder_that_is_a_link_is_not_written_into(tmp_path: Path) -> None:
    (sweep := tmp_path / "sweep").mkdir()
    (sweep / "job").mkdir()
    (tmp_path / "mine").symlink_to(sweep)
    (sweep / "latest").symlink_to("job")
    (sweep / "notes").symlink_to(__file__)
    (sweep / "job" / "deep").symlink_to(tmp_path)  # as trackers make them
    for folder in (sweep, tmp_path / "mine", tmp_path / "none"):
        check_folder(folder)
    assert unlinked_folder(sweep / "job") == sweep / "job"
    (sweep / "other").symlink_to(tmp_path)
    for check, folder in ((check_folder, sweep), (unlinked_folder, sweep / "other")):
        with pytest.raises(UserError, match=r"other is a link, .* Remove it"):
            check(folder)


def test_hard_links_are_read_but_not_changed(tmp_path: Path) -> None:
    (precious := tmp_path / "precious").write_text("1")
    os.link(precious, tmp_path / "rows")
    assert read_bytes(tmp_path / "rows") == b"1"
    with pytest.raises(UnreadableError, match="rows is a hard link of another file, which would change"):
        append(tmp_path / "rows", "2\n")
    with pytest.raises(UnreadableError, match="rows is a hard link"), locked(tmp_path / "rows"):
        pass
    assert precious.read_text() == "1"


def test_lines_are_appended_to_regular_files(tmp_path: Path) -> None:
    append(tmp_path / "rows", "1\n")
    append(tmp_path / "rows", "2\n")
    assert (tmp_path / "rows").read_text() == "1\n2\n"
    (tmp_path / "link").symlink_to("rows")
    with pytest.raises(UserError, match="a link"):
        append(tmp_path / "link", "3\n")
