"""A server of archives that misbehaves as asked, for the tests of downloads."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import Mock

import pytest


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
