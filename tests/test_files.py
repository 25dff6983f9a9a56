"""Files that are written whole: what is there already and is no plain file stays what it is."""

import json
import math
import os
import stat
from pathlib import Path

import pytest

from augment.files import shown, write_json, write_whole


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, "text")
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert [file.name for file in tmp_path.iterdir()] == ["pipe"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "there" / "file")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "file").read_text() == "new"


def test_json_has_null_for_what_is_not_finite(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"rows": [{"loss": math.nan, "n": 3}, (1.5, math.inf)], "text": "nan"})
    assert json.loads((tmp_path / "a.json").read_text()) == {
        "rows": [{"loss": None, "n": 3}, [1.5, None]],
        "text": "nan",
    }


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_whole(tmp_path / "folder", "text")
    assert [file.name for file in tmp_path.rglob("*")] == ["folder"]


def test_a_path_below_the_current_folder_is_shown_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "a" / "b") == Path("a/b")
    for other in (tmp_path, tmp_path.parent / "c", Path("d/e"), Path("../f")):
        assert shown(other) == other
