"""Shards on web servers and in S3: fetched once, whole, and read as local files are."""

import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from files_of_sources import ENDINGS, Sample, load, said, write
from loaders import build_loader

from augment.data.dataset import Split
from augment.data.formats.records import Opened
from augment.data.sources import LOADED, fetcher, parse_data, remote, windows
from augment.pipeline.reading import Shard
from augment.recipe.plan import build_plan
from augment.recipe.steps import parse_aug
from augment.support.errors import UserError

pytest.importorskip("aiohttp")

PLAN = build_plan(parse_aug({"size": 16, "train": {"random_crop": {}, "flip": {"p": 0.5}}}), "train")


@dataclass
class Server:
    """A web server that hands out a folder, how it misbehaves, and what it was asked for."""

    folder: Path
    address: str = ""
    faults: dict[str, list[Any]] = field(default_factory=dict)  # by name: of its next answers, the last one for good
    tags: Counter[str] = field(default_factory=Counter)  # by name: the version that the ETag says
    gets: Counter[str] = field(default_factory=Counter)
    heads: Counter[str] = field(default_factory=Counter)

    def url(self, name: str) -> str:
        return f"{self.address}/{name}"


@pytest.fixture
def server(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(remote, "_WAITS", (0.0, 0.0, 0.0))
    monkeypatch.setattr(remote, "_MARGIN", 0)
    monkeypatch.setattr(windows, "_PATIENCE_S", 0.5)
    monkeypatch.setattr(windows, "fetch", lambda shard, stopped: remote.get_shard(shard))
    state = Server(own_folder / "there")
    state.folder.mkdir()
    LOADED.clear()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            name, get = self.path.strip("/"), self.command == "GET"
            state.gets[name] += get
            state.heads[name] += not get
            faults = state.faults.get(name, [""])
            fault = faults[0] if len(faults) == 1 or not get else faults.pop(0)
            file = state.folder / name
            body = file.read_bytes() if file.exists() else b""
            self.send_response(fault if isinstance(fault, int) else 200 if body else 404)
            if not get or fault != "short":
                self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{state.tags[name]}"')
            self.end_headers()
            while get and fault == "late" and state.heads[name] < 2:
                time.sleep(0.01)
            if get:
                with suppress(OSError):
                    self.wfile.write(body[: len(body) // 2] if fault in ("cut", "drip", "short") else body)
                    while fault == "drip":
                        self.wfile.write(b"x")
                        time.sleep(0.1)
                state.tags[name] += fault == "change"

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
    state.address = f"http://127.0.0.1:{http.server_port}"
    yield state
    http.shutdown()
    http.server_close()


def shards(source: str, folder: Path, samples: list[Sample], count: int = 2) -> str:
    """Write shards; return what names them all."""
    for number in range(count):
        write(source, folder, f"train-{number}", samples[len(samples) // count * number :][: len(samples) // count])
    return f"train-{{0..{count - 1}}}.{ENDINGS[source]}"


def settings(url: str, **more: Any) -> dict[str, Any]:
    return {"train": url, "val_fraction": 0.5, **more}


def batches(split: Split, rank: int) -> list[tuple[bytes, list[int]]]:
    """Return two epochs of one of two ranks, of which the first is resumed in its middle."""
    loaders = [build_loader(PLAN, split, batch_size=1, seed=1, shard=Shard(rank, 2)) for _ in range(2)]
    first = next(iter(loaders[0]))
    loaders[1].load_state_dict(loaders[0].state_dict())
    found = [first, *loaders[1], *loaders[1]]
    return [(batch.images.numpy().tobytes(), batch.targets.tolist()) for batch in found]


def passes(split: Split) -> list[list[tuple[bytes, list[int]]]]:
    """Return the images of each batch of two epochs, the second one resumed in its middle, and their numbers."""
    loader = build_loader(PLAN, split, batch_size=2, seed=1)
    found = [[(batch.images.numpy().tobytes(), batch.indices.tolist()) for batch in loader]]
    batch = next(iter(loader))
    state = loader.state_dict()
    loader.close()
    found.append([(batch.images.numpy().tobytes(), batch.indices.tolist())])
    loader = build_loader(PLAN, split, batch_size=2, seed=1)
    loader.load_state_dict(state)
    found[1] += [(batch.images.numpy().tobytes(), batch.indices.tolist()) for batch in loader]
    loader.close()
    return found


def left(folder: str = "outputs/data/remote") -> list[str]:
    """What is in the folders of shards."""
    return sorted(file.name for file in Path(folder).glob("*/*"))


@pytest.mark.parametrize("source", ["webdataset", "tfrecord", "parquet"])
def test_batches_are_those_of_local_files(source: str, server: Server, samples: list[Sample]) -> None:
    names = shards(source, server.folder, samples)
    local = load(source, settings(f"{server.folder}/{names}"))
    fetched = load(source, settings(server.url(names)))
    assert [image.name for image in fetched.train.files] == [image.name for image in local.train.files]
    for rank in (0, 1):
        assert batches(fetched.train, rank) == batches(local.train, rank)
    LOADED.clear()
    load(source, settings(server.url(names)))
    assert set(server.gets.values()) == {1}


def test_a_changed_object_is_fetched_again(server: Server, samples: list[Sample]) -> None:
    url = server.url(shards("webdataset", server.folder, samples))
    before = load("webdataset", settings(url)).train
    write("webdataset", server.folder, "train-1", samples[:2:-1])
    server.tags["train-1.tar"] += 1
    LOADED.clear()
    after = load("webdataset", settings(url)).train
    assert server.gets == {"train-0.tar": 1, "train-1.tar": 2}
    assert left() == ["train-0.tar", "train-1.tar"]
    assert batches(after, 0) != batches(before, 0)


@pytest.mark.parametrize("faults", [["cut", "cut", ""], [500, 503, ""]], ids=["truncated", "500"])
def test_faults_that_pass(faults: list[Any], server: Server, samples: list[Sample]) -> None:
    url = server.url(shards("webdataset", server.folder, samples))
    server.faults["train-1.tar"] = faults
    assert len(load("webdataset", settings(url)).train)
    assert left() == ["train-0.tar", "train-1.tar"]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("cut", "ContentLengthError: 400, message."),
        ("short", "ValueError: 5,120 of 10,240 bytes came."),
        (500, "ClientResponseError: 500, "),
        (404, "there is no such object."),
        (403, "access is forbidden. Allowed: credentials that may read it."),
        (401, "no credentials, or no valid ones. Allowed: "),
        ("change", "changed while it was fetched. Allowed: run it again."),
    ],
)
def test_faults_that_last(fault: Any, reason: str, server: Server, samples: list[Sample]) -> None:
    url = server.url(shards("webdataset", server.folder, samples))
    server.faults["train-1.tar"] = [fault]
    text = said("webdataset", settings(url))
    assert text.startswith(f"data.train={url}: {server.url('train-1.tar')}")
    assert reason in text.splitlines()[-1]
    assert set(left()) <= {"train-0.tar"}


FETCH = """import pathlib, sys; from augment.data.sources.remote import fetch_shards
fetch_shards({"data.train": sys.argv[1]}, pathlib.Path("outputs/data/remote"), None)"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_process_leaves_no_half_file_in_use(number: int, server: Server, samples: list[Sample]) -> None:
    url = server.url(shards("webdataset", server.folder, samples))
    server.faults["train-1.tar"] = ["drip", ""]
    with subprocess.Popen([sys.executable, "-c", FETCH, url]) as process:
        while process.poll() is None and not (len(left()) == 2 and "train-0.tar" in left()):  # the other is a part
            time.sleep(0.02)
        process.send_signal(number)
        assert process.wait(20) != 0
    assert len(left()) == 1 + (number == signal.SIGKILL)
    load("webdataset", settings(url))
    assert left() == ["train-0.tar", "train-1.tar"]
    assert server.gets == {"train-0.tar": 1, "train-1.tar": 2}


def test_processes_share_what_one_fetches(server: Server, samples: list[Sample]) -> None:
    url = server.url(shards("webdataset", server.folder, samples, 6))
    server.faults = {f"train-{number}.tar": ["late"] for number in range(6)}  # not before both have asked
    processes = [subprocess.Popen([sys.executable, "-c", FETCH, url]) for _ in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0]
    assert set(server.gets.values()) == {1}
    assert len(left()) == len(server.gets) == 6


def test_shards_that_do_not_fit_are_refused_at_once(server: Server, samples: list[Sample]) -> None:
    url = server.url(shards("webdataset", server.folder, samples))
    size = sum(file.stat().st_size for file in server.folder.iterdir()) / 1e9
    text = said("webdataset", settings(url, cache_gb=size * 0.9))
    assert f"2 shards of {size:.3g} GB must be fetched, but outputs/data/remote, which holds 0 GB, has room for" in text
    assert not +server.gets
    load("webdataset", settings(url, cache_gb=size))
    other = server.url("val.tar")
    write("webdataset", server.folder, "val", samples)
    assert f"which holds {size:.3g} GB, has room for 0 GB. " in said("webdataset", settings(other, cache_gb=size))
    remote._MARGIN = 2**60  # the fixture puts it back
    assert "has room for 0 GB. Allowed: data.dir on a larger disk, a larger" in said("webdataset", settings(other))


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s4://bucket/a.tar", "unknown scheme 's4'. Did you mean 's3'? Allowed: gs, hf, http, https, s3."),
        ("gs://bucket/a.tar", "needs the package gcsfs. Allowed: pip install 'dali-trainer[remote]'."),
        ("http://127.0.0.1:1/a.tar", "ConnectionRefusedError: [Errno 111] Connect call failed ('127.0.0.1', 1)."),
    ],
)
def test_what_cannot_be_asked(url: str, reason: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    assert said("webdataset", settings(url)) == f"data.train={url}: {reason}"


def test_a_folder_does_not_decide_what_is_fetched_first(server: Server, samples: list[Sample]) -> None:
    given = {"source": "webdataset", **settings(server.url(shards("webdataset", server.folder, samples)))}
    assert parse_data(given).downloads() == "train"
    load("webdataset", settings(given["train"]))
    assert parse_data(given).downloads() == ""
    assert parse_data(given | {"val": "s3://b/val-*.tar", "val_fraction": None}).downloads() == "val"


def in_windows(source: str, server: Server, samples: list[Sample], held: int) -> tuple[Split, Split]:
    """Return 24 images in shards of 4, of which windows of 2 are read: local ones, and those elsewhere, some of 6."""
    names, val = shards(source, server.folder, samples * 4, 6), f"val.{ENDINGS[source]}"
    size = max(file.stat().st_size for file in server.folder.iterdir())
    write(source, server.folder, "val", samples)
    room = held * size + (server.folder / val).stat().st_size
    more = {"val": server.url(val), "val_fraction": None, "window": 2, "cache_gb": room / 1e9}
    local, there = (load(source, settings(f"{at}/{names}", **more)).train for at in (server.folder, server.address))
    return local, there


@pytest.mark.parametrize(("source", "held"), [("webdataset", 4), ("tfrecord", 4), ("recordio", 4), ("parquet", 8)])
def test_windows_of_shards(source: str, held: int, server: Server, samples: list[Sample]) -> None:
    in_windows(source, server, samples, held)
    shutil.rmtree("outputs/data/window")
    server.gets.clear()
    LOADED.clear()
    local, there = in_windows(source, server, samples, held)
    assert set(+server.gets) <= {"train-0.parquet"}  # what is known of the others stays
    expected, found = map(passes, (local, there))
    assert found == expected
    for epoch in found:
        read = [index for _, indices in epoch for index in indices]
        assert sorted(read) == list(range(24))
        assert all(len({index // 4 for index in read[start : start + 8]}) == 2 for start in range(0, 24, 8))
        assert len({index // 4 for index in read[:6]}) == 2  # mixed within a window
    if source != "parquet":  # whose copies are made without looking for room when they are indexed
        assert any(server.gets.values())
        kept = sum(file.stat().st_size for file in Path("outputs/data").glob("[rw]*/*/[!.]*"))
        assert kept <= there.files[0].file.most_gb * 1e9
    state = build_loader(PLAN, there, batch_size=2, seed=1).state_dict()
    with pytest.raises(UserError, match=r"^data\.window: not that of the saved run"):
        build_loader(PLAN, replace(there, window=3), batch_size=2, seed=1).load_state_dict(state)
    shutil.rmtree("outputs/data/window")
    assert passes(there) == expected


def test_other_processes_fetch(server: Server, samples: list[Sample], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "fetch", fetcher.fetch)
    local, there = in_windows("webdataset", server, samples, 4)
    assert passes(there) == passes(local)
    shard = there.files[0].file.shard
    server.faults["train-0.tar"] = [404]
    with pytest.raises(UserError, match=r"^data\.train=.*train-0\.tar: there is no such object\.$"):
        fetcher.fetch(shard, threading.Event())
    server.faults["train-0.tar"] = ["drip"]
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(UserError, match="stopped"):
        fetcher.fetch(shard, stopped)
    monkeypatch.setattr(fetcher, "_SERVE", "")
    killed = fetcher._start()
    killed.wait()
    for idle in ([], [killed]):
        monkeypatch.setattr(fetcher, "_IDLE", idle)
        with pytest.raises(UserError, match=r"^data\.train=.*: the process that fetched .*train-0\.tar was killed\.$"):
            fetcher.fetch(shard, threading.Event())


AHEAD = """import pathlib, sys, types; from augment.data.sources.windows import list_files
from augment.pipeline.streaming import Stream
files = list_files("data.train", sys.argv[1], pathlib.Path("outputs/data/window"), None).values()
stream = Stream([types.SimpleNamespace(file=file) for file in files], 2)
stream.move(lambda epoch: stream.uses(range, len(files)), 0, 0, 1)"""


def test_a_program_ends_while_shards_come(server: Server, samples: list[Sample]) -> None:
    url = server.url(shards("webdataset", server.folder, samples))
    server.faults["train-1.tar"] = ["drip"]
    subprocess.run([sys.executable, "-c", AHEAD, url], check=True, timeout=20)


def test_a_shard_that_is_open_stays(server: Server, samples: list[Sample]) -> None:
    _, there = in_windows("webdataset", server, samples, 4)
    files = list(dict.fromkeys(image.file for image in there.files))
    held = [Opened(file) for file in files[2:]]
    assert left("outputs/data/window") == [f"train-{number}.tar" for number in range(2, 6)]
    with pytest.raises(UserError, match=r"^data\.train=.* GB must be fetched, but .*/window has room for 0 GB beside"):
        there.files[0].read()
    del held[0]
    assert there.files[0].read()
    assert left("outputs/data/window") == [f"train-{number}.tar" for number in (0, 3, 4, 5)]


@pytest.mark.parametrize(
    ("fault", "reason"), [(500, "ClientResponseError: 500, "), ("change", "changed while it was fetched.")]
)
def test_a_shard_fails_while_training(fault: Any, reason: str, server: Server, samples: list[Sample]) -> None:
    local, there = in_windows("webdataset", server, samples, 4)
    loader = build_loader(PLAN, there, batch_size=2, seed=1)
    server.faults["train-1.tar"] = [fault]
    with pytest.raises(UserError, match=f"^data.train={re.escape(server.address)}.*{reason}"):
        [list(loader) for _ in range(3)]
    loader.close()
    server.faults.clear()
    if fault == 500:
        assert passes(there) == passes(local)


@pytest.fixture(scope="module")
def bucket(samples: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A server of S3, and a folder of what is in its bucket."""
    moto, boto3 = map(pytest.importorskip, ("moto.moto_server.threaded_moto_server", "boto3"))
    folder = tmp_path_factory.mktemp("bucket")
    server = moto.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    address = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    key = {"aws_access_key_id": "name", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=address, **key)
    client.create_bucket(Bucket="bucket")
    shards("webdataset", folder, samples)
    for file in folder.iterdir():
        client.upload_file(str(file), "bucket", f"set/{file.name}")
    yield address, folder
    server.stop()


@pytest.fixture
def s3(bucket: tuple[str, Path], own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    named = {"ENDPOINT_URL": bucket[0], "ACCESS_KEY_ID": "name", "SECRET_ACCESS_KEY": "secret"}
    for name, value in {**named, "DEFAULT_REGION": "us-east-1", "EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(remote, "_WAITS", ())
    monkeypatch.setattr(remote, "_MARGIN", 0)
    LOADED.clear()
    return bucket[1]


@pytest.mark.parametrize("names", ["train-{0..1}.tar", "train-*.tar"])
def test_batches_from_s3_are_those_of_local_files(names: str, s3: Path) -> None:
    local, fetched = (load("webdataset", settings(f"{folder}/{names}")) for folder in (s3, "s3://bucket/set"))
    assert batches(fetched.train, 0) == batches(local.train, 0)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s3://bucket/set/val-{0..9}.tar", "val-0.tar: there is no such object."),
        ("s3://bucket/set/val-*.tar", "no object matches s3://bucket/set/val-*.tar."),
        (
            "s3://bucket/set",
            "s3://bucket/set is a folder, or of unknown size. Allowed: objects, such as s3://bucket/set/*.",
        ),
    ],
)
def test_what_is_not_in_s3(url: str, reason: str, s3: Path) -> None:
    assert re.fullmatch(f"data.train={re.escape(url)}: .*{re.escape(reason)}", said("webdataset", settings(url)))


def test_s3_without_credentials(s3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "none")
    assert "set/train-0.tar: no credentials, or no" in said("webdataset", settings("s3://bucket/set/train-0.tar"))
