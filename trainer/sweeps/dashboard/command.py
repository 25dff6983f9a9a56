"""`python -m trainer dashboard [FOLDER]`: show all runs and sweeps of a folder in one HTML file."""

import logging
import math
import sys
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from augment.cli.parser import Parser, output, readable_errors, whole_number, writing
from augment.support.errors import UserError, first_line
from augment.support.files import digest, shown, write_atomically
from augment.support.formatting import amount, as_bytes, printable
from trainer.callbacks.plots import BATCH, REPORT
from trainer.run.folder.reader import find_runs
from trainer.sweeps.dashboard.content import FIGURES, collect

_HERE = Path(__file__).parent

HOST = "127.0.0.1"
EVERY = 5.0  # seconds between looks at the folders, at least
_SHARE = 10  # they are this many times longer than the looks, at least

# What the page links to, and how browsers may treat it: as a page of a stranger.
_SERVED = {REPORT: "text/html; charset=utf-8", **dict.fromkeys((BATCH, *FIGURES), "image/png")}
_SANDBOX = "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_MOST_SERVED = 2**26  # bytes of a file

log = logging.getLogger(__name__)


def render(data: Mapping[str, Any], version: str = "") -> str:
    """Return the page: HTML with its own scripts, which may load nothing, and may run only as they are.

    If the page is served and asks for newer data, these have a version.
    """
    page = _HERE / "assets"
    code = "\n".join(file.read_text(encoding="utf-8") for file in sorted(page.glob("*.js")))
    script, echarts = f'"use strict";\n(() => {{\n{code}\n}})();', (_HERE / "echarts/echarts.min.js").read_text("utf-8")
    hashes = " ".join(f"'sha256-{b64encode(sha256(as_bytes(code)).digest()).decode()}'" for code in (echarts, script))
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {hashes}"
    environment = Environment(
        loader=FileSystemLoader(page), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html.jinja").render(
        title=data["title"],
        version=version,
        policy=f"{policy}; connect-src 'self'" if version else policy,
        data=embedded_json(data),
        echarts=Markup(echarts),
        script=Markup(script),
        style=Markup((page / "style.css").read_text("utf-8")),
    )


def embedded_json(values: object) -> Markup:
    """Return plain values as JSON that is safe within a script element: ASCII without <, >, & and quotes of HTML."""
    return htmlsafe_json_dumps(values, allow_nan=False, separators=(",", ":"))


class Watched:
    """The page of a folder, made again when its runs change."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._lock = folder, Lock()
        self._next = -math.inf
        self._version = self._page = self._json = ""

    def latest(self) -> tuple[str, str, str]:
        """Return the version of the data, the page, and the data as JSON."""
        with self._lock:
            if time.monotonic() >= self._next:
                begun = time.monotonic()
                try:
                    data = collect(find_runs([self.folder]), self.folder, self.folder)
                    version = digest(embedded_json(data | {"made": ""}))
                    if version != self._version:
                        self._version, self._json, self._page = version, embedded_json(data), render(data, version)
                except (OSError, UserError) as error:  # folders are being moved or removed
                    log.warning("%s: not read again: %s", self.folder, first_line(error))
                # With many runs this takes seconds, which the runs that go on should have.
                self._next = time.monotonic() + max(EVERY, _SHARE * (time.monotonic() - begun))
            return self._version, self._page, self._json


def make_server(watched: Watched, port: int) -> ThreadingHTTPServer:
    """Return what serves a watched page to this machine, at a port; 0: any free one."""
    try:
        return ThreadingHTTPServer((HOST, port), partial(_Handler, watched))
    except OSError as error:
        raise UserError(f"--port {port}: {error.strerror}. Allowed: a free port; 0 finds one.") from error


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, watched: Watched, *arguments: object) -> None:
        self._watched = watched
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Answer a request."""
        # A page of another site, whose name leads here, may not read this one.
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host not in (HOST, "localhost"):
            self._answer(HTTPStatus.FORBIDDEN)
            return
        path = unquote_to_bytes(urlsplit(self.path).path).decode(errors="surrogateescape")
        if path in ("/", "/data.json"):
            version, page, json = self._watched.latest()
            if path == "/":
                self._answer(HTTPStatus.OK, page.encode(), "text/html; charset=utf-8")
            elif self.headers.get("If-None-Match") == version:
                self._answer(HTTPStatus.NOT_MODIFIED)
            else:
                self._answer(HTTPStatus.OK, json.encode(), "application/json", ETag=version)
        elif file := self._served(path):
            self._answer(HTTPStatus.OK, file.read_bytes(), _SERVED[file.name], **{"Content-Security-Policy": _SANDBOX})
        else:
            self._answer(HTTPStatus.NOT_FOUND)

    def _served(self, path: str) -> Path | None:
        """Return the file of a run folder that a path names; None if it is none of those that the page links to."""
        root = self._watched.folder.resolve()
        try:
            file = root / path.removeprefix("/")
            # Links and .. may lead elsewhere.
            inside = file.name in _SERVED and file.resolve() == file and file.is_relative_to(root)
            return file if inside and file.is_file() and file.stat().st_size <= _MOST_SERVED else None
        except (OSError, ValueError):  # no file can have this name
            return None

    def _answer(self, status: HTTPStatus, body: bytes = b"", kind: str = "text/plain", **headers: str) -> None:
        with suppress(ConnectionError):  # the browser has gone
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""


DASHBOARD_FILE = "dashboard.html"
PORT = 8321

_EXAMPLES = f"""\
  outputs                            write outputs/{DASHBOARD_FILE}; outputs is the default
  outputs/2026-07-28 --out day.html  runs and sweeps of a day, into another file
  --watch                            serve it at http://127.0.0.1:{PORT}, and refresh it while runs are in progress"""


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    parser = Parser(
        "trainer dashboard", "Show all runs and sweeps of a folder in one HTML file.", _EXAMPLES, arguments="[FOLDER]"
    )
    parser.add_argument(
        "--out", type=output, metavar="FILE", help=f"the file to write (default: {DASHBOARD_FILE} in the folder)"
    )
    parser.add_argument("--watch", action="store_true", help="serve the page to this machine, and keep it up to date")
    parser.add_argument(
        "--port", type=whole_number(0, 65535), metavar="N", help=f"port of --watch; 0: any free one (default: {PORT})"
    )
    with readable_errors():
        options, folders, overrides = parser.split_paths(arguments)
        if overrides or len(folders) > 1:
            raise UserError(f"{[*overrides, *folders[1:]][0]}: not allowed here. Allowed: one folder.")
        if options.port is not None and not options.watch:
            raise UserError("--port: has no effect without --watch. Allowed: --watch --port N.")
        folder = folders[0] if folders else Path("outputs")
        file = options.out or folder / DASHBOARD_FILE
        if options.watch and not folders:
            with writing(str(folder)):
                folder.mkdir(exist_ok=True)  # the first run may be about to begin
        runs = find_runs([folder])
        with writing(str(file)):
            write_atomically(
                file, render(collect(runs, folder, file.absolute().parent)), follow=options.out is not None
            )
        sys.stdout.write(printable(f"{shown(file)}: {amount(len(runs), 'run')}\n"))
        if options.watch:
            with make_server(Watched(folder), PORT if options.port is None else options.port) as server:
                address = f"http://127.0.0.1:{server.server_port}/"
                sys.stdout.write(f"{address} shows it, and refreshes it; Ctrl-C ends this.\n")
                sys.stdout.flush()
                server.serve_forever()
    return 0
