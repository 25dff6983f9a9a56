"""Compare how fast the same images are loaded from each source.

    python tests/benchmarks/sources.py aug=imagenette data=folder data.root=DIR

The train images of DIR/train/CLASS and DIR/val/CLASS are written in the format of each source to a temporary folder (in
$TMPDIR, or /tmp), and read once before the measurement, so that the disk does not matter. `numpy` holds decoded images,
which must be of one size.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
from common import make_parser, make_setup, measure
from numpy.lib.format import open_memmap
from PIL import Image
from pyarrow import parquet
from torch.utils.data import Dataset

import augment
from augment.cli.benchmark import LeftOutError, Row, consumer
from augment.cli.compose import compose_recipe
from augment.cli.parser import readable_errors
from augment.data.dataset import Split
from augment.data.sources import load_dataset
from augment.pipeline.batch import Batch
from augment.support.process import cores
from augment.tools.convert import main as convert

PART = 4096  # images per Parquet file
CONVERTED = {"webdataset": "tar"}


class Encoded(Dataset):
    """A map-style data set of encoded images, as users write them, of a file with lines `"path" class`."""

    def __init__(self, listing: str) -> None:
        lines = [line.rpartition(" ") for line in Path(listing).read_text().splitlines()]
        self.files = [Path(path.strip('"')) for path, _, _ in lines]
        self.targets = [int(target) for _, _, target in lines]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        return self.files[index].read_bytes(), self.targets[index]


def write_list(split: Split, path: Path) -> dict[str, Any]:
    lines = [f'"{file.absolute()}" {target}\n' for file, target in zip(split.files, split.targets, strict=True)]
    path.with_suffix(".txt").write_text("".join(lines))
    return {path.name: f"{path}.txt"}


def write_lmdb(split: Split, path: Path) -> dict[str, Any]:
    size = sum(file.stat().st_size for file in split.files)
    with lmdb.open(str(path), map_size=4 * size + 2**24, sync=False) as base, base.begin(write=True) as transaction:
        for number, (file, target) in enumerate(zip(split.files, split.targets, strict=True)):
            # Fields of Caffe's Datum: 4 data, 5 label, 7 whether the data are encoded.
            data = file.read_bytes()
            datum = b"\x22" + varint(len(data)) + data + b"\x28" + varint(target) + b"\x38\x01"
            transaction.put(b"%08d" % number, datum)
    return {path.name: str(path)}


def varint(value: int) -> bytes:
    low, high = value & 127, value >> 7
    return bytes([low | 128]) + varint(high) if high else bytes([low])


def write_parquet(split: Split, path: Path) -> dict[str, Any]:
    for number, start in enumerate(range(0, len(split), PART)):
        images = [file.read_bytes() for file in split.files[start : start + PART]]
        table = pa.table({"image": images, "label": split.targets[start : start + PART]})
        parquet.write_table(table, f"{path}-{number:05}.parquet")
    return {path.name: f"{path}-*.parquet"}


def write_numpy(split: Split, path: Path) -> dict[str, Any]:
    sizes = set()
    for file in split.files:
        with Image.open(file) as image:
            sizes.add(image.size)
    if len(sizes) > 1:
        raise LeftOutError("the images have several sizes")
    ((width, height),) = sizes
    pixels = open_memmap(f"{path}.npy", mode="w+", dtype=np.uint8, shape=(len(split), height, width, 3))
    for index, file in enumerate(split.files):
        with Image.open(file) as image:
            pixels[index] = np.asarray(image.convert("RGB"))
    np.save(f"{path}-targets.npy", np.array(split.targets))
    return {path.name: f"{path}.npy", f"{path.name}_targets": f"{path}-targets.npy"}


WRITERS = {"filelist": write_list, "lmdb": write_lmdb, "parquet": write_parquet, "numpy": write_numpy}


def main() -> None:
    flags, overrides = make_parser("sources", __doc__).split(sys.argv[1:])
    setup, recipe = make_setup(flags, overrides), compose_recipe(overrides)
    dataset = load_dataset(recipe.source())
    splits = {"train": dataset.train, "val": dataset.val}

    def batches(data: str, write: Callable[[], dict[str, Any]]) -> Iterator[Batch]:
        options = {"batch_size": setup.batch_size, "device": setup.device, "threads": flags.threads}
        loader = augment.make_loader(recipe, data=data, drop_last=True, **options, **write())
        deque(loader, maxlen=0)  # reads every file once
        while True:
            yield from loader

    def written(folder: Path, data: str) -> dict[str, Any]:
        if data in CONVERTED:
            convert([*overrides, "--to", data, "--out", str(folder / data)])
            shards = {name: f"{folder}/{data}/{name}-*.{CONVERTED[data]}" for name in splits}
            return {**shards, "classes": f"{folder}/{data}/classes.txt"}
        (folder / data).mkdir(exist_ok=True)
        given = [WRITERS[data](split, folder / data / name) for name, split in splits.items()]
        return {key: value for settings in given for key, value in settings.items()}

    def own(folder: Path, **settings: Any) -> dict[str, Any]:
        lists = {f"{name}_options": {"listing": file} for name, file in written(folder, "filelist").items()}
        return {**dict.fromkeys(splits, "sources.Encoded"), **lists, **settings}  # this file, in other processes, too

    root = next(token.split("=", 1)[1] for token in overrides if token.startswith("data.root="))
    with TemporaryDirectory(prefix="sources-") as folder:
        ways: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {"folder": ("folder", lambda: {"root": root})}
        for data in ("filelist", *CONVERTED, "lmdb", "parquet", "numpy"):
            ways[data] = (data, partial(written, Path(folder), data))
        workers = min(8, cores())
        ways["own"] = ("own", partial(own, Path(folder)))
        ways[f"own, {workers} processes"] = ("own", partial(own, Path(folder), workers=workers))
        rows = [
            Row(name, name, lambda data=data, write=write: consumer(batches(data, write)), ours=name == "folder")
            for name, (data, write) in ways.items()
        ]
        measure(setup, "sources", rows, ["folder"])


if __name__ == "__main__":
    with readable_errors():
        main()
