"""Archives: downloaded once, checked, and unpacked completely or not at all."""

from pathlib import Path

import pytest
from archives import Server, names_in, packed, server

from augment.data.sources.imagenette import Archive, prepare_archive
from augment.support.errors import UserError

__all__ = ["server"]


def test_a_full_download_is_the_only_one(server: Server, tmp_path: Path) -> None:
    folder = prepare_archive(Archive(server.url("mine.tgz"), server.md5), tmp_path / "new" / "data")
    assert folder == tmp_path / "new" / "data" / "mine"
    assert sorted(path.name for path in folder.rglob("*.JPEG")) == [f"{n}.JPEG" for n in (0, 0, 1, 1, 2, 2)]
    assert sorted(path.name for path in folder.iterdir()) == ["train", "val"]
    assert names_in(folder.parent) == ["mine", "mine.tgz"]
    (tmp_path / "new" / "data" / "mine.tgz").unlink()
    assert prepare_archive(Archive(server.url("mine.tgz"), server.md5), tmp_path / "new" / "data") == folder
    assert len(server.sent) == 1


def test_a_dropped_connection_is_retried(server: Server, tmp_path: Path) -> None:
    server.cuts = [30_000, 20_000]
    prepare_archive(Archive(server.url("mine.tgz"), server.md5), tmp_path)
    assert server.sent == [30_000, 20_000, len(server.content)]  # from the beginning each time
    assert (tmp_path / "mine.tgz").read_bytes() == server.content


def test_a_connection_that_keeps_dropping_fails_and_leaves_no_files(server: Server, tmp_path: Path) -> None:
    server.cuts = [30_000] * 50
    with pytest.raises(UserError, match=r"mine\.tgz cannot be downloaded: .*30000 bytes read.*\n.*data=sample"):
        prepare_archive(Archive(server.url("mine.tgz"), server.md5), tmp_path)
    assert names_in(tmp_path) == []
    server.status = 404
    with pytest.raises(UserError, match="404 Client Error: Not Found"):
        prepare_archive(Archive(server.url("mine.tgz"), server.md5), tmp_path)


def test_an_archive_of_another_md5_is_rejected(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not match the known hash: expected md5:" + "0" * 32):
        prepare_archive(Archive(server.url("mine.tgz"), "0" * 32), tmp_path)
    assert names_in(tmp_path) == []


def test_a_manually_downloaded_archive_needs_no_network(server: Server, tmp_path: Path) -> None:
    (tmp_path / "mine.tgz").write_bytes(server.content)
    assert prepare_archive(Archive(server.url("mine.tgz"), server.md5.upper()), tmp_path) == tmp_path / "mine"
    assert server.sent == []


@pytest.mark.parametrize("name", ["../evil.txt", "top/../../evil.txt"])
def test_member_outside_the_folder_is_rejected(server: Server, tmp_path: Path, name: str) -> None:
    server.content = packed("top", (name,))
    data = tmp_path / "data"
    with pytest.raises(UserError, match=r"mine\.tgz cannot be unpacked: .*outside"):
        prepare_archive(Archive(server.url("mine.tgz"), server.md5), data)
    assert list(tmp_path.rglob("evil.txt")) == []
    assert names_in(data) == ["mine.tgz"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>404</html>", "cannot be unpacked"),
        (packed("top")[:20_000], "cannot be unpacked"),
        (packed("top/too/deep"), "lacks the folders train and val"),
    ],
    ids=["a page", "half", "too deep"],  # bytes of an archive hold the time
)
def test_an_invalid_archive_leaves_no_partial_folder(
    server: Server, tmp_path: Path, content: bytes, message: str
) -> None:
    server.content = content
    with pytest.raises(UserError, match=message):
        prepare_archive(Archive(server.url("mine.tgz"), server.md5), tmp_path)
    assert names_in(tmp_path) == ["mine.tgz"]
