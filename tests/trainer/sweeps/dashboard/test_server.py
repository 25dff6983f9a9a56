"""The server of `--watch`: newer data for the page, and nothing else to anybody else."""

import json
import math
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Thread

import pytest
from many_runs import config_of, write_few, write_run

from augment.support.errors import UserError
from trainer.sweeps.dashboard.command import _serve
from trainer.sweeps.dashboard.server import Server, Watched


class Eager(Watched):
    """Looks at the folders at each request."""

    def latest(self) -> tuple[str, str, str]:
        self._next = -math.inf
        return super().latest()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server of outputs/."""
    write_few(tmp_path / "outputs")
    with Server(Eager(tmp_path / "outputs"), 0) as served:
        Thread(target=served.serve_forever, args=(0.02,), daemon=True).start()
        yield served
        served.shutdown()


def ask(server: Server, path: str, **headers: str) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_data_are_sent_when_they_change(server: Server, tmp_path: Path) -> None:
    response, page = ask(server, "/")
    assert response.status == 200
    assert b"connect-src &#39;self&#39;" in page
    response, body = ask(server, "/data.json")
    version = response.headers["ETag"]
    assert f'data-version="{version}"'.encode() in page
    assert len(json.loads(body)["runs"]) == 14
    assert ask(server, "/data.json", If_None_Match=version)[0].status == 304
    # A new epoch, then a new run.
    job = tmp_path / "outputs" / "sweep" / "0000000000"
    (job / "metrics.jsonl").write_text('{"epoch": 0, "val_accuracy": 0.25}\n')
    response, body = ask(server, "/data.json", If_None_Match=version)
    (changed,) = [run for run in json.loads(body)["runs"] if run["path"] == "sweep/0000000000"]
    assert changed["epochs"] == 1
    write_run(tmp_path / "outputs" / "new", config_of(0.1, 0.0, 0), [], [0.5], planned=1)
    response, body = ask(server, "/data.json", If_None_Match=response.headers["ETag"])
    assert len(json.loads(body)["runs"]) == 15


def test_only_files_that_the_page_links_to_are_sent(server: Server, tmp_path: Path) -> None:
    job = tmp_path / "outputs" / "sweep" / "0000000000"
    (job / "report.html").write_text("<script>alert(1)</script>")
    (job.parent / "0000000001" / "report.html").symlink_to(tmp_path / "report.html")
    (tmp_path / "report.html").write_text("secret")
    response, body = ask(server, "/sweep/0000000000/report.html")
    assert (response.status, body) == (200, b"<script>alert(1)</script>")
    # A report may be a stranger's: its scripts do not run, and it does not share the origin of the page.
    assert response.headers["Content-Security-Policy"].startswith("sandbox; default-src 'none'")
    for path in (
        "/sweep/0000000001/report.html",
        "/../report.html",
        "/%2e%2e/report.html",
        "//report.html",
        f"/{tmp_path}/report.html",
        "/sweep/0000000000/config.yaml",
        "/sweep/%00/report.html",
        "/" + "x" * 5000 + "/report.html",
    ):
        assert ask(server, path)[0].status == 404, path


def test_a_page_of_another_site_reads_nothing(server: Server) -> None:
    for host in ("example.com", "example.com:80", "127.0.0.1.example.com:80", ""):
        assert ask(server, "/data.json", Host=host)[0].status == 403
    assert server.server_address[0] == "127.0.0.1"


def test_a_port_that_is_in_use(server: Server) -> None:
    with pytest.raises(UserError, match=rf"--port {server.server_port}: .* Allowed: a free port; 0 finds one"):
        _serve(server.RequestHandlerClass.args[0], server.server_port)  # type: ignore[attr-defined]
