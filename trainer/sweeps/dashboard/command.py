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

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from augment.cli.parser import Parser, output, readable_errors, whole_number, writing
from augment.support.errors import UserError, first_line
from augment.support.files import digest, shown, write_atomically
from augment.support.formatting import amount, as_bytes, printable
from trainer.callbacks.plots import BATCH, REPORT
from trainer.figures.templates import html_template
from trainer.run.folder.reader import find_runs
from trainer.sweeps.dashboard.content import FIGURES, collect

_HERE = Path(__file__).parent

HOST = "127.0.0.1"
_MIN_INTERVAL = 5.0  # the minimum interval, in seconds, at which the folders are read
_INTERVAL_FACTOR = 10  # the minimum interval, as a multiple of the time that reading takes

# The files that the page links to. The sandbox makes browsers isolate them, because strangers may have written them.
_SERVED = {REPORT: "text/html; charset=utf-8", **dict.fromkeys((BATCH, *FIGURES), "image/png")}
_SANDBOX = "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_MAX_SERVED = 2**26  # bytes of a file

log = logging.getLogger(__name__)


def render(data: Mapping[str, Any], version: str = "") -> str:
    """Render the page as HTML. It runs only its own scripts, which load nothing.

    With a version, the page polls its server for newer data.
    """
    page = _HERE / "assets"
    code = "\n".join(file.read_text(encoding="utf-8") for file in sorted(page.glob("*.js")))
    script = f'"use strict";\n(() => {{\n{code}\n}})();'
    echarts = (_HERE / "echarts/echarts.min.js").read_text("utf-8")
    hashes = [b64encode(sha256(as_bytes(text)).digest()).decode() for text in (echarts, script)]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}"
    return html_template(page, "page.html.jinja").render(
        title=data["title"],
        version=version,
        policy=f"{policy}; connect-src 'self'" if version else policy,
        data=embedded_json(data),
        echarts=Markup(echarts),
        script=Markup(script),
        style=Markup((page / "style.css").read_text("utf-8")),
    )


def embedded_json(values: object) -> Markup:
    """Format plain values as JSON that is safe in a script element: ASCII without <, >, & and apostrophes."""
    return htmlsafe_json_dumps(values, allow_nan=False, separators=(",", ":"))


class Watched:
    """The page of a folder, which is rendered again when its runs change."""

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
                except (OSError, UserError) as error:  # folders were moved or removed
                    log.warning("%s was not read again: %s", self.folder, first_line(error))
                # Reading many runs takes CPU time that running jobs need.
                self._next = time.monotonic() + max(_MIN_INTERVAL, _INTERVAL_FACTOR * (time.monotonic() - begun))
            return self._version, self._page, self._json


def make_server(watched: Watched, port: int) -> ThreadingHTTPServer:
    """Create a server that shows a watched page only on this machine. Port 0 chooses a free port."""
    try:
        return ThreadingHTTPServer((HOST, port), partial(_Handler, watched))
    except OSError as error:
        raise UserError(f"--port {port}: {error.strerror}. Choose a free port, or 0 to find one.") from error


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, watched: Watched, *arguments: object) -> None:
        self._watched = watched
        super().__init__(*arguments)  # type: ignore[arg-type]

    def handle(self) -> None:
        with suppress(ConnectionError):  # the browser closed the connection
            super().handle()

    def do_GET(self) -> None:
        # Reject other host names. Otherwise, a website whose name resolves to this machine could read the page.
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host not in (HOST, "localhost"):
            self._answer(HTTPStatus.FORBIDDEN)
            return
        try:
            path = unquote_to_bytes(urlsplit(self.path).path).decode(errors="surrogateescape")
        except ValueError:  # not a valid address
            path = ""
        if path in ("/", "/data.json"):
            version, page, json = self._watched.latest()
            if path == "/":
                self._answer(HTTPStatus.OK, page.encode(), "text/html; charset=utf-8")
            elif self.headers.get("If-None-Match") == version:
                self._answer(HTTPStatus.NOT_MODIFIED)
            else:
                self._answer(HTTPStatus.OK, json.encode(), "application/json", ETag=version)
        elif found := self._served(path):
            content, kind = found
            self._answer(HTTPStatus.OK, content, kind, **{"Content-Security-Policy": _SANDBOX})
        else:
            self._answer(HTTPStatus.NOT_FOUND)

    def _served(self, path: str) -> tuple[bytes, str] | None:
        """Return the content and type of the file at a path. None if the page links to no such file."""
        root = self._watched.folder.resolve()
        try:
            file = root / path.removeprefix("/")
            # Symbolic links and .. may lead out of the folder.
            inside = file.name in _SERVED and file.resolve() == file and file.is_relative_to(root)
            if inside and file.is_file() and file.stat().st_size <= _MAX_SERVED:
                return file.read_bytes(), _SERVED[file.name]
            return None
        except (OSError, ValueError):  # not a valid file name, or the file was removed
            return None

    def _answer(self, status: HTTPStatus, body: bytes = b"", kind: str = "text/plain", **headers: str) -> None:
        headers |= {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""


DASHBOARD_FILE = "dashboard.html"
PORT = 8321

_EXAMPLES = f"""\
  outputs                            write outputs/{DASHBOARD_FILE} (default folder: outputs)
  outputs/2026-07-28 --out day.html  write the runs and sweeps of a day to another file
  --watch                            serve the page at http://127.0.0.1:{PORT}, and update it while runs train"""


def main(arguments: Sequence[str]) -> int:
    """Run the command line. Return the exit code."""
    parser = Parser(
        "trainer dashboard", "Show all runs and sweeps of a folder in one HTML file.", _EXAMPLES, arguments="[FOLDER]"
    )
    parser.add_argument(
        "--out", type=output, metavar="FILE", help=f"file to write. Default: {DASHBOARD_FILE} in the folder"
    )
    parser.add_argument("--watch", action="store_true", help="serve the page on this machine, and update it")
    parser.add_argument(
        "--port",
        type=whole_number(0, 65535),
        metavar="N",
        help=f"port of --watch, or 0 for a free one. Default: {PORT}",
    )
    with readable_errors():
        options, folders, _ = parser.split_paths(arguments)
        if options.port is not None and not options.watch:
            raise UserError("--port has no effect without --watch. Add --watch.")
        folder = folders[0] if folders else Path("outputs")
        file = options.out or folder / DASHBOARD_FILE
        if options.watch and not folders:
            with writing(str(folder)):
                folder.mkdir(exist_ok=True)  # the first run may start soon
        runs = find_runs([folder])
        with writing(str(file)):
            write_atomically(
                file, render(collect(runs, folder, file.absolute().parent)), follow=options.out is not None
            )
        sys.stdout.write(printable(f"{shown(file)}: {amount(len(runs), 'run')}\n"))
        if options.watch:
            with make_server(Watched(folder), PORT if options.port is None else options.port) as server:
                sys.stdout.write(f"Serving http://127.0.0.1:{server.server_port}/ until you press Ctrl-C.\n")
                sys.stdout.flush()
                server.serve_forever()
    return 0
