"""Write the same images in the format of every source."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.lib.format import open_memmap
from pyarrow import parquet

from augment.data.convert.conversion import Options, convert
from augment.data.convert.lists import CLASSES_FILE
from augment.data.convert.writers import FORMATS
from augment.data.dataset import Dataset, Split
from augment.data.formats.protobuf import VARINT, field, varint
from augment.data.images import open_image, read_encoded
from augment.data.sources import parse_data
from augment.support.background import in_threads
from augment.support.errors import UserError
from augment.support.timing import cores

_PART = 4096  # images per Parquet file
_BATCH = 256  # images per LMDB transaction


def load_as(source: str, dataset: Dataset, folder: Path, jobs: int, **further: Any) -> Dataset:
    """Write the train images of a classification data set in the format of a source, and load them from there.

    Args:
        source: name of the source, one of `SOURCES`.
        dataset: the data set; of val, one image of each class is written.
        folder: folder to write to, which must not exist.
        jobs: number of processes, where several can be used.
        further: further settings of the source.

    Raises:
        UserError: the images cannot be written in this format.
    """
    # Val is not read, so one image of each class is enough.
    some = {target: image for image, target in zip(dataset.val.files, dataset.val.targets, strict=True)}
    splits = {"train": dataset.train, "val": Split(tuple(some.values()), tuple(some))}
    folder.mkdir(parents=True)
    if source in FORMATS:
        convert(replace(dataset, val=splits["val"]), folder, Options(source), jobs=jobs)
    else:
        (folder / CLASSES_FILE).write_text("".join(f"{name}\n" for name in dataset.classes))
        for name, split in splits.items():
            _WRITERS[source](split, folder / name)
    files = {name: f"{folder}/{name}{_ENDINGS[source]}" for name in splits}
    settings: dict[str, Any] = {"classes": str(folder / CLASSES_FILE), **files}
    if source == "folder":
        settings = {"root": str(folder)}
    elif source == "own":
        settings = dict.fromkeys(splits, f"{__name__}.Encoded")
        settings |= {f"{name}_options": {"listing": file} for name, file in files.items()}
    elif source == "numpy":
        settings |= {f"{name}_targets": f"{folder}/{name}.targets.npy" for name in splits}
    elif source in ("tfrecord", "recordio", "lmdb", "parquet"):
        settings["dir"] = str(folder / "index")
    # Skip validation: the images are valid already.
    loaded = parse_data({"source": source, **settings, **further}).load()
    assert len(loaded.train) == len(dataset.train)
    return loaded


class Encoded:
    """A map-style data set of encoded images, as users write them.

    Args:
        listing: file with lines `"path" class`.
    """

    def __init__(self, listing: str) -> None:
        lines = [line.rpartition(" ") for line in Path(listing).read_text().splitlines()]
        self._files = [path.strip('"') for path, _, _ in lines]
        self.targets = [int(target) for _, _, target in lines]

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        return Path(self._files[index]).read_bytes(), self.targets[index]


def _write_list(split: Split, path: Path) -> None:
    lines = []
    for image, target in zip(split.files, split.targets, strict=True):
        if not isinstance(image, Path):
            raise UserError("the images are not separate files")
        lines.append(f'"{image.absolute()}" {target}\n')
    path.with_suffix(".txt").write_text("".join(lines))


def _write_lmdb(split: Split, path: Path) -> None:
    import lmdb

    size = sum(len(read_encoded(image)) for image in split.files)
    with lmdb.open(str(path), map_size=4 * size + 2**24, sync=False) as base:
        samples = enumerate(_samples(split))
        while batch := list(islice(samples, _BATCH)):
            with base.begin(write=True) as transaction:
                for number, (image, target) in batch:
                    # Fields of Caffe's Datum: 4 data, 5 label, 7 whether the data are encoded.
                    label, encoded = varint(5 << 3 | VARINT) + varint(target), varint(7 << 3 | VARINT) + varint(1)
                    transaction.put(b"%08d" % number, field(4, image) + label + encoded)


def _write_parquet(split: Split, path: Path) -> None:
    samples = list(_samples(split))
    for number, start in enumerate(range(0, len(samples), _PART)):
        part = samples[start : start + _PART]
        table = pa.table({"image": [image for image, _ in part], "label": [target for _, target in part]})
        parquet.write_table(table, f"{path}-{number:05}.parquet")


def _write_numpy(split: Split, path: Path) -> None:
    sizes = set()
    for file in split.files:  # before decoding, which is slow
        with open_image(file) as image:
            sizes.add(image.size)
        if len(sizes) > 1:
            raise UserError("the images have several sizes")
    (width, height), count = sizes.pop(), len(split)
    pixels = open_memmap(path.with_suffix(".npy"), mode="w+", dtype=np.uint8, shape=(count, height, width, 3))

    def decode(index: int) -> None:
        with open_image(split.files[index]) as image:
            pixels[index] = np.asarray(image.convert("RGB"))

    with in_threads(decode, range(count), cores()) as decoded:
        for _ in decoded:
            pass
    np.save(path.with_suffix(".targets.npy"), np.array(split.targets))


def _samples(split: Split) -> Iterator[tuple[bytes, int]]:
    for image, target in zip(split.files, split.targets, strict=True):
        assert isinstance(target, int)  # other tasks have been refused
        yield bytes(read_encoded(image)), target


_WRITERS: Mapping[str, Callable[[Split, Path], None]] = {
    "filelist": _write_list,
    "own": _write_list,
    "lmdb": _write_lmdb,
    "parquet": _write_parquet,
    "numpy": _write_numpy,
}

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

# The sources that are compared, the baseline first.
SOURCES: Sequence[str] = tuple(_ENDINGS)
