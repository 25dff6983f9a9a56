"""Indexes of record files: those of MXNet are checked, and building ours shows progress."""

import io
from pathlib import Path

import pytest
from files_of_sources import (
    Sample,
    forget_loaded,
    load,
    put_both,
    said,
)
from rich.console import Console
from rich.progress import Progress

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.mark.parametrize(
    ("listing", "message"),
    [
        (b"0\t0\n1\t77\n", "line 2, says byte 77, where no record begins: it belongs to another file. It is optional"),
        (b"0\t0\n1\t0\n", "line 2, lists a record again. Allowed: each once. It is optional: remove it"),
        (b"0 a\n", "line 1, is '0 a'. Allowed: a key, a tab and a number."),
        (b"\xff\xfe\x00", "is not text. It is optional: remove it"),
        (b"", "is empty. It is optional: remove it"),
        (None, "cannot be read: Is a directory. It is optional: remove it"),
    ],
)
def test_invalid_mxnet_indexes_are_refused(listing: bytes | None, message: str, samples: list[Sample]) -> None:
    settings = put_both("recordio", samples, samples[:3])
    index = Path("train.idx")
    if listing is None:
        index.unlink()
        index.mkdir()
    else:
        index.write_bytes(listing)
    text = said("recordio", settings)
    assert text.startswith("data.train: train.rec: its index train.idx")
    assert message in text


def test_an_mxnet_index_of_fewer_records_is_reported_each_time(
    samples: list[Sample], caplog: pytest.LogCaptureFixture
) -> None:
    """Such as one that is older than its file."""
    settings = put_both("recordio", samples, samples[:3])
    index = Path("train.idx")
    whole = index.read_text()
    index.write_text("".join(whole.splitlines(keepends=True)[:4]))
    for _ in range(2):
        forget_loaded()
        caplog.clear()
        assert len(load("recordio", settings).train) == 4
        assert "train.rec: its index train.idx lists 4 of 6 records; without it, all are used" in caplog.text
    index.unlink()
    forget_loaded()
    caplog.clear()
    assert len(load("recordio", settings).train) == 6
    assert "its index" not in caplog.text


@pytest.mark.parametrize("source", ["tfrecord", "recordio", "lmdb", "parquet"])
def test_building_an_index_shows_progress(source: str, samples: list[Sample], monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()

    def shown(*_: object, quiet: bool) -> Progress:
        return Progress(console=Console(file=stream, force_terminal=True, width=80), disable=quiet)

    monkeypatch.setattr("augment.data.formats.index.progress_bar", shown)
    settings = put_both(source, samples, samples[:3])
    load(source, settings)
    assert not stream.getvalue()  # of so small ones nobody sees a bar
    for index in Path("outputs/data/index").glob("*.npz"):
        index.unlink()
    monkeypatch.setattr("augment.data.formats.index._PROGRESS_FROM", 1)
    forget_loaded()
    assert load(source, settings).train.targets == (0, 1, 2, 0, 1, 2)
    assert "Indexing MB" in stream.getvalue()
