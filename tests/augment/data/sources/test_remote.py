"""Shards on web servers and in S3: fetched once, whole, and read as local files are."""

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from files_of_sources import Sample, load, said, write
from shard_server import Server, left, passes, settings, shards

from augment.data.sources import LOADED, remote
from augment.pipeline.graph.sample_order import RankShard

pytest.importorskip("aiohttp")


@pytest.fixture
def url(server: Server, samples: list[Sample]) -> str:
    """What names two shards."""
    return server.url(shards("webdataset", server.folder, samples))


@pytest.mark.parametrize("source", ["webdataset", "tfrecord", "parquet"])
def test_batches_are_those_of_local_files(source: str, server: Server, samples: list[Sample]) -> None:
    names = shards(source, server.folder, samples)
    local = load(source, settings(f"{server.folder}/{names}"))
    fetched = load(source, settings(server.url(names)))
    assert [image.name for image in fetched.train.files] == [image.name for image in local.train.files]
    for rank in (0, 1):
        assert passes(fetched.train, 1, shard=RankShard(rank, 2)) == passes(local.train, 1, shard=RankShard(rank, 2))
    LOADED.clear()
    load(source, settings(server.url(names)))
    assert set(server.gets.values()) == {1}


def test_a_changed_object_is_fetched_again(url: str, server: Server, samples: list[Sample]) -> None:
    before = load("webdataset", settings(url)).train
    write("webdataset", server.folder, "train-1", samples[:2:-1])
    server.tags["train-1.tar"] += 1
    LOADED.clear()
    after = load("webdataset", settings(url)).train
    assert server.gets == {"train-0.tar": 1, "train-1.tar": 2}
    assert passes(after, 1) != passes(before, 1)


@pytest.mark.parametrize("faults", [["cut", "cut", ""], [500, 503, ""]], ids=["truncated", "500"])
def test_faults_that_pass(faults: list[Any], url: str, server: Server) -> None:
    server.faults["train-1.tar"] = faults
    assert len(load("webdataset", settings(url)).train)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("cut", "ContentLengthError: 400, message."),
        ("short", "ValueError: 5,120 of 10,240 bytes arrived."),
        ("endless", "sends more than the 10,240 bytes that it announced."),
        (500, "ClientResponseError: 500, "),
        (404, "the object does not exist."),
        (403, "access is forbidden. Use credentials that may read it."),
        (401, "credentials are missing or invalid. "),
        ("change", "changed during the download. Run the command again."),
    ],
)
def test_faults_that_last(fault: Any, reason: str, url: str, server: Server) -> None:
    server.faults["train-1.tar"] = [fault]
    text = said("webdataset", settings(url))
    assert text.startswith(f"data.train={url}: {server.url('train-1.tar')}")
    assert reason in text.splitlines()[-1]
    assert set(left("remote")) <= {"train-0.tar"}


@pytest.mark.parametrize("name", ["..", ".", "a\0b", "\033]0;a", "x" * 300, ""])
def test_names_that_a_server_lists_stay_in_the_folder(name: str, tmp_path: Path) -> None:
    shard = remote._shard(None, "", tmp_path, None, f"s3://bucket/{name}", {"type": "file", "size": 3})
    assert shard.path.parent.parent == tmp_path
    assert shard.path.name == "shard"


FETCH = """import pathlib, sys; from augment.data.sources.remote import fetch_shards
fetch_shards({"data.train": sys.argv[1]}, pathlib.Path("outputs/data/remote"), None)"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_process_leaves_no_half_file_in_use(number: int, url: str, server: Server) -> None:
    server.faults["train-1.tar"] = ["drip", ""]
    with subprocess.Popen([sys.executable, "-c", FETCH, url]) as process:
        while process.poll() is None and left("remote")[1:] != ["train-0.tar"]:  # after a part
            time.sleep(0.02)
        process.send_signal(number)
        assert process.wait(20) != 0
    assert len(left("remote")) == 1 + (number == signal.SIGKILL)
    load("webdataset", settings(url))
    assert left("remote") == ["train-0.tar", "train-1.tar"]
    assert server.gets == {"train-0.tar": 1, "train-1.tar": 2}


def test_processes_share_what_one_fetches(server: Server, samples: list[Sample]) -> None:
    url = server.url(shards("webdataset", server.folder, samples, 6))
    server.faults = {f"train-{number}.tar": ["late"] for number in range(6)}  # not before both have asked
    processes = [subprocess.Popen([sys.executable, "-c", FETCH, url]) for _ in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0]
    assert set(server.gets.values()) == {1}
    assert len(left("remote")) == len(server.gets) == 6


def test_shards_that_do_not_fit_are_rejected_at_once(url: str, server: Server, samples: list[Sample]) -> None:
    size = sum(file.stat().st_size for file in server.folder.iterdir()) / 1e9
    text = said("webdataset", settings(url, cache_gb=size * 0.9))
    assert (
        f"2 shards of {size:.3g} GB must be downloaded, but outputs/data/remote, which holds 0 GB, has room for" in text
    )
    assert not +server.gets
    load("webdataset", settings(url, cache_gb=size))
    other = server.url("val.tar")
    write("webdataset", server.folder, "val", samples)
    assert f"which holds {size:.3g} GB, has room for 0 GB. " in said("webdataset", settings(other, cache_gb=size))
    remote._MARGIN = 2**60  # the fixture puts it back
    assert re.search(r"has room for 0 GB\. .*data\.dir.*data\.cache_gb", said("webdataset", settings(other)))


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s4://bucket/a.tar", "unknown scheme 's4'. Did you mean 's3'? Allowed: gs, hf, http, https, s3."),
        ("gs://bucket/a.tar", "needs the package gcsfs. Install it: pip install 'dali-trainer[remote]'"),
        ("http://127.0.0.1:1/a.tar", "ConnectionRefusedError: [Errno 111] Connect call failed ('127.0.0.1', 1)."),
    ],
)
def test_what_cannot_be_asked(url: str, reason: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    message = said("webdataset", settings(url))
    assert message.startswith(f"data.train={url}")
    assert message.endswith(reason)


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
    monkeypatch.setattr(remote, "_RETRY_PAUSES_S", ())
    monkeypatch.setattr(remote, "_MARGIN", 0)
    LOADED.clear()
    return bucket[1]


@pytest.mark.parametrize("names", ["train-{0..1}.tar", "train-*.tar"])
def test_batches_from_s3_are_those_of_local_files(names: str, s3: Path) -> None:
    local, fetched = (load("webdataset", settings(f"{folder}/{names}")) for folder in (s3, "s3://bucket/set"))
    assert passes(fetched.train, 1) == passes(local.train, 1)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s3://bucket/set/val-{0..9}.tar", "val-0.tar: the object does not exist. Check the URL."),
        ("s3://bucket/set/val-*.tar", "no object matches s3://bucket/set/val-*.tar."),
        (
            "s3://bucket/set",
            "s3://bucket/set is a folder, or its size is unknown. Use the URLs of objects, such as s3://bucket/set/*.",
        ),
    ],
)
def test_what_is_not_in_s3(url: str, reason: str, s3: Path) -> None:
    assert re.fullmatch(f"data.train={re.escape(url)}: .*{re.escape(reason)}", said("webdataset", settings(url)))


def test_too_many_objects_in_s3(s3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augment.support.expansion.MAX_EXPANDED", 1)
    assert "expands to more than 1 values" in said("webdataset", settings("s3://bucket/set/train-*.tar"))


def test_s3_without_credentials(s3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "none")
    assert "set/train-0.tar: credentials are missing" in said("webdataset", settings("s3://bucket/set/train-0.tar"))


def test_a_server_that_drips_is_given_up(url: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten bytes a second keep a connection alive; the next attempt gets the whole, or the error follows."""
    monkeypatch.setattr(remote, "_SILENCE_S", 0.3)
    server.faults["train-1.tar"] = ["drip", ""]
    assert len(load("webdataset", settings(url)).train)
    assert server.gets["train-1.tar"] == 2
    shutil.rmtree("outputs")
    LOADED.clear()
    server.faults["train-1.tar"] = ["drip"]
    assert "less than 1,000 bytes per second" in said("webdataset", settings(url))
