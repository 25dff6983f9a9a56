"""The cache of checks: a file is opened again only if it has changed."""

import os
from pathlib import Path

import pytest
from image_bytes import encoded, half, write

from augment.data import cache as cache_module
from augment.data import check
from augment.data.check import Decoder, check_files


def stamp(file: Path, seconds: int) -> None:
    os.utime(file, (seconds, seconds))


def test_an_interrupted_check_keeps_its_verdicts(
    tmp_path: Path, judged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [write(tmp_path, f"{number}.jpg", b"") for number in range(70)]
    cache = tmp_path / "check.txt"
    examine = check._examine

    def interrupt(file: Path, decoder: Decoder) -> object:
        if file.name == "69.jpg":
            raise KeyboardInterrupt
        return examine(file, decoder)

    monkeypatch.setattr(check, "_examine", interrupt)
    with pytest.raises(KeyboardInterrupt):
        check_files(files, cache=cache)
    monkeypatch.setattr(check, "_examine", examine)
    judged.clear()
    assert len(check_files(files, cache=cache)) == 70
    assert sorted(judged) == [f"{number}.jpg" for number in range(64, 70)]  # all but the first chunk


@pytest.mark.parametrize("slow", [0, 1e9])  # with and without threads
def test_images_of_several_chunks_are_looked_up_in_order(
    tmp_path: Path, judged: list[str], slow: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "_CHUNK", 2)
    monkeypatch.setattr(cache_module, "_SLOW_LOOKUP", slow)
    files = [write(tmp_path, f"{number}.jpg", b"" if number % 3 else b"no image") for number in range(7)]
    found = check_files(files[:5], cache=tmp_path / "check.txt")
    judged.clear()
    found |= check_files(files[5:], cache=tmp_path / "check.txt")
    judged.clear()
    assert check_files(files, cache=tmp_path / "check.txt") == found
    assert (len(found), judged) == (7, [])


@pytest.mark.parametrize("chosen", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (0, 2, 3, 4), (0, 0, 1, 2, 2, 4), (3,)])
def test_cached_lines_are_found_in_any_order(
    tmp_path: Path, judged: list[str], chosen: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "_CHUNK", 2)
    cache = tmp_path / "check.txt"
    files = [write(tmp_path, f"{number}.jpg", bytes(number)) for number in range(5)]
    check_files(files[:3], cache=cache)
    files[1].write_bytes(b"longer")  # its first row is outdated
    known = check.examine_files(files, cache=cache)
    judged.clear()
    faults, lines = check.examine_files([files[index] for index in chosen], cache=cache)
    assert faults == {file: fault for file, fault in known[0].items() if files.index(file) in chosen}
    assert lines == [known[1][index] for index in chosen]
    assert judged == []


@pytest.mark.parametrize("lost", range(1, 8))
def test_a_torn_last_write_is_ignored(tmp_path: Path, judged: list[str], lost: int) -> None:
    """The machine stops while the cache is written: the row that is incomplete does not count, now or later."""
    cache = tmp_path / "check.txt"
    files = [write(tmp_path, f"{number}.jpg", b"") for number in range(3)]
    check_files(files[:2], cache=cache)
    cache.write_bytes(cache.read_bytes()[:-lost])
    for _ in range(2):
        assert check_files(files, cache=cache) == dict.fromkeys(files, "is empty (0 bytes)")
    # Without its last byte, the end of the line, the row is complete as soon as another one follows.
    assert sorted(judged) == ["0.jpg", "1.jpg", "1.jpg", "2.jpg"]


def test_cached_files_are_not_opened_again_and_new_verdicts_appended(tmp_path: Path, judged: list[str]) -> None:
    cache = tmp_path / "new" / "folder" / "check.txt"
    files = [write(tmp_path, f"{name}.jpg", encoded("JPEG") if name else b"") for name in ("a", "", "b")]
    check_files(files[:2], cache=cache)
    before = cache.read_bytes()
    assert check_files(files, cache=cache) == {files[1]: "is empty (0 bytes)"}
    assert cache.read_bytes().startswith(before)
    assert sorted(judged) == [".jpg", "a.jpg", "b.jpg"]


def test_changed_files_are_checked_again(tmp_path: Path, judged: list[str]) -> None:
    cache = tmp_path / "check.txt"
    files = [write(tmp_path, f"{name}.jpg", encoded("JPEG")) for name in ("same", "shorter", "newer", "gone")]
    for file in files:
        stamp(file, 1000)
    assert check_files(files, cache=cache) == {}
    judged.clear()

    files[1].write_bytes(half(encoded("JPEG")))
    stamp(files[1], 1000)
    files[2].write_bytes(bytes(len(encoded("JPEG"))))
    stamp(files[2], 1001)
    files[3].unlink()
    assert list(check_files(files, cache=cache)) == files[1:]
    assert sorted(judged) == ["gone.jpg", "newer.jpg", "shorter.jpg"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"version": 5, "files": {"FILE": "0 0  is fine"}}',
        b"5\nFILE\0STATE 0123456789abcdef \0\n",
        cache_module._VERSION + b"FILE\0STATE 0123456789abcdef ",
        cache_module._VERSION + b"FILE\0\n",
        cache_module._VERSION + b"\0\0\0\n\xff\n",
    ],
)
def test_damaged_cache_is_ignored_and_replaced(tmp_path: Path, judged: list[str], content: bytes) -> None:
    cache = tmp_path / "check.txt"
    file = write(tmp_path, "bad.jpg", b"")
    state = b"0 %d" % file.stat().st_mtime_ns
    cache.write_bytes(content.replace(b"FILE", str(file).encode()).replace(b"STATE", state))
    for _ in range(2):
        assert check_files([file], cache=cache) == {file: "is empty (0 bytes)"}
    assert judged == ["bad.jpg"]
