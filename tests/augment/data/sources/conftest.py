"""Images and a server that the tests of sources share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from files_of_sources import Sample, drawn
from shard_server import Server, served

from augment.data.sources import LOADED, remote


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    """Six JPEGs of three classes."""
    return drawn(6)


@pytest.fixture
def server(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server of shards, which are fetched without waits, and by this process."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(remote, "_RETRY_PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(remote, "_MARGIN", 0)
    monkeypatch.setattr(remote, "_PATIENCE_S", 0.5)
    monkeypatch.setattr(remote, "fetch_in_process", lambda shard, stopped: remote.get_shard(shard, lambda _: None))
    LOADED.clear()
    with served(own_folder / "there") as state:
        yield state
