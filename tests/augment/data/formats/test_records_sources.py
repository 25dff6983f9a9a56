"""The same images through all sources of records and the real loader, and how they break."""

import os
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from files_of_sources import samples_of, write
from loaders import build_loader
from stores import FIXED

from augment.data.dataset import Dataset, Split
from augment.data.sources import parse_data

lmdb = pytest.importorskip("lmdb")
pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.usefixtures("own_folder")

ENDINGS = {"webdataset": "*.tar", "tfrecord": "*.tfrecord", "recordio": "*.rec", "lmdb": "*", "parquet": "*.parquet"}
SOURCES = tuple(ENDINGS)


def load(source: str, pattern: str | Path, **settings: object) -> Dataset:
    return parse_data({"source": source, "train": str(pattern), "val": str(pattern), **settings}).load()


def two_files(source: str, folder: Path, image_files: Split) -> str:
    samples = samples_of(image_files)
    write(source, folder, "train-0", samples[:4])
    write(source, folder, "train-1", samples[4:])
    return str(folder / f"train-{ENDINGS[source]}")


def epoch(split: Split) -> Counter[tuple[int, bytes]]:
    loader = build_loader(FIXED, split, batch_size=2, seed=3, raw=True)
    return Counter(
        (target, pixels.numpy().tobytes())
        for batch in loader
        for target, pixels in zip(batch.targets.tolist(), batch.images, strict=True)
    )


@pytest.mark.parametrize("source", SOURCES)
def test_only_changed_files_are_indexed_again(
    source: str, image_files: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern = two_files(source, tmp_path / source, image_files)
    first = load(source, pattern)
    with monkeypatch.context() as patch:
        patch.setattr("augment.data.formats.records.build_index", Mock(side_effect=AssertionError))
        assert load(source, pattern) == first
    samples = samples_of(image_files)
    if source == "lmdb":
        (tmp_path / source / "train-1" / "data.mdb").unlink()
    path = write(source, tmp_path / source, "train-1", samples[:1])
    os.utime(path, ns=(1, 1))
    again = load(source, pattern)
    assert epoch(again.train) == epoch(Split(image_files.files[:4] + image_files.files[:1], (2, 0, 1, 1, 2)))


def test_a_damaged_index_is_rebuilt(image_files: Split, tmp_path: Path) -> None:
    path = write("parquet", tmp_path / "set", "train", samples_of(image_files))
    first = load("parquet", path)
    (index,) = (tmp_path / "outputs/data/index").glob("*.npz")
    for damaged in (b"", b"PK\x03\x04", index.read_bytes()[:200], np.arange(3).tobytes()):
        index.write_bytes(damaged)
        assert load("parquet", path) == first
