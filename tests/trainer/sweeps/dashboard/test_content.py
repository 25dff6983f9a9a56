"""What the dashboard takes from run folders, and sends: what it shows, and nothing that a folder could do with it."""

import json
import math
import re
import socket
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from http.server import ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from image_bytes import with_scans
from many_runs import HOSTILE, config_of, write_few, write_run
from PIL import Image

from augment.support.errors import UserError
from trainer.figures.batches import plot_batch
from trainer.run.folder.facts import Facts
from trainer.run.folder.reader import find_runs
from trainer.sweeps.dashboard.command import Watched, main, make_server, render
from trainer.sweeps.dashboard.content import collect, rounded
from trainer.sweeps.dashboard.settings import importance

# --- content ---


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """A few runs."""
    write_few(tmp_path / "outputs")
    return tmp_path / "outputs"


def content(folder: Path) -> dict[str, Any]:
    return collect(find_runs([folder]), folder, folder)


def run_of(data: dict[str, Any], path: str) -> dict[str, Any]:
    (found,) = [run for run in data["runs"] if run["path"] == path]
    return dict(found)


def values_of(data: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the values of a setting by the paths of runs."""
    (column,) = [column for column in data["params"] if column["key"] == key]
    pairs = zip(data["runs"], column["codes"], strict=True)
    return {run["path"]: column["values"][code] for run, code in pairs if code >= 0}


def test_runs_settings_curves_and_groups(outputs: Path) -> None:
    data = content(outputs)
    assert len(data["runs"]) == 14
    statuses = [run["status"] for run in data["runs"]]
    assert {status: statuses.count(status) for status in statuses} == {
        "finished": 11, "failed": 1, "pruned": 1, "planned": 1,
    }  # fmt: skip
    assert {column["key"] for column in data["params"]} == {"fit.lr", "aug.train.rotate.p", "seed", "x"}
    # A job that has not begun is known by its overrides.
    assert values_of(data, "fit.lr")["sweep/00000000ff"] == 0.08
    run = run_of(data, "sweep/000000000b")
    assert (run["epochs"], run["planned"], data["sweeps"][run["sweep"]]["name"]) == (5, 5, "sweep")
    score = [metric["key"] for metric in data["metrics"]].index("val_accuracy")
    assert (run["monitor"], run["last"][score]) == (score, 0.724)
    at, values = run["curves"][score]
    assert data["epochs"][at] == (1, 2, 3, 4, 5)
    assert (len(values), values[-1]) == (5, 0.724)
    assert [r["path"] for r in data["runs"] if r["group"] == run["group"]] == ["sweep/000000000a", "sweep/000000000b"]
    assert data["groups"][run["group"]] == "fit.lr=0.04 aug.train.rotate.p=0.2"
    # An epoch without a number is left out.
    single = next(run for run in data["runs"] if run["sweep"] < 0)
    assert [data["epochs"][at] for at, _ in [single["curves"][score]]] == [(1, 3)]


def test_a_range_that_was_given_as_one_number_is_one(tmp_path: Path) -> None:
    """So that searches over ranges have axes, and comparisons in the filter."""

    def write(name: str, factor: list[float], angle: list[float], *given: str) -> None:
        steps = {"contrast": {"factor_range": factor}, "rotate": {"angle_range": angle}}
        write_run(tmp_path / name, {"aug": {"train": steps}}, [*given], [0.1], planned=1)

    write("a", [0.9, 1.1], [-7, 7], "++aug.train.rotate.angle_range=[-7,7]")
    write("b", [0.8, 1.2], [0, 9], "++aug.train.contrast.factor_range=0.2")
    write("c", [0.7, 1.4], [0, math.inf], "++aug.train.rotate.angle_range=9")  # JSON has no infinity
    data = content(tmp_path)
    factors = {"a": "[0.9,1.1]", "b": 0.2, "c": "[0.7,1.4]"}
    assert values_of(data, "aug.train.contrast.factor_range") == factors
    angles = {"a": "[-7,7]", "b": "[0,9]", "c": 9}
    assert values_of(data, "aug.train.rotate.angle_range") == angles


def test_whole_numbers_in_lists_have_no_decimal_point(tmp_path: Path) -> None:
    for name, ends in (("a", [0.0, 4095.0]), ("b", [-1.0, 0.05]), ("c", [[10.0], ["2.0"]])):
        write_run(tmp_path / name, {"data": {"range": ends}}, [], [0.1], planned=1)
    found = values_of(content(tmp_path), "data.range")
    assert found == {"a": "[0,4095]", "b": "[-1,0.05]", "c": '[[10],["2.0"]]'}


def test_runs_on_other_data_are_told_apart(tmp_path: Path) -> None:
    """By the rule of `trainer compare`."""
    data = {"a": {"root": "x"}, "b": {"root": "y"}, "c": {"root": "x", "fraction": 0.5}}
    for name, given in data.items():
        write_run(tmp_path / name, {"data": {"source": "folder", **given}}, [], [0.1], planned=1)
    numbers = {run["path"]: run["comparable"] for run in content(tmp_path)["runs"]}
    assert numbers["a"] == numbers["c"] != numbers["b"]


def test_an_unknown_number_of_images_equals_no_other_number(tmp_path: Path) -> None:
    for name, images in {"a": 5, "b": None, "c": 7, "d": 5, "e": 5}.items():
        write_run(tmp_path / name, {"data": {"source": "folder", "root": "x"}}, [], [0.1], planned=1)
        (tmp_path / name / "run.json").write_text(json.dumps({"images": images and [9, 9, images]}))
    numbers = {run["path"]: run["comparable"] for run in content(tmp_path)["runs"]}
    assert [numbers[name] for name in "abcde"] == [0, 1, 2, 0, 0]


def test_no_name_becomes_markup(outputs: Path) -> None:
    data = content(outputs)
    page = render(data)
    assert HOSTILE in {run["name"] for run in data["runs"]}
    assert "<img src=x" not in page
    assert page.count("</script>") == 3
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert not re.search(r"[<>&'\u2028]", text)
    assert json.loads(text)["runs"] == json.loads(json.dumps(data["runs"]))
    assert "default-src &#39;none&#39;" in page
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page.replace("http://www.w3.org/", ""))


def test_the_first_batch_is_clear_around_its_images(tmp_path: Path) -> None:
    write_run(tmp_path / "a", config_of(0.1, 0.0, 0), [], [0.5], planned=1)
    plot_batch(np.full((2, 128, 128, 3), 255, dtype=np.uint8), ["ant", "bee"], tmp_path / "a" / "batch.png")
    (shown,) = content(tmp_path)["images"]
    with Image.open(BytesIO(b64decode(shown["source"].partition("base64,")[2]))) as image:
        alpha = np.asarray(image.convert("RGBA"))[..., 3]
    assert (alpha == 255).mean() > 0.2
    assert (alpha[0] == 0).all()


def test_links_are_relative_and_none_leads_out(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    (tmp_path / "secret.html").write_text("secret")
    Image.new("RGB", (8, 8)).save(tmp_path / "secret.png")
    for name in ("javascript:alert(1)", "linked"):
        write_run(outputs / name, config_of(0.1, 0.0, 0), [], [0.5], planned=1)
    (outputs / "javascript:alert(1)" / "report.html").write_text("report")
    Image.new("RGB", (900, 600)).save(outputs / "javascript:alert(1)" / "batch.png")
    (outputs / "linked" / "report.html").symlink_to(tmp_path / "secret.html")
    (outputs / "linked" / "batch.png").symlink_to(tmp_path / "secret.png")
    data = content(outputs)
    assert run_of(data, "javascript:alert(1)")["report"] == "./javascript%3Aalert%281%29/report.html"
    assert run_of(data, "linked")["report"] == ""
    # Both have the same recipe, whose preview is that of the other one.
    assert [image["file"] for image in data["images"]] == ["./javascript%3Aalert%281%29/batch.png"]
    assert data["images"][0]["source"].startswith("data:image/webp;base64,")
    above = collect(find_runs([outputs]), outputs, tmp_path / "elsewhere")
    assert run_of(above, "javascript:alert(1)")["report"].startswith("./../outputs/javascript%3A")


@pytest.mark.parametrize(
    ("fit", "batches", "images"),
    [
        ({}, (5, 5), [39, 78]),
        ({"limit_batches": 2}, (2, 2), [16, 32]),
        ({"steps": 7}, (5, 2), [39, 55]),
        ({"drop_last": True}, (4, 4), [32, 64]),
        ({"stages": {"a": {"epochs": 1, "batch_size": 20}, "b": {}}}, (2, 5), [39, 78]),
    ],
)
def test_images_that_an_epoch_leaves_out_do_not_count(
    fit: dict[str, Any], batches: tuple[int, int], images: list[int], tmp_path: Path
) -> None:
    write_run(tmp_path / "run", config_of(0.1, 0.0, 0, fit={"batch_size": 8, **fit}), [], [0.1, 0.5], planned=2)
    facts = Facts(images=(39, 39, 9), batches=batches)
    (tmp_path / "run" / "run.json").write_text(json.dumps(vars(facts)))
    (run,) = content(tmp_path)["runs"]
    assert [values for _, values in run["axes"]] == [[batches[0], sum(batches)], [1.5, 3.0], images]


def test_long_curves_are_thinned_and_huge_values_are_cut(tmp_path: Path) -> None:
    for i in range(4):
        config = config_of(0.1, 0.0, i, note="x" * 10_000 + str(i), huge=10**400 + i)
        write_run(tmp_path / str(i), config, [], list(np.linspace(0.1, 0.9, 1000)), planned=1000)
    data = content(tmp_path)
    for run in data["runs"]:
        at, values = run["curves"][run["monitor"]]
        assert (len(values), data["epochs"][at][0], data["epochs"][at][-1], values[-1]) == (200, 1, 1000, 0.9)
    assert len(json.dumps(data)) < 200_000


def test_a_mistake_that_takes_minutes_to_draw_is_left_out(tmp_path: Path) -> None:
    write_few(tmp_path)
    stream = BytesIO()
    Image.new("L", (2000, 2000)).save(stream, "JPEG", progressive=True)
    uri = f"data:image/jpeg;base64,{b64encode(with_scans(stream.getvalue(), 50_000)).decode()}"
    next(tmp_path.rglob("summary.json")).with_name("mistakes.json").write_text(json.dumps({"images": [{"uri": uri}]}))
    assert not any(image["source"] for image in content(tmp_path)["images"])


def test_the_page_reads_few_of_many_small_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.sweeps.dashboard.content._MIN_BYTES", 10**6)
    write_few(tmp_path)
    for summary in tmp_path.rglob("summary.json"):
        Image.new("RGB", (9, 9)).save(summary.with_name("confusion.png"))
    images = content(tmp_path)["images"]
    assert len(images) > 1
    assert sum(bool(image["source"]) for image in images) == 1


def test_no_runs_and_damaged_ones(tmp_path: Path) -> None:
    assert content(tmp_path)["runs"] == []
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").write_text('{"status": [], "last": {"val_accuracy": 1e999}, "planned": "x"}')
    (tmp_path / "run" / "metrics.jsonl").write_text('{"epoch": null, "val_accuracy": 0.5}\n{"epoch": 1e300}\n')
    (tmp_path / "run" / "environment.json").write_text('{"git": 3, "packages": [1], "gpus": {"a": 1}, "python": null}')
    (tmp_path / "run" / "config.yaml").write_text("run: {tags: 3}\naug: [1]\nseed: {a: .nan}\n")
    data = content(tmp_path)
    render(data)
    assert data["runs"][0]["status"] == "killed"
    assert rounded(math.nan) is rounded(math.inf) is rounded(None) is rounded(True) is None
    assert [rounded(value) for value in (0.123456, 3.0, 12_345_678)] == [0.12346, 3, 12_346_000.0]


@pytest.mark.parametrize("count", [10, 60])
def test_the_setting_that_matters_is_the_first(count: int) -> None:
    rng = np.random.default_rng(0)
    settings: dict[str, list[object]] = {
        "idle": list(rng.uniform(0, 1, count).tolist()),
        "lr": (10 ** rng.uniform(-4, -1, count)).tolist(),
        "kind": [("a", "b", None)[i % 3] for i in range(count)],
    }
    scores = [-((math.log10(float(str(lr))) + 2) ** 2) + 0.01 * float(rng.normal()) for lr in settings["lr"]]
    found = importance(settings, scores)
    assert found is not None
    assert found["rows"][0][0] == "lr"
    assert importance(settings, scores[:5]) is None


def test_only_the_trials_of_a_search_tell_which_settings_matter(tmp_path: Path) -> None:
    for i in range(16):
        trial, given = (i, [f"fit.lr={i}"]) if i < 6 else (None, ["fit.lr=3", f"seed={i}"])
        folder = tmp_path / "search" / str(i)
        write_run(folder, config_of(i if i < 6 else 3, 0.0, i), given, [0.1 * (i % 6)], planned=1, order=i)
        (folder / "job.json").write_text(json.dumps({"order": i, "overrides": given, "trial": trial}))
    (search,) = content(tmp_path)["sweeps"]
    assert "over 6 finished jobs" in search["importance"]["note"]


def test_the_command_writes_the_page(
    outputs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(outputs.parent)
    assert main([]) == 0
    assert capsys.readouterr().out == "outputs/dashboard.html: 14 runs\n"
    assert main(["outputs/sweep", "--out", "day.html"]) == 0
    assert "./outputs/sweep" not in Path("day.html").read_text()  # none of them has a report
    Path("linked.html").symlink_to("elsewhere.html")
    Path("empty").mkdir()
    monkeypatch.chdir("empty")
    monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", lambda server: None)
    assert main(["--watch", "--port", "0"]) == 0  # before the first run
    assert Path("outputs/dashboard.html").is_file()
    monkeypatch.chdir("..")
    assert main(["--out", "linked.html"]) == 0
    assert Path("elsewhere.html").is_file()  # the command line named the link, so it is followed


# --- the server ---


class Eager(Watched):
    """Looks at the folders at each request."""

    def latest(self) -> tuple[str, str, str]:
        self._next = -math.inf
        return super().latest()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    """A server of outputs/."""
    write_few(tmp_path / "outputs")
    with make_server(Eager(tmp_path / "outputs"), 0) as served:
        Thread(target=served.serve_forever, args=(0.02,), daemon=True).start()
        yield served
        served.shutdown()


def ask(server: ThreadingHTTPServer, path: str, **headers: str) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_data_are_sent_when_they_change(server: ThreadingHTTPServer, tmp_path: Path) -> None:
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


def test_only_files_that_the_page_links_to_are_sent(server: ThreadingHTTPServer, tmp_path: Path) -> None:
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
        "x://[",
    ):
        assert ask(server, path)[0].status == 404, path


def test_a_page_of_another_site_reads_nothing(server: ThreadingHTTPServer) -> None:
    for host in ("example.com", "example.com:80", "127.0.0.1.example.com:80", ""):
        assert ask(server, "/data.json", Host=host)[0].status == 403
    assert server.server_address[0] == "127.0.0.1"


def test_lost_connections_print_nothing(server: ThreadingHTTPServer, capsys: pytest.CaptureFixture[str]) -> None:
    whole = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode()
    for part in (b"", whole[:20], whole):
        with socket.create_connection(("127.0.0.1", server.server_port)) as connection:
            connection.sendall(part)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets it
    ask(server, "/")
    server.shutdown()
    server.server_close()  # waits for all connections
    assert capsys.readouterr().err == ""


def test_a_port_that_is_in_use(server: ThreadingHTTPServer) -> None:
    with pytest.raises(UserError, match=rf"--port {server.server_port}: .* Choose a free port, or 0 to find one"):
        make_server(Watched(Path()), server.server_port)
