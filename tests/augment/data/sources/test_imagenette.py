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
from unittest.mock import Mock

import pytest
from requests import RequestException
from rich.progress import Progress

from augment.data.sources import Imagenette, Imagewoof, download, parse_data
from augment.data.sources.download import Archive, prepare_archive
from augment.data.sources.imagenette import CLASS_NAMES
from augment.support.errors import UserError


@dataclass
class Server:
    """What the local server hands out, how it misbehaves, and what it was asked for."""

    content: bytes
    cuts: list[int] = field(default_factory=list)  # bytes after which each of the first answers breaks off
    status: int = 200
    address: str = ""
    sent: list[int] = field(default_factory=list)  # the bytes of each answer

    def url(self, name: str) -> str:
        return f"{self.address}/{name}"

    @property
    def md5(self) -> str:
        return hashlib.md5(self.content).hexdigest()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("pooch.core.time", Mock())  # it sleeps between attempts
    state = Server(packed("imagenette2-160"))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = state.content
            if state.cuts:
                body = body[: state.cuts.pop(0)]
            state.sent.append(len(body))  # before the client can have it
            self.send_response(state.status)
            self.send_header("Content-Length", str(len(state.content)))
            self.end_headers()
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
    """Return a .tgz with train and val, a class each and images of noise, which gzip cannot shrink."""
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
    folder = prepare_archive(Archive(server.url("mine.tgz"), server.md5), tmp_path / "new" / "data")
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
    assert len(server.sent) == 1


def test_a_second_call_sends_no_request(server: Server, tmp_path: Path) -> None:
    first = prepare_archive(Archive(server.url("mine.tgz"), server.md5), tmp_path)
    (tmp_path / "mine.tgz").unlink()
    assert prepare_archive(Archive(server.url("mine.tgz"), server.md5), tmp_path) == first
    assert len(server.sent) == 1


def test_a_dropped_connection_is_retried(server: Server, tmp_path: Path) -> None:
    server.cuts = [30_000, 20_000]
    prepare_archive(Archive(server.url("mine.tgz"), server.md5), tmp_path)
    assert server.sent == [30_000, 20_000, len(server.content)]
    assert (tmp_path / "mine.tgz").read_bytes() == server.content


def test_a_connection_that_keeps_dropping_fails_and_leaves_no_files(server: Server, tmp_path: Path) -> None:
    server.cuts = [30_000] * 50
    with pytest.raises(UserError, match=r"mine\.tgz cannot be downloaded: .*30000 bytes read.*\n.*data=sample"):
        prepare_archive(Archive(server.url("mine.tgz"), server.md5), tmp_path)
    assert len(server.sent) == download.ATTEMPTS
    assert names_in(tmp_path) == []


def test_progress_bar_shows_the_bytes_of_the_last_attempt(server: Server, tmp_path: Path) -> None:
    server.cuts = [30_000]
    archive, progress = Archive(server.url("mine.tgz")), Progress(disable=True)
    downloader = download._Downloader(progress, archive)
    with pytest.raises(RequestException):
        downloader(archive.url, str(tmp_path / "part"), None)
    downloader(archive.url, str(tmp_path / "part"), None)
    (task,) = progress.tasks
    assert (task.completed, task.total) == (len(server.content), len(server.content))


def test_a_wrong_md5_removes_the_archive_without_a_retry(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="its md5 is not " + "0" * 32):
        prepare_archive(Archive(server.url("mine.tgz"), "0" * 32), tmp_path)
    assert names_in(tmp_path) == []
    assert len(server.sent) == 1


def test_mirror_under_the_official_name_must_have_the_official_md5(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"md5 is not {Imagenette.archives['160'].md5}"):
        Imagenette(dir=str(tmp_path), url=server.url("imagenette2-160.tgz")).load()


def test_an_archive_without_md5_is_used_with_a_warning(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert prepare_archive(Archive(server.url("mine.tar.gz?x=1")), tmp_path) == tmp_path / "mine"
    assert "was not checked" in caplog.text


def test_a_manually_downloaded_archive_needs_no_network(server: Server, tmp_path: Path) -> None:
    (tmp_path / "mine.tgz").write_bytes(server.content)
    assert prepare_archive(Archive(server.url("mine.tgz"), server.md5.upper()), tmp_path) == tmp_path / "mine"
    assert server.sent == []


def test_a_damaged_manually_downloaded_archive_is_named_and_kept(server: Server, tmp_path: Path) -> None:
    (tmp_path / "mine.tgz").write_bytes(server.content[:-1])
    with pytest.raises(UserError, match=r"mine\.tgz is damaged or another archive"):
        prepare_archive(Archive(server.url("mine.tgz"), server.md5), tmp_path)
    assert names_in(tmp_path) == ["mine.tgz"]
    assert server.sent == []


@pytest.mark.parametrize("name", ["../evil.txt", "top/../../evil.txt"])
def test_member_outside_the_folder_is_refused(server: Server, tmp_path: Path, name: str) -> None:
    server.content = packed("top", (name,))
    data = tmp_path / "data"
    with pytest.raises(UserError, match=r"mine\.tgz cannot be unpacked: .*outside"):
        prepare_archive(Archive(server.url("mine.tgz"), server.md5), data)
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
        prepare_archive(Archive(server.url("mine.tgz"), server.md5), tmp_path / "data")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>404</html>", "cannot be unpacked"),
        (packed("top")[:20_000], "cannot be unpacked"),
        (packed("top/too/deep"), "holds no folders train and val"),
    ],
)
def test_an_invalid_archive_leaves_no_partial_folder(
    server: Server, tmp_path: Path, content: bytes, message: str
) -> None:
    server.content = content
    with pytest.raises(UserError, match=message):
        prepare_archive(Archive(server.url("mine.tgz")), tmp_path)
    assert names_in(tmp_path) == ["mine.tgz"]


def test_archive_without_a_top_folder(server: Server, tmp_path: Path) -> None:
    server.content = packed(".")
    folder = prepare_archive(Archive(server.url("mine.tgz"), server.md5), tmp_path)
    assert (folder / "val" / "n01440764" / "0.JPEG").is_file()
    assert names_in(tmp_path) == ["mine", "mine.tgz"]


def test_leftovers_of_a_killed_run_are_replaced(server: Server, tmp_path: Path) -> None:
    (tmp_path / ".mine.unpacking" / "train").mkdir(parents=True)
    (tmp_path / ".mine.unpacking" / "val").mkdir()
    folder = prepare_archive(Archive(server.url("mine.tgz"), server.md5), tmp_path)
    assert len(list(folder.rglob("*.JPEG"))) == 6


def test_a_partial_folder_is_reported_before_downloading(server: Server, tmp_path: Path) -> None:
    (tmp_path / "mine" / "train").mkdir(parents=True)
    with pytest.raises(UserError, match=r"mine has no folders train and val"):
        prepare_archive(Archive(server.url("mine.tgz"), server.md5), tmp_path)
    assert server.sent == []


def test_no_network_names_url_folder_and_alternative(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    url = f"http://127.0.0.1:{port}/imagenette2-160.tgz"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("pooch.core.time", Mock())
    with pytest.raises(UserError) as caught:
        Imagenette(dir=str(tmp_path), url=url).load()
    message = str(caught.value)
    assert f"{url} cannot be downloaded" in message
    assert "Connection refused" in message
    assert f"put imagenette2-160.tgz (md5 {Imagenette.archives['160'].md5}) into {tmp_path}" in message
    assert "data=sample" in message
    assert names_in(tmp_path) == []


def test_a_refusal_is_not_retried(server: Server, tmp_path: Path) -> None:
    server.status = 404
    with pytest.raises(UserError, match="404 Client Error: Not Found"):
        prepare_archive(Archive(server.url("mine.tgz")), tmp_path)
    assert len(server.sent) == 1


def test_url_with_a_bad_port_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pooch.core.time", Mock())
    with pytest.raises(UserError, match=r"^http://127\.0\.0\.1:port/mine\.tgz cannot be downloaded"):
        prepare_archive(Archive("http://127.0.0.1:port/mine.tgz"), tmp_path)


def test_a_failing_server_is_retried(server: Server, tmp_path: Path) -> None:
    server.status = 503
    with pytest.raises(UserError, match="503 Server Error"):
        prepare_archive(Archive(server.url("mine.tgz")), tmp_path)
    assert len(server.sent) == download.ATTEMPTS


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
    assert server.sent == []


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file"):
        Imagenette(dir=str(tmp_path / "file" / "data")).load()


def test_unknown_variant_names_the_allowed_ones() -> None:
    with pytest.raises(UserError, match=r"data\.variant.*'16'.*Did you mean '160'"):
        parse_data({"source": "imagenette", "variant": "16"})


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
        prepare_archive(Archive(url), tmp_path)


def test_official_archives_have_different_checksums() -> None:
    for name, archives in (("imagenette2", Imagenette.archives), ("imagewoof2", Imagewoof.archives)):
        assert {variant: archive.name for variant, archive in archives.items()} == {
            "full": f"{name}.tgz",
            "320": f"{name}-320.tgz",
            "160": f"{name}-160.tgz",
        }
    archives = (*Imagenette.archives.values(), *Imagewoof.archives.values())
    assert len({archive.md5 for archive in archives} - {None}) == 6
    assert len({archive.url for archive in archives}) == 6


@pytest.mark.parametrize(("source", "name"), [(Imagenette, "imagenette2"), (Imagewoof, "imagewoof2")])
def test_each_source_has_its_own_archives(
    source: type[Imagenette], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that an archive would be unpacked to is there already, so that nothing is asked for."""
    for split in ("train", "val"):
        for wnid in ("n02086240", "n01440764"):
            (tmp_path / f"{name}-320" / split / wnid).mkdir(parents=True)
            (tmp_path / f"{name}-320" / split / wnid / "a.JPEG").touch()
    monkeypatch.setattr(download, "_download", None)
    assert source(dir=str(tmp_path), variant="320").load().classes == ("tench", "Shih-Tzu")
    assert source(dir=str(tmp_path)) != {Imagenette: Imagewoof, Imagewoof: Imagenette}[source](dir=str(tmp_path))


def test_an_unknown_checksum_is_logged_and_classes_have_names(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = server.url("other.tgz")
    assert Imagewoof(dir=str(tmp_path), url=url).load().classes == ("tench",)
    assert (tmp_path / "other" / "train").is_dir()
    assert f"{url}: its md5 is not known" in caplog.text


def test_another_imagewoof_is_refused(server: Server, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="is damaged or another archive: its md5 is not 3d200a7be99704a0d7509be2a9fbfe15"
    ):
        Imagewoof(dir=str(tmp_path), url=server.url("imagewoof2-160.tgz")).load()


def test_classes_without_a_known_name_keep_theirs(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for name in ("n01440764", "n02115641", "owl"):
            (tmp_path / "imagenette2-160" / split / name).mkdir(parents=True)
            (tmp_path / "imagenette2-160" / split / name / "a.JPEG").touch()
    dataset = Imagenette(dir=str(tmp_path)).load()
    assert (dataset.classes, dataset.train.targets) == (("tench", "dingo", "owl"), (0, 1, 2))
    assert len(set(CLASS_NAMES.values())) == 20
