"""The same samples written as files of every source."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoding import datum
from photos import draw_photo
from PIL import Image
from recordio_writer import write_records
from stores import write_tar
from tfrecord_writer import IMAGE, LABEL, TEXT, write_examples

from augment.data.dataset import Dataset, Split
from augment.data.sources import load_dataset, parse_data
from augment.support.errors import UserError

lmdb = pytest.importorskip("lmdb")
pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

ENDINGS = {"webdataset": "tar", "tfrecord": "tfrecord", "recordio": "rec", "lmdb": "lmdb", "parquet": "parquet",
           "filelist": "txt", "numpy": "npy"}  # fmt: skip
ALL = ("folder", *ENDINGS)

Settings = dict[str, Any]
Sample = tuple[bytes, int, str]

NAMES = ["cat", "dog", "emu"]


def write(source: str, folder: Path, name: str, samples: list[tuple[bytes, int, str]]) -> Path:
    """Write one file of a source's format; with one beside it, it makes a set of two."""
    folder.mkdir(exist_ok=True)
    if source == "webdataset":
        members = {f"{number:02}.{ending}": content for number, (image, target, _) in enumerate(samples)
                   for ending, content in (("jpg", image), ("cls", b"%d" % target))}  # fmt: skip
        return write_tar(folder / f"{name}.tar", members)
    if source == "tfrecord":
        examples = [{IMAGE: [image], LABEL: [label], TEXT: [text.encode()]} for image, label, text in samples]
        write_examples(folder / f"{name}.tfrecord", examples)
        return folder / f"{name}.tfrecord"
    if source == "recordio":
        write_records(folder / f"{name}.rec", [(image, label) for image, label, _ in samples])
        return folder / f"{name}.rec"
    if source == "lmdb":
        with lmdb.open(str(folder / name), map_size=2**22) as base, base.begin(write=True) as transaction:
            for number, (image, target, _) in enumerate(samples):
                transaction.put(b"%08d" % number, datum(image, label=target, encoded=1))
        return folder / name / "data.mdb"
    columns = {"image": [sample[0] for sample in samples], "label": [sample[1] for sample in samples]}
    parquet.write_table(pa.table(columns), folder / f"{name}.parquet")
    return folder / f"{name}.parquet"


def samples_of(split: Split) -> list[tuple[bytes, int, str]]:
    return [
        (Path(str(file)).read_bytes(), target, NAMES[target])
        for file, target in zip(split.files, split.targets, strict=True)
    ]


def jpeg(number: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(draw_photo(24, 20, number)).save(stream, "JPEG")
    return stream.getvalue()


def drawn(count: int) -> list[Sample]:
    """Return some images of three classes in turn."""
    return [(jpeg(number), number % 3, "") for number in range(count)]


def put(source: str, name: str, samples: Sequence[Sample]) -> Settings:
    """Write a split of a source into the current folder; return what its settings are."""
    if source == "folder":
        for number, (image, target, _) in enumerate(samples):
            place = Path("set", name, f"class {target}")
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{number}.jpg").write_bytes(image)
        return {"root": "set"}
    if source == "filelist":
        Path(f"{name} photos").mkdir()
        for number, (image, _, _) in enumerate(samples):
            Path(f"{name} photos", f"{number}.jpg").write_bytes(image)
        lines = (f"'{name} photos/{number}.jpg' {target}\n" for number, (_, target, _) in enumerate(samples))
        Path(f"{name}.txt").write_text("".join(lines))
        return {name: f"{name}.txt"}
    if source == "numpy":
        np.save(f"{name}.npy", np.zeros((len(samples), 8, 8, 3), np.uint8))
        np.save(f"{name}_y.npy", np.array([target for _, target, _ in samples]))
        return {name: f"{name}.npy", f"{name}_targets": f"{name}_y.npy"}
    if source == "lmdb":
        samples = [(image, target % 2**64, text) for image, target, text in samples]
        write(source, Path(), f"{name}.lmdb", list(samples))
        return {name: f"{name}.lmdb"}
    return {name: str(write(source, Path(), name, list(samples)))}


def put_both(source: str, train: Sequence[Sample], val: Sequence[Sample]) -> Settings:
    return put(source, "train", train) | put(source, "val", val)


def file_of(source: str) -> Path:
    return Path("train.lmdb/data.mdb") if source == "lmdb" else Path(f"train.{ENDINGS[source]}")


def load(source: str, settings: Settings) -> Dataset:
    return load_dataset(parse_data({"source": source, **settings}))


def said(source: str, settings: Settings) -> str:
    with pytest.raises(UserError) as caught:
        load(source, settings)
    return str(caught.value)


def name_of(source: str, number: int) -> str:
    """What an image of train is called."""
    return {
        "folder": f"{number}.jpg", "filelist": f"train photos/{number}.jpg", "numpy": f"train.npy[{number}]",
        "webdataset": f"train.tar/{number:02}.jpg", "lmdb": f"train.lmdb/{number:08}",
    }.get(source, f"train.{ENDINGS.get(source)}/{number}")  # fmt: skip
