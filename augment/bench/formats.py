"""The same pictures in every form that a source reads."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.lib.format import open_memmap
from pyarrow import parquet

from augment.bench.cpu_time import cores
from augment.dataset import Dataset, Split
from augment.errors import UserError
from augment.records.conversion import Options, convert
from augment.records.lists import CLASSES_FILE
from augment.records.protobuf import VARINT, field, varint
from augment.records.writers import FORMATS
from augment.sources import parse_data
from augment.stored import open_picture, read_encoded

_PART = 4096  # pictures in a parquet file
_BATCH = 256  # pictures in a transaction


def write_as(source: str, dataset: Dataset, folder: Path, jobs: int) -> dict[str, Any]:
    """Write a dataset of classes for a source.

    Args:
        source: name of the source, one of `SOURCES`.
        dataset: what is written, of both splits.
        folder: where to; it must not hold anything.
        jobs: processes, where there can be several.

    Returns:
        The `data` section that reads it.

    Raises:
        UserError: these pictures cannot be written so.
    """
    folder.mkdir(parents=True)
    if source in FORMATS:
        convert(dataset, folder, Options(source), jobs=jobs)
    else:
        (folder / CLASSES_FILE).write_text("".join(f"{name}\n" for name in dataset.classes))
        for name, split in (("train", dataset.train), ("val", dataset.val)):
            _WRITERS[source](split, folder / name)
    settings = {"train": f"{folder}/train{_ENDINGS[source]}", "val": f"{folder}/val{_ENDINGS[source]}"}
    if source == "folder":
        return {"source": source, "root": str(folder)}
    if source == "own":
        options = {f"{name}_options": {"listing": file} for name, file in settings.items()}
        return {"source": source, "train": f"{__name__}.Encoded", "val": f"{__name__}.Encoded", **options}
    if source == "numpy":
        settings |= {f"{name}_targets": f"{folder}/{name}.targets.npy" for name in ("train", "val")}
    if source in ("tfrecord", "recordio", "lmdb", "parquet"):
        settings["dir"] = str(folder / "index")
    return {"source": source, "classes": str(folder / CLASSES_FILE), **settings}


class Encoded:
    """A map-style dataset of encoded pictures, as users write them.

    Args:
        listing: file of lines `"path" class`.
    """

    def __init__(self, listing: str) -> None:
        lines = (line.rpartition(" ") for line in Path(listing).read_text().splitlines())
        self._files, self.targets = [], []
        for path, _, target in lines:
            self._files.append(path.strip('"'))
            self.targets.append(int(target))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        return Path(self._files[index]).read_bytes(), self.targets[index]


def load_as(source: str, dataset: Dataset, folder: Path, jobs: int, **settings: Any) -> Dataset:
    """Write the train pictures of a dataset for a source, and load them as the source has them.

    Args:
        source: see `write_as`, as for what follows.
        dataset: of both splits.
        folder: where to.
        jobs: processes.
        settings: further ones of the source.

    Raises:
        UserError: as `write_as`.
    """
    # Nobody reads val: a picture of each class is enough.
    some = {target: picture for picture, target in zip(dataset.val.files, dataset.val.targets, strict=True)}
    few = replace(dataset, val=Split(tuple(some.values()), tuple(some)))
    # Without the check: these pictures were decoded before, or will be.
    loaded = parse_data(write_as(source, few, folder, jobs) | settings).unchecked()
    assert len(loaded.train) == len(dataset.train)
    return loaded


def _write_list(split: Split, path: Path) -> None:
    lines = []
    for picture, target in zip(split.files, split.targets, strict=True):
        if not isinstance(picture, Path):
            raise UserError("the pictures are no files of their own")
        lines.append(f'"{picture.absolute()}" {target}\n')
    path.with_suffix(".txt").write_text("".join(lines))


def _write_lmdb(split: Split, path: Path) -> None:
    import lmdb

    size = sum(len(read_encoded(picture)) for picture in split.files)
    with lmdb.open(str(path), map_size=4 * size + 2**24, sync=False) as base:
        samples = enumerate(_samples(split))
        while batch := list(islice(samples, _BATCH)):
            with base.begin(write=True) as transaction:
                for number, (picture, target) in batch:
                    # Caffe's Datum: 4 the data, 5 the label, 7 whether the data are encoded.
                    label, encoded = varint(5 << 3 | VARINT) + varint(target), varint(7 << 3 | VARINT) + varint(1)
                    transaction.put(b"%08d" % number, field(4, picture) + label + encoded)


def _write_parquet(split: Split, path: Path) -> None:
    samples = list(_samples(split))
    for number, start in enumerate(range(0, len(samples), _PART)):
        part = samples[start : start + _PART]
        table = pa.table({"image": [picture for picture, _ in part], "label": [target for _, target in part]})
        parquet.write_table(table, f"{path}-{number:05}.parquet")


def _write_numpy(split: Split, path: Path) -> None:
    sizes = set()
    for file in split.files:  # all first: decoding takes long
        with open_picture(file) as image:
            sizes.add(image.size)
        if len(sizes) > 1:
            raise UserError("the pictures have several sizes")
    (width, height), count = sizes.pop(), len(split)
    pixels = open_memmap(path.with_suffix(".npy"), mode="w+", dtype=np.uint8, shape=(count, height, width, 3))

    def decode(place: int) -> None:
        with open_picture(split.files[place]) as image:
            pixels[place] = np.asarray(image.convert("RGB"))

    with ThreadPoolExecutor(cores()) as pool:
        for _ in pool.map(decode, range(count)):
            pass
    np.save(path.with_suffix(".targets.npy"), np.array(split.targets))


def _samples(split: Split) -> Iterator[tuple[bytes, int]]:
    for picture, target in zip(split.files, split.targets, strict=True):
        assert isinstance(target, int)  # others are refused before
        yield bytes(read_encoded(picture)), target


_WRITERS: Mapping[str, Callable[[Split, Path], None]] = MappingProxyType(
    {
        "filelist": _write_list,
        "own": _write_list,
        "lmdb": _write_lmdb,
        "parquet": _write_parquet,
        "numpy": _write_numpy,
    }
)

_ENDINGS = {
    "folder": "",
    "filelist": ".txt",
    "webdataset": "-*.tar",
    "tfrecord": "-*.tfrecord",
    "recordio": "-*.rec",
    "lmdb": "",
    "parquet": "-*.parquet",
    "numpy": ".npy",
    "own": ".txt",
}

# The sources that are compared, the one that the others are measured by first.
SOURCES: Sequence[str] = tuple(_ENDINGS)
