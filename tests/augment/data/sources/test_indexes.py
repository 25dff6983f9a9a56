"""Building the indexes of record files shows progress."""

import io
from pathlib import Path

import pytest
from files_of_sources import (
    Sample,
    forget_loaded,
    load,
    put_both,
)
from rich.console import Console
from rich.progress import Progress

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.mark.parametrize("source", ["tfrecord", "parquet"])
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
