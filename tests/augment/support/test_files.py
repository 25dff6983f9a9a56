"""Atomic writing, JSON, and paths in messages."""

import json
import math
import os
import stat
from pathlib import Path

import pytest

from augment.support.errors import UserError
from augment.support.files import atomic_path, json_line, remove_parts, shown, write_atomically, write_json


def test_a_pipe_is_written_to_but_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, "text", follow=True)
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert [file.name for file in tmp_path.iterdir()] == ["pipe"]


def test_a_symbolic_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "there" / "file")
    write_atomically(tmp_path / "link", "new", follow=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "file").read_text() == "new"


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_no_link_in_the_folder_of_a_run_is_followed(kind: str, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (run := tmp_path / "run").mkdir()
    if kind == "folder":
        (run / "inner").symlink_to(tmp_path / "outside")
        with pytest.raises(UserError, match=r"inner is a link .* Remove it"):
            write_atomically(run / "inner" / "file", "new", folder=run)
    else:
        os.mkfifo(run / "file") if kind == "pipe" else (run / "file").symlink_to(tmp_path / "outside" / "file")
        write_atomically(run / "file", "new")
        write_atomically(run / "inner" / "deep" / "file", "new", folder=run)
        assert (run / "file").is_file()
        assert not (run / "file").is_symlink()
        assert (run / "inner" / "deep" / "file").read_text() == "new"
    assert os.listdir(tmp_path / "outside") == []


def test_a_failure_keeps_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")

    def write_half() -> None:
        with atomic_path(tmp_path / "file") as part:
            part.write_text("ne")
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        write_half()
    assert (tmp_path / "file").read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    kept = [".hidden", ".mine.part", "file.part"]
    for name in (*kept, f".{'0f' * 16}.part"):
        (tmp_path / name).write_text("text")
    (tmp_path / f".{'a1' * 16}.part" / "inside").mkdir(parents=True)
    remove_parts(tmp_path)
    assert sorted(os.listdir(tmp_path)) == kept


def test_json_has_null_for_numbers_that_are_not_finite(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"rows": [{"loss": math.nan, "n": 3}, (1.5, math.inf)], "text": "nan"})
    assert json.loads((tmp_path / "a.json").read_text()) == {
        "rows": [{"loss": None, "n": 3}, [1.5, None]],
        "text": "nan",
    }


def test_json_of_other_types_is_an_error() -> None:
    with pytest.raises(TypeError, match="Object of type set is not JSON serializable"):
        json_line({"names": {"ab", "cd"}})


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "a" / "set") as part:
        part.mkdir()
        (part / "x").write_text("1")
        assert not (tmp_path / "a" / "set").exists()
    assert (tmp_path / "a" / "set" / "x").read_text() == "1"

    def fail() -> None:
        with atomic_path(tmp_path / "a" / "other") as part:
            part.mkdir()
            (part / "x").write_text("1")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["set"]


def test_paths_in_the_current_folder_are_shown_relative_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "a" / "b") == Path("a/b")
    for other in (tmp_path, tmp_path.parent / "c", Path("d/e"), Path("../f")):
        assert shown(other) == other
