"""The same pictures through all sources of records and the real loader, and how they break."""

import logging
import os
import pickle
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from stores import FIXED
from test_records_lmdb import datum

from augment.dataset import Dataset, Split
from augment.errors import UserError
from augment.loader import Loader
from augment.pipeline import Shard
from augment.records.recordio import write_records
from augment.records.tfrecord import Features, write_examples
from augment.sources import parse_data
from augment.stored import read_encoded

lmdb = pytest.importorskip("lmdb")
pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

NAMES = ["cat", "dog", "emu"]
ENDINGS = {"tfrecord": "*.tfrecord", "recordio": "*.rec", "lmdb": "*", "parquet": "*.parquet"}
SOURCES = tuple(ENDINGS)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(source: str, folder: Path, name: str, samples: list[tuple[bytes, int, str]]) -> Path:
    """Write one file of a source's format; with one beside it, it makes a set of two."""
    folder.mkdir(exist_ok=True)
    if source == "tfrecord":
        examples = [(picture, Features([label], [text])) for picture, label, text in samples]
        write_examples(folder / f"{name}.tfrecord", examples)
        return folder / f"{name}.tfrecord"
    if source == "recordio":
        write_records(folder / f"{name}.rec", [(picture, label) for picture, label, _ in samples])
        return folder / f"{name}.rec"
    if source == "lmdb":
        with lmdb.open(str(folder / name), map_size=2**22) as base, base.begin(write=True) as transaction:
            for number, (picture, target, _) in enumerate(samples):
                transaction.put(b"%08d" % number, datum(picture, label=target, encoded=1))
        return folder / name / "data.mdb"
    columns = {"image": [sample[0] for sample in samples], "label": [sample[1] for sample in samples]}
    parquet.write_table(pa.table(columns), folder / f"{name}.parquet")
    return folder / f"{name}.parquet"


def samples_of(split: Split) -> list[tuple[bytes, int, str]]:
    return [
        (Path(str(file)).read_bytes(), target, NAMES[target])
        for file, target in zip(split.files, split.targets, strict=True)
    ]


def load(source: str, pattern: str | Path, **settings: object) -> Dataset:
    return parse_data({"source": source, "train": str(pattern), "val": str(pattern), **settings}).load()


def two_files(source: str, folder: Path, pictures: Split) -> str:
    samples = samples_of(pictures)
    write(source, folder, "train-0", samples[:4])
    write(source, folder, "train-1", samples[4:])
    return str(folder / f"train-{ENDINGS[source]}")


def epoch(split: Split, rank: int = 0, world_size: int = 1) -> Counter[tuple[int, bytes]]:
    loader = Loader(FIXED, split, batch_size=2, seed=3, device=torch.device("cpu"), raw=True,
                    shard=Shard(rank, world_size))  # fmt: skip
    return Counter(
        (target, pixels.numpy().tobytes())
        for batch in loader
        for target, pixels in zip(batch.targets.tolist(), batch.images, strict=True)
    )


@pytest.mark.parametrize("source", SOURCES)
def test_an_epoch_has_the_same_pixels_and_targets_as_of_files(source: str, pictures: Split, tmp_path: Path) -> None:
    split = load(source, two_files(source, tmp_path / source, pictures)).train
    assert epoch(split) == epoch(pictures)
    assert epoch(split, 0, 2) + epoch(split, 1, 2) == epoch(pictures)
    assert len({file.name for file in split.files}) == 7
    assert pickle.loads(pickle.dumps(split)) == split
    assert len(set(split.files)) == 7


@pytest.mark.parametrize("source", SOURCES)
def test_files_are_indexed_anew_when_they_change_only(
    source: str, pictures: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern = two_files(source, tmp_path / source, pictures)
    first = load(source, pattern)
    with monkeypatch.context() as patch:
        refuse = Mock(side_effect=AssertionError)
        patch.setattr("augment.records.checked.require_readable", refuse)
        for build in ("index_examples", "index_records", "index_datums", "unpack_table"):
            patch.setattr(f"augment.sources.records.{build}", refuse)
        assert load(source, pattern) == first
    samples = samples_of(pictures)
    if source == "lmdb":
        (tmp_path / source / "train-1" / "data.mdb").unlink()
    path = write(source, tmp_path / source, "train-1", samples[:1])
    os.utime(path, ns=(1, 1))
    again = load(source, pattern)
    assert epoch(again.train) == epoch(Split(pictures.files[:4] + pictures.files[:1], (2, 0, 1, 1, 2)))


def test_an_edited_listing_counts(pictures: Split, tmp_path: Path) -> None:
    path = write("recordio", tmp_path / "set", "train", samples_of(pictures))
    listing = path.with_suffix(".idx")
    first = load("recordio", path).train
    lines = listing.read_text().splitlines()
    listing.write_text("\n".join(lines[2::-1]))
    assert load("recordio", path).train.targets == first.targets[2::-1]
    listing.unlink()
    assert load("recordio", path).train == first


def test_pixels_in_a_database_are_the_pixels_of_the_pictures(photos: tuple[Path, ...], tmp_path: Path) -> None:
    targets = (0, 1, 2, 0, 1, 2)
    with lmdb.open(str(tmp_path / "base"), map_size=2**22) as base, base.begin(write=True) as transaction:
        for number, (photo, target) in enumerate(zip(photos, targets, strict=True)):
            planes = np.asarray(Image.open(photo))[..., ::-1].transpose(2, 0, 1)
            value = datum(planes.tobytes(), channels=3, height=64, width=64, label=target)
            transaction.put(b"%08d" % number, value)
    assert epoch(load("lmdb", tmp_path / "base").train) == epoch(Split(photos, targets))


@pytest.mark.parametrize("source", ["tfrecord", "recordio"])
def test_a_file_that_changes_while_it_is_read_is_an_error(source: str, pictures: Split, tmp_path: Path) -> None:
    path = write(source, tmp_path / source, "train", samples_of(pictures))
    file = load(source, path).train.files[0]
    with path.open("r+b") as stream:
        stream.truncate(10)
    with pytest.raises(OSError, match="it has changed since it was indexed"):
        read_encoded(file)


@pytest.mark.parametrize("source", SOURCES)
def test_a_missing_file_is_named_before_anything_is_indexed(source: str, pictures: Split, tmp_path: Path) -> None:
    path = write(source, tmp_path / source, "train", samples_of(pictures))
    with pytest.raises(UserError, match=r"data.val=.*vall"):
        parse_data({"source": source, "train": str(path), "val": str(tmp_path / "vall")}).load()
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("source", SOURCES)
def test_a_picture_that_cannot_be_decoded_is_named_or_left_out(source: str, pictures: Split, tmp_path: Path) -> None:
    samples = [*samples_of(pictures), (b"no picture", 0, "cat")]
    path = write(source, tmp_path / source, "train", samples)
    with pytest.raises(
        UserError, match=r"1 of 8 train pictures cannot be used:\n  .*7 is no picture that DALI decodes"
    ):
        load(source, path)
    assert epoch(load(source, path, skip_bad=True).train) == epoch(pictures)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("labels", "settings", "message"),
    [
        ([0, -1, 1], {}, "has the label -1, which is out of range. Allowed: 0 to 1, as the highest in train is 1."),
        (
            [0, 1, 2],
            {"classes": "two.txt"},
            "label 2, which is out of range. Allowed: 0 to 1, as 2 classes have names.",
        ),
        (
            [1, 2, 2],
            {"classes": "two.txt"},
            "2 classes have names. Do labels begin at 1? Then set data.label_offset=1.",
        ),
        (
            [0, 1, 1],
            {"label_offset": 1},
            "label 0, which is out of range. Allowed: 1 to 1, as the highest in train is 1",
        ),
        ([0, 1, 2**30], {}, "has the label 1073741824, which is no number of a class"),
    ],
)
def test_a_label_out_of_range_is_named(
    source: str, labels: list[int], settings: dict[str, Any], message: str, pictures: Split, tmp_path: Path
) -> None:
    (tmp_path / "two.txt").write_text("a\nb\n")
    samples = [(picture, label, "") for (picture, _, _), label in zip(samples_of(pictures), labels, strict=False)]
    path = write_labels(source, tmp_path / source, samples)
    with pytest.raises(UserError) as caught:
        load(source, path, **settings)
    assert message in str(caught.value)
    assert str(caught.value).startswith("data")


def write_labels(source: str, folder: Path, samples: list[tuple[bytes, int, str]]) -> Path:
    """As `write`, of labels that the varints of a test's Datum cannot have too."""
    if source == "lmdb":
        samples = [(picture, label % 2**64, name) for picture, label, name in samples]
    return write(source, folder, "train", samples)


def test_labels_that_begin_at_one(pictures: Split, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    samples = [(picture, target + 1, "") for picture, target, _ in samples_of(pictures)]
    path = write("tfrecord", tmp_path / "set", "train", samples)
    dataset = load("tfrecord", path, label_offset=1)
    assert dataset.classes == ("1", "2", "3")
    assert dataset.train.targets == pictures.targets
    assert not [record for record in caplog.records if record.name == "augment.targets.classes"]
    with caplog.at_level(logging.WARNING):
        assert load("tfrecord", path).train.targets == tuple(target + 1 for target in pictures.targets)
    assert (
        "1 of 4 classes have no picture in train: 0. Do labels begin at 1? Then set data.label_offset=1." in caplog.text
    )


def test_classes_by_name(pictures: Split, tmp_path: Path) -> None:
    path = two_files("tfrecord", tmp_path / "set", pictures)  # of which the second one lacks a name
    dataset = load("tfrecord", path, label="image/class/text")
    assert dataset.classes == ("cat", "dog", "emu")
    assert dataset.train.targets == pictures.targets
    (tmp_path / "names.txt").write_text("emu\ndogs\ncat\n")
    with pytest.raises(UserError, match=r"has the label 'dog', which is unknown. Did you mean 'dogs'\?"):
        load("tfrecord", path, label="image/class/text", classes="names.txt")


def test_a_class_that_val_lacks_is_said_and_no_shared_class_is_an_error(
    pictures: Split, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    samples = samples_of(pictures)
    train = write("recordio", tmp_path / "set", "train", samples)
    val = write("recordio", tmp_path / "set", "val", [sample for sample in samples if sample[1] == 1])
    alone = write("recordio", tmp_path / "set", "alone", [sample for sample in samples if sample[1] == 0])
    parse_data({"source": "recordio", "train": str(train), "val": str(val)}).load()
    assert "2 of 3 classes have no picture in val: 0, 2." in caplog.text
    with pytest.raises(UserError, match="no class of val is in train; train has 1, val 0"):
        parse_data({"source": "recordio", "train": str(val), "val": str(alone)}).load()
    with pytest.raises(UserError, match=r"data.val: train.rec/0 has the label 2, which is out of range"):
        parse_data({"source": "recordio", "train": str(val), "val": str(train)}).load()


def test_names_and_numbers_in_one_set_are_refused(pictures: Split, tmp_path: Path) -> None:
    images = [sample[0] for sample in samples_of(pictures)]
    for name, label in (("a", 1), ("b", "cat")):
        parquet.write_table(pa.table({"image": images, "label": [label] * 7}), tmp_path / f"{name}.parquet")
    with pytest.raises(
        UserError, match=r"^data.train: a.parquet/0 has the label 1, and b.parquet/0 has the label 'cat'"
    ):
        load("parquet", tmp_path / "*.parquet")
    with pytest.raises(UserError, match=r"^data: a.parquet/0 has the label 1, and b.parquet/0 has the label 'cat'"):
        parse_data({"source": "parquet", "train": "a.parquet", "val": "b.parquet"}).load()


def test_several_labels_in_a_feature(pictures: Split, tmp_path: Path) -> None:
    """The loader hands them over as ones and zeros."""
    from test_records_tfrecord import bytes_feature, entry, example, framed, packed

    labels, hot = [b"\0\2", b"", b"\1"], {(1.0, 0.0, 1.0), (0.0, 0.0, 0.0), (0.0, 1.0, 0.0)}
    (tmp_path / "a.tfrecord").write_bytes(b"".join(
        framed(example(entry("image", bytes_feature(picture)), entry("label", packed(some))))
        for (picture, _, _), some in zip(samples_of(pictures), labels, strict=False)
    ))  # fmt: skip
    dataset = load("tfrecord", "a.tfrecord", image="image", label="label")
    assert (dataset.task, dataset.classes) == ("multilabel", ("0", "1", "2"))
    assert dataset.train.targets == ((1.0, 0.0, 1.0), (0.0, 0.0, 0.0), (0.0, 1.0, 0.0))
    loader = Loader(FIXED, dataset.val, batch_size=3, seed=3, device=torch.device("cpu"), raw=True)
    (batch,) = loader
    assert batch.targets.dtype == torch.float32
    assert {tuple(row) for row in batch.targets.tolist()} == hot


def test_lists_in_a_column(pictures: Split, tmp_path: Path) -> None:
    def table(*labels: list[str]) -> str:
        images = [sample[0] for sample in samples_of(pictures)[: len(labels)]]
        column = pa.array(labels, pa.list_(pa.string()))
        parquet.write_table(pa.table({"image": images, "label": column}), tmp_path / "a.parquet")
        return "a.parquet"

    assert load("parquet", table(["b", "a"], ["b"])).train.targets == ((1.0, 1.0), (0.0, 1.0))
    with pytest.raises(UserError, match=r"^data.train: a.parquet/0 has no label \(2 pictures have none or several\)"):
        load("parquet", table([], ["b"], []))
    assert load("parquet", table([], ["b"]), multilabel=True).train.targets == ((0.0,), (1.0,))


def test_a_label_that_is_no_whole_number_is_named(tmp_path: Path) -> None:
    from test_records_recordio import header, part

    (tmp_path / "a.rec").write_bytes(part(0, header(0, 1.0) + b"x") + part(0, header(0, 0.5) + b"y"))
    message = r"a.rec/1 has the label 0.5. Allowed: whole numbers. Numbers to predict need data.task=regress.$"
    with pytest.raises(UserError, match=message):
        load("recordio", "a.rec")


def test_a_damaged_index_is_made_anew(pictures: Split, tmp_path: Path) -> None:
    path = write("tfrecord", tmp_path / "set", "train", samples_of(pictures))
    first = load("tfrecord", path)
    (index,) = (tmp_path / "outputs/data/index").glob("*.npz")
    for damaged in (b"", b"PK\x03\x04", index.read_bytes()[:200], np.arange(3).tobytes()):
        index.write_bytes(damaged)
        assert load("tfrecord", path) == first
