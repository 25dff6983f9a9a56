"""Windows of shards on a web server: fetched while others are read, and removed when there is no room for others."""

import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from files_of_sources import ENDINGS, Sample, load, write
from loaders import build_loader
from shard_server import PLAN, Server, left, passes, settings, shards

from augment.data.dataset import Split
from augment.data.formats.records import Opened
from augment.data.sources import LOADED, remote
from augment.data.sources.remote import fetch_in_process
from augment.support.errors import UserError

pytest.importorskip("aiohttp")


def in_windows(source: str, server: Server, samples: list[Sample], held: int) -> tuple[Split, Split]:
    """Return 24 images in shards of 4, of which windows of 2 are read: local ones, and those elsewhere, some of 6."""
    names, val = shards(source, server.folder, samples * 4, 6), f"val.{ENDINGS[source]}"
    size = max(file.stat().st_size for file in server.folder.iterdir())
    write(source, server.folder, "val", samples)
    room = held * size + (server.folder / val).stat().st_size
    more = {"val": server.url(val), "val_fraction": None, "window": 2, "cache_gb": room / 1e9}
    local, there = (load(source, settings(f"{at}/{names}", **more)).train for at in (server.folder, server.address))
    return local, there


@pytest.mark.parametrize(("source", "held"), [("webdataset", 4), ("tfrecord", 4), ("recordio", 4)])
def test_windows_of_shards(source: str, held: int, server: Server, samples: list[Sample]) -> None:
    in_windows(source, server, samples, held)
    shutil.rmtree("outputs/data/window")
    server.gets.clear()
    LOADED.clear()
    local, there = in_windows(source, server, samples, held)
    assert not +server.gets  # what is known of them stays
    expected, found = (passes(split, 2) for split in (local, there))
    assert found == expected
    for epoch in found:
        read = [index for _, indices, _ in epoch for index in indices]
        assert sorted(read) == list(range(24))
        assert all(len({index // 4 for index in read[start : start + 8]}) == 2 for start in range(0, 24, 8))
        assert len({index // 4 for index in read[:6]}) == 2  # mixed within a window
    assert any(server.gets.values())
    kept = sum(file.stat().st_size for file in Path("outputs/data").glob("[rw]*/*/[!.]*"))
    assert kept <= there.files[0].file.most_gb * 1e9
    state = build_loader(PLAN, there, batch_size=2, seed=1).state_dict()
    with pytest.raises(UserError, match=r"^data\.window differs from the saved run"):
        build_loader(PLAN, replace(there, window=3), batch_size=2, seed=1).load_state_dict(state)
    shutil.rmtree("outputs/data/window")
    assert passes(there, 2) == expected


def test_remote_parquet_files_have_no_windows() -> None:
    with pytest.raises(UserError, match=r"data\.window=2: .*Remove data\.window"):
        load("parquet", {"train": "http://host/train-0.parquet", "val_fraction": 0.5, "window": 2})


def test_other_processes_fetch(server: Server, samples: list[Sample], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "fetch_in_process", fetch_in_process)
    local, there = in_windows("webdataset", server, samples, 4)
    assert passes(there, 2) == passes(local, 2)
    shard = there.files[0].file
    server.faults["train-0.tar"] = [404]
    with pytest.raises(UserError, match=r"^data\.train=.*train-0\.tar: the object does not exist\. Check the URL\.$"):
        fetch_in_process(shard, threading.Event())
    server.faults["train-0.tar"] = ["drip"]
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(UserError, match="stopped"):
        fetch_in_process(shard, stopped)
    assert not [name for name in left("window") if name.endswith(".part")]
    monkeypatch.setattr(remote, "_SERVE", "")
    killed = remote._start()
    killed.wait()
    for idle in ([], [killed]):
        monkeypatch.setattr(remote, "_IDLE_PROCESSES", idle)
        with pytest.raises(
            UserError, match=r"^data\.train=.*: the process that downloaded .*train-0\.tar was killed\.$"
        ):
            fetch_in_process(shard, threading.Event())


AHEAD = """import os, pathlib, sys, types; from augment.data.sources.remote import list_files
from augment.pipeline.graph.shard_prefetch import Stream
files = list_files("data.train", sys.argv[1], pathlib.Path("outputs/data/window"), None).values()
stream = Stream([types.SimpleNamespace(file=file) for file in files], 2)
stream.move(lambda epoch: stream.epoch_files(range, len(files)), 0, 0, 1)
while len(list(pathlib.Path("outputs/data/window").glob("*/*"))) < 2: pass
os.kill(os.getpid(), int(sys.argv[2]))"""


@pytest.mark.parametrize("number", [0, signal.SIGKILL], ids=["ended", "killed"])
def test_no_shard_comes_for_a_program_that_has(number: int, server: Server, samples: list[Sample]) -> None:
    url = server.url(shards("webdataset", server.folder, samples))
    server.faults["train-1.tar"] = ["drip"]
    assert subprocess.run([sys.executable, "-c", AHEAD, url, str(number)], timeout=20).returncode == -number
    assert server.left.wait(20)
    assert any(left("window") == ["train-0.tar"] or time.sleep(0.05) for _ in range(100))


def test_a_shard_that_is_open_stays(server: Server, samples: list[Sample]) -> None:
    _, there = in_windows("webdataset", server, samples, 4)
    files = list(dict.fromkeys(image.file for image in there.files))
    held = [Opened(file) for file in files[2:]]
    assert left("window") == [f"train-{number}.tar" for number in range(2, 6)]
    with pytest.raises(UserError, match=r"^data\.train=.* GB must be downloaded, but .*/window has room for 0 GB next"):
        there.files[0].read()
    del held[0]
    assert there.files[0].read()
    assert left("window") == [f"train-{number}.tar" for number in (0, 3, 4, 5)]


def test_a_shard_fails_while_training(server: Server, samples: list[Sample]) -> None:
    local, there = in_windows("webdataset", server, samples, 4)
    loader = build_loader(PLAN, there, batch_size=2, seed=1)
    server.faults["train-1.tar"] = [500]
    with pytest.raises(UserError, match=f"^data.train={re.escape(server.address)}.*ClientResponseError: 500, "):
        [list(loader) for _ in range(3)]
    loader.close()
    server.faults.clear()
    assert passes(there, 2) == passes(local, 2)
