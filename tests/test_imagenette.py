import fcntl
import hashlib
import io
import logging
import socket
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from augment import imagenette
from augment.dataset import Dataset, Split
from augment.errors import UserError
from augment.imagenette import (
    CLASS_NAMES,
    IMAGENETTE,
    IMAGEWOOF,
    Archive,
    name_classes,
    prepare_archive,
    prepare_imagenette,
)
from augment.sources import Imagenette, Imagewoof


@dataclass
class Server:
    """What the local server hands out, how it misbehaves, and what it was asked for."""

    content: bytes
    cuts: list[int] = field(default_factory=list)  # bytes after which each of the first answers breaks off
    knows_range: bool = True
    status: int = 200
    address: str = ""
    ranges: list[str | None] = field(default_factory=list)  # the Range header of each request
    sent: list[int] = field(default_factory=list)  # the bytes of each answer

    def url(self, name: str) -> str:
        return f"{self.address}/{name}"

    @property
    def md5(self) -> str:
        return hashlib.md5(self.content).hexdigest()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(imagenette, "BACKOFF_S", 0.0)
    state = Server(packed("imagenette2-160"))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            state.ranges.append(asked)
            total = len(state.content)
            start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and state.knows_range else 0
            if start >= total:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{total}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206 if start else state.status)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
            self.send_header("Content-Length", str(total - start))
            self.end_headers()
            body = state.content[start:]
            if state.cuts:
                body = body[: state.cuts.pop(0)]
            state.sent.append(len(body))
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.02,))
    thread.start()
    state.address = f"http://127.0.0.1:{http.server_port}/sets"
    yield state
    http.shutdown()
    thread.join()
    http.server_close()


def packed(top: str, extra: tuple[str, ...] = ()) -> bytes:
    """Return a .tgz with train and val, a class each and pictures of noise, which gzip cannot shrink."""
    names = [f"{top}/{split}/n01440764/{i}.JPEG" for split in ("train", "val") for i in range(3)]
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name in (*names, *extra):
            data = b"".join(hashlib.sha256(f"{name}{i}".encode()).digest() for i in range(400))
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def names_in(folder: Path) -> list[str]:
    """Return what lies in a folder, but for the lock file."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_full_download(server: Server, tmp_path: Path) -> None:
    folder = prepare_imagenette("160", tmp_path / "new" / "data", server.url("mine.tgz"), server.md5)
    assert folder == tmp_path / "new" / "data" / "mine"
    assert sorted(path.name for path in folder.rglob("*.JPEG")) == [
        "0.JPEG",
        "0.JPEG",
        "1.JPEG",
        "1.JPEG",
        "2.JPEG",
        "2.JPEG",
    ]
    assert sorted(path.name for path in folder.iterdir()) == ["train", "val"]
    assert names_in(folder.parent) == ["mine", "mine.tgz"]
    assert server.ranges == [None]


def test_second_call_asks_nothing(server: Server, tmp_path: Path) -> None:
    first = prepare_imagenette("160", tmp_path, server.url("mine.tgz"), server.md5)
    (tmp_path / "mine.tgz").unlink()
    assert prepare_imagenette("160", tmp_path, server.url("mine.tgz"), server.md5) == first
    assert len(server.ranges) == 1


def test_cut_connection_is_resumed(server: Server, tmp_path: Path) -> None:
    server.cuts = [30_000, 20_000]
    prepare_imagenette("160", tmp_path, server.url("mine.tgz"), server.md5)
    assert server.ranges == [None, "bytes=30000-", "bytes=50000-"]
    assert sum(server.sent) == len(server.content)


def test_part_of_a_former_run_is_resumed(server: Server, tmp_path: Path) -> None:
    (tmp_path / "mine.tgz.part").write_bytes(server.content[:40_000])
    prepare_imagenette("160", tmp_path, server.url("mine.tgz"), server.md5)
    assert server.ranges == ["bytes=40000-"]
    assert sum(server.sent) == len(server.content) - 40_000


def test_server_without_range_starts_again(server: Server, tmp_path: Path) -> None:
    server.knows_range = False
    server.cuts = [30_000]
    folder = prepare_imagenette("160", tmp_path, server.url("mine.tgz"), server.md5)
    assert (tmp_path / "mine.tgz").read_bytes() == server.content
    assert (folder / "train").is_dir()
    assert server.sent == [30_000, len(server.content)]


def test_part_that_is_whole_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "mine.tgz.part").write_bytes(server.content)
    prepare_imagenette("160", tmp_path, server.url("mine.tgz"), server.md5)
    assert server.sent == []
    assert names_in(tmp_path) == ["mine", "mine.tgz"]


def test_part_of_a_longer_archive_is_dropped(server: Server, tmp_path: Path) -> None:
    (tmp_path / "mine.tgz.part").write_bytes(bytes(len(server.content) + 100))
    prepare_imagenette("160", tmp_path, server.url("mine.tgz"), server.md5)
    assert (tmp_path / "mine.tgz").read_bytes() == server.content


@pytest.mark.parametrize("knows_range", [True, False])
def test_a_connection_that_keeps_dropping_ends_and_keeps_the_part(
    server: Server, tmp_path: Path, knows_range: bool
) -> None:
    server.knows_range = knows_range
    server.cuts = [30_000] + [0 if knows_range else 30_000] * 50
    with pytest.raises(UserError, match=r"cut after 30,000 of .* bytes.*\n?.*30,000 bytes are kept"):
        prepare_imagenette("160", tmp_path, server.url("mine.tgz"), server.md5)
    assert len(server.ranges) == imagenette.ATTEMPTS
    assert names_in(tmp_path) == ["mine.tgz.part"]


def test_progress_between_drops_grants_further_attempts(server: Server, tmp_path: Path) -> None:
    pieces = 3 * imagenette.ATTEMPTS
    server.cuts = [len(server.content) // (pieces + 1)] * pieces
    prepare_imagenette("160", tmp_path, server.url("mine.tgz"), server.md5)
    assert sum(server.sent) == len(server.content)


def test_wrong_md5_removes_the_part(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="its md5 is not " + "0" * 32):
        prepare_imagenette("160", tmp_path, server.url("mine.tgz"), "0" * 32)
    assert names_in(tmp_path) == []


def test_mirror_under_the_official_name_must_have_the_official_md5(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"md5 is not {IMAGENETTE['160'].md5}"):
        prepare_imagenette("160", tmp_path, server.url("imagenette2-160.tgz"))


def test_other_archive_without_md5_is_used_with_a_notice(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert prepare_imagenette("160", tmp_path, server.url("mine.tar.gz?x=1")) == tmp_path / "mine"
    assert "was not checked" in caplog.text


def test_archive_put_there_by_hand_needs_no_network(server: Server, tmp_path: Path) -> None:
    (tmp_path / "mine.tgz").write_bytes(server.content)
    assert prepare_imagenette("160", tmp_path, server.url("mine.tgz"), server.md5.upper()) == tmp_path / "mine"
    assert server.ranges == []


def test_damaged_archive_put_there_by_hand_is_named_and_kept(server: Server, tmp_path: Path) -> None:
    (tmp_path / "mine.tgz").write_bytes(server.content[:-1])
    with pytest.raises(UserError, match=r"mine\.tgz is damaged or another archive"):
        prepare_imagenette("160", tmp_path, server.url("mine.tgz"), server.md5)
    assert names_in(tmp_path) == ["mine.tgz"]
    assert server.ranges == []


@pytest.mark.parametrize("name", ["../evil.txt", "top/../../evil.txt"])
def test_member_outside_the_folder_is_refused(server: Server, tmp_path: Path, name: str) -> None:
    server.content = packed("top", (name,))
    data = tmp_path / "data"
    with pytest.raises(UserError, match=r"mine\.tgz cannot be unpacked: .*outside"):
        prepare_imagenette("160", data, server.url("mine.tgz"), server.md5)
    assert list(tmp_path.rglob("evil.txt")) == []
    assert names_in(data) == ["mine.tgz"]


def test_link_out_of_the_folder_is_refused(server: Server, tmp_path: Path) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        member = tarfile.TarInfo("top/train")
        member.type, member.linkname = tarfile.SYMTYPE, str(tmp_path)
        tar.addfile(member)
    server.content = stream.getvalue()
    with pytest.raises(UserError, match="cannot be unpacked"):
        prepare_imagenette("160", tmp_path / "data", server.url("mine.tgz"), server.md5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>404</html>", "cannot be unpacked"),
        (packed("top")[:20_000], "cannot be unpacked"),
        (packed("top/too/deep"), "holds no folders train and val"),
    ],
)
def test_archive_that_is_none_leaves_nothing_half_made(
    server: Server, tmp_path: Path, content: bytes, message: str
) -> None:
    server.content = content
    with pytest.raises(UserError, match=message):
        prepare_imagenette("160", tmp_path, server.url("mine.tgz"))
    assert names_in(tmp_path) == ["mine.tgz"]


def test_archive_without_a_top_folder(server: Server, tmp_path: Path) -> None:
    server.content = packed(".")
    folder = prepare_imagenette("160", tmp_path, server.url("mine.tgz"), server.md5)
    assert (folder / "val" / "n01440764" / "0.JPEG").is_file()
    assert names_in(tmp_path) == ["mine", "mine.tgz"]


def test_leftovers_of_a_killed_run_are_replaced(server: Server, tmp_path: Path) -> None:
    (tmp_path / ".mine.unpacking" / "train").mkdir(parents=True)
    (tmp_path / ".mine.unpacking" / "val").mkdir()
    folder = prepare_imagenette("160", tmp_path, server.url("mine.tgz"), server.md5)
    assert len(list(folder.rglob("*.JPEG"))) == 6


def test_half_made_folder_is_named_before_anything_is_fetched(server: Server, tmp_path: Path) -> None:
    (tmp_path / "mine" / "train").mkdir(parents=True)
    with pytest.raises(UserError, match=r"mine has no folders train and val"):
        prepare_imagenette("160", tmp_path, server.url("mine.tgz"), server.md5)
    assert server.ranges == []


def test_no_network_names_url_folder_and_alternative(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    url = f"http://127.0.0.1:{port}/imagenette2-160.tgz"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(imagenette, "BACKOFF_S", 0.0)
    with pytest.raises(UserError) as caught:
        prepare_imagenette("160", tmp_path, url)
    message = str(caught.value)
    assert f"{url} cannot be downloaded" in message
    assert "Connection refused" in message
    assert f"put imagenette2-160.tgz (md5 {IMAGENETTE['160'].md5}) into {tmp_path}" in message
    assert "data=sample" in message
    assert names_in(tmp_path) == []


def test_refusal_is_not_tried_again(server: Server, tmp_path: Path) -> None:
    server.status = 404
    with pytest.raises(UserError, match="HTTP 404 Not Found"):
        prepare_imagenette("160", tmp_path, server.url("mine.tgz"))
    assert len(server.ranges) == 1


def test_url_that_cannot_be_asked_for_is_not_tried_again(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(UserError, match="cannot be downloaded"):
        prepare_imagenette("160", tmp_path, "http://127.0.0.1:port/mine.tgz")
    assert "trying again" not in caplog.text


def test_failing_server_is_tried_again(server: Server, tmp_path: Path) -> None:
    server.status = 503
    with pytest.raises(UserError, match="HTTP 503"):
        prepare_imagenette("160", tmp_path, server.url("mine.tgz"))
    assert len(server.ranges) == imagenette.ATTEMPTS


def test_second_process_waits_for_the_first(server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    folders: list[Path] = []
    other = threading.Thread(
        target=lambda: folders.append(prepare_archive(Archive(server.url("mine.tgz"), None), tmp_path))
    )
    with (tmp_path / ".mine.lock").open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        other.start()
        while other.is_alive() and "waiting for another process" not in caplog.text:
            time.sleep(0.01)
        (tmp_path / "mine" / "train").mkdir(parents=True)
        (tmp_path / "mine" / "val").mkdir()
    other.join()
    assert folders == [tmp_path / "mine"]
    assert "waiting for another process" in caplog.text
    assert server.ranges == []


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file"):
        prepare_imagenette("160", tmp_path / "file" / "data")


def test_unknown_variant_names_the_allowed_ones(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.variant.*'16'.*Did you mean '160'.*160, 320, full"):
        prepare_imagenette("16", tmp_path)


@pytest.mark.parametrize(
    "url",
    [
        "imagenette2.tgz",
        "ftp://127.0.0.1/imagenette2.tgz",
        "http://127.0.0.1/",
        "http://127.0.0.1/imagenette",
        "http://127.0.0.1/.tgz",
        "",
    ],
)
def test_url_that_names_no_archive(tmp_path: Path, url: str) -> None:
    with pytest.raises(UserError, match=r"data\.url="):
        prepare_imagenette("160", tmp_path, url)


def test_official_archives_are_told_apart() -> None:
    for name, archives in (("imagenette2", IMAGENETTE), ("imagewoof2", IMAGEWOOF)):
        assert {variant: archive.name for variant, archive in archives.items()} == {
            "full": f"{name}.tgz",
            "320": f"{name}-320.tgz",
            "160": f"{name}-160.tgz",
        }
    assert len({archive.md5 for archive in IMAGENETTE.values()}) == 3
    assert len({archive.url for archive in (*IMAGENETTE.values(), *IMAGEWOOF.values())}) == 6


@pytest.mark.parametrize(("source", "name"), [(Imagenette, "imagenette2"), (Imagewoof, "imagewoof2")])
def test_each_source_has_archives_of_its_own(
    source: type[Imagenette], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that an archive would be unpacked to is there already, so that nothing is asked for."""
    for split in ("train", "val"):
        for wnid in ("n02086240", "n01440764"):
            (tmp_path / f"{name}-320" / split / wnid).mkdir(parents=True)
            (tmp_path / f"{name}-320" / split / wnid / "a.JPEG").touch()
    monkeypatch.setattr(imagenette, "urlopen", None)
    assert source(dir=str(tmp_path), variant="320").load().classes == ("tench", "Shih-Tzu")
    assert source(dir=str(tmp_path)) != {Imagenette: Imagewoof, Imagewoof: Imagenette}[source](dir=str(tmp_path))


def test_an_archive_of_unknown_checksum_says_so(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = server.url("imagewoof2-160.tgz")
    assert prepare_imagenette("160", tmp_path, url, archives=IMAGEWOOF) == tmp_path / "imagewoof2-160"
    assert f"{url}: its md5 is not known" in caplog.text


def test_name_classes_keeps_targets_and_unknown_names() -> None:
    split = Split((Path("a.jpg"), Path("b.jpg"), Path("c.jpg")), (0, 1, 2))
    named = name_classes(Dataset(("n01440764", "n02115641", "owl"), split, split))
    assert named == Dataset(("tench", "dingo", "owl"), split, split)
    assert len(set(CLASS_NAMES.values())) == 20
