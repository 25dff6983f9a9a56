"""The cache of checks: a file is opened again only if it has changed."""

import json
import os
from pathlib import Path

import pytest
from image_bytes import encoded, half, write

from augment.data import check
from augment.data.check import Problem, check_files
from augment.data.decoding import Decoder


def stamp(file: Path, seconds: int) -> None:
    os.utime(file, (seconds, seconds))


def test_an_interrupted_check_keeps_its_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [write(tmp_path, f"{number}.jpg", b"") for number in range(70)]
    cache = tmp_path / "check.json"
    judge = check._judge

    def interrupt(file: Path, decoder: Decoder) -> object:
        if file.name == "69.jpg":
            raise KeyboardInterrupt
        return judge(file, decoder)

    monkeypatch.setattr(check, "_judge", interrupt)
    with pytest.raises(KeyboardInterrupt):
        check_files(files, cache=cache)
    assert len(json.loads(cache.read_text())["files"]) == 64  # the first chunk


def test_cached_files_are_not_opened_again(tmp_path: Path, judged: list[str]) -> None:
    cache = tmp_path / "new" / "folder" / "check.json"
    files = [write(tmp_path, "good.jpg", encoded("JPEG")), write(tmp_path, "bad.jpg", b"")]
    first = check_files(files, cache=cache)
    assert sorted(judged) == ["bad.jpg", "good.jpg"]
    judged.clear()
    assert check_files(files, cache=cache) == first == [Problem(files[1], "is empty (0 bytes)")]
    assert judged == []


def test_changed_files_are_checked_again(tmp_path: Path, judged: list[str]) -> None:
    cache = tmp_path / "check.json"
    files = [write(tmp_path, f"{name}.jpg", encoded("JPEG")) for name in ("same", "shorter", "newer", "gone")]
    for file in files:
        stamp(file, 1000)
    assert check_files(files, cache=cache) == []
    judged.clear()

    files[1].write_bytes(half(encoded("JPEG")))
    stamp(files[1], 1000)
    files[2].write_bytes(bytes(len(encoded("JPEG"))))
    stamp(files[2], 1001)
    files[3].unlink()
    assert [problem.file for problem in check_files(files, cache=cache)] == files[1:]
    assert sorted(judged) == ["gone.jpg", "newer.jpg", "shorter.jpg"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"version": 0, "files": {"FILE": "0 0  is fine"}}',
        b'{"version": 5, "files": []}',
        b'{"version": 5, "files": {"FILE": "0"}}',
    ],
)
def test_damaged_cache_is_ignored_and_replaced(tmp_path: Path, judged: list[str], content: bytes) -> None:
    cache = tmp_path / "check.json"
    file = write(tmp_path, "bad.jpg", b"")
    cache.write_bytes(content.replace(b"FILE", str(file).encode()))
    for _ in range(2):
        assert check_files([file], cache=cache) == [Problem(file, "is empty (0 bytes)")]
    assert judged == ["bad.jpg"]
