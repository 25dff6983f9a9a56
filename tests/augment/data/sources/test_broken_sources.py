"""Broken data in every source: error messages, and no silent training on it."""

import re
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from files_of_sources import ALL, ENDINGS, Sample, Settings, file_of, load, name_of, put_both, said

from augment.data.formats.records import RecordFile

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.usefixtures("own_folder")

SHARDS = ("webdataset", "tfrecord", "recordio", "lmdb", "parquet")  # whose images lie in larger files

CUT = r"is truncated: it ends at byte [\d,]+, within record"
DAMAGED = r"is damaged after record 5, at byte [\d,]+"

# The whole file -> a damaged one, and what is said of it, by source.
Damage = tuple[Callable[[bytes], bytes], str]
ALIKE: dict[str, Damage] = {
    "empty": (lambda _: b"", r"((is empty \(0|file size is 0) bytes|cannot be read as an LMDB database)"),
    "text": (
        lambda _: b"no such file\n" * 100,
        "(is not an? .*compressed|is compressed, or not an? |cannot be read as an? )",
    ),
}
DAMAGES: dict[str, dict[str, Damage]] = {
    "tfrecord": {
        "in a header": (lambda data: data[:7], "is truncated: it ends at byte 7, within record 0"),
        "in a record": (lambda data: data[: len(data) // 2 + 40], CUT),
        "in the last record": (lambda data: data[:-1], f"{CUT} 5"),
        "a checksum": (lambda data: flip(data, len(data) // 2 + 40), "record [23], at .*: its checksum differs"),
        "a length": (lambda data: flip(data, 3), "or not a TFRecord file"),
        "zeros": (lambda data: data + bytes(100), DAMAGED),
    },
    "recordio": {
        "in a header": (lambda data: data[:6], "is truncated: it ends at byte 6, within record 0"),
        "in a record": (lambda data: data[: len(data) // 2 + 40], CUT),
        "in the last record": (lambda data: data[:-1], f"{CUT} 5"),
        "zeros": (lambda data: data + bytes(100), DAMAGED),
    },
    "webdataset": {
        "in a header": (lambda data: data[:100], r"uncompressed tar file, or is truncated \(truncated header\)"),
        "in a record": (lambda data: data[:600], r"uncompressed tar file, or is truncated \(unexpected end"),
        "between records": (lambda data: data[: data.index(b"02.jpg")], "or damaged: neither .* follows 01.cls"),
    },
    "lmdb": {
        "in a header": (lambda data: data[:100], "cannot be read as an LMDB database: MDB_INVALID"),
        "in a record": (lambda data: data[:10_000], "an LMDB database: .*truncated to 10,000 of "),
        "in the last record": (lambda data: data[:-1], r"an LMDB database: .*truncated to [\d,]+ of"),
    },
    "parquet": {
        "in a record": (lambda data: data[: len(data) // 2], "cannot be read as a parquet file: .*magic bytes"),
    },
}  # fmt: skip


def flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize(
    ("source", "case"), [(source, case) for source in SHARDS for case in (*ALIKE, *DAMAGES[source])]
)
def test_a_damaged_file_is_named_with_its_position(source: str, case: str, samples: list[Sample]) -> None:
    settings = put_both(source, samples, samples[:3])
    damage, message = (ALIKE | DAMAGES[source])[case]
    file = file_of(source)
    file.write_bytes(damage(file.read_bytes()))
    assert re.match(rf"data\.train: {file}: .*{message}", said(source, settings))


def test_a_file_that_may_not_be_read_is_named(samples: list[Sample], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = put_both("parquet", samples, samples[:3])
    monkeypatch.setattr(RecordFile, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
    assert said("parquet", settings) == f"data.train: {settings['train']} cannot be read: Permission denied."


@pytest.mark.parametrize("source", ALL)
def test_missing_files_are_answered_with_suggestions(source: str, samples: list[Sample]) -> None:
    settings = put_both(source, samples, samples[:3])
    key = "root" if source == "folder" else "train"
    meant = settings[key]
    wrong = meant[0] + meant[2] + meant[1] + meant[3:]  # "trian", "ste"
    message = said(source, settings | {key: wrong})
    assert message.startswith(f"data.{key}")
    assert f"Did you mean {meant}?" in message
    if source not in ("folder", "lmdb"):  # a database is a folder
        assert f"Did you mean {meant}?" in said(source, settings | {"train": wrong.replace(".", "-*.")})


@pytest.mark.parametrize("source", ENDINGS)
@pytest.mark.parametrize("label", [7, -1])
def test_a_label_out_of_range_is_named(source: str, label: int, samples: list[Sample]) -> None:
    settings = put_both(source, [*samples[:5], (samples[5][0], label, "")], samples[:3])
    Path("three.txt").write_text("a\nb\nc\n")
    allowed = "Allowed: 0 to 2, because 3 classes have names"
    message = said(source, settings | {"classes": "three.txt"})
    assert message.startswith("data.train: ")
    assert f"{name_of(source, 5)} has the label {label}, which is out of range. {allowed}" in message


@pytest.mark.parametrize(
    ("whole", "written", "noted"),
    [
        ("5.jpg' 2$", "5.jpg' 1.5", "so the task is regression, but only 1 of 9 has"),
        # As pandas writes a column with empty cells.
        (r"(\d)$", r"\1.0", "so the task is regression, but only 0 of 9 have"),
    ],
)
def test_numbers_with_a_point_that_may_be_classes_are_reported(
    whole: str, written: str, noted: str, samples: list[Sample], caplog: pytest.LogCaptureFixture
) -> None:
    settings = put_both("filelist", samples, samples[:3])
    for file in (Path(settings["train"]), Path(settings["val"])):
        file.write_text(re.sub(whole, written, file.read_text(), flags=re.MULTILINE))
    assert load("filelist", settings).task == "regress"
    assert noted in caplog.text


@pytest.mark.parametrize("source", ALL)
def test_a_class_that_train_lacks_is_rejected(source: str, samples: list[Sample]) -> None:
    message = said(source, put_both(source, [samples[0], samples[1]], samples[:3]))
    if source == "folder":
        assert message == (
            "data.root=set: class 2 in set/val is a class without training images. Did you mean 'class 1' instead of "
            "'class 2'? Add training images to set/train, or rename or remove the folder."
        )
    else:
        assert message.startswith("data.val: ")
        assert (
            "has the label 2, which is out of range. Allowed: 0 to 1, because the highest label in train is 1"
            in message
        )


@pytest.mark.parametrize(
    ("source", "setting", "message"),
    [
        ("tfrecord", {"image": "image/encode"}, "record 0 has no feature 'image/encode' (data.image). Did you mean "
         "'image/encoded'? Allowed: image/class/label, image/class/text, image/encoded."),
        ("tfrecord", {"label": "image/class/lable"}, "has no feature 'image/class/lable' (data.label). Did you"),
        ("parquet", {"image": "imge"}, "cannot find column 'imge' (data.image). Did you mean 'image'? Allowed: image"),
        ("parquet", {"label": "lable"}, "cannot find column 'lable' (data.label). Did you mean 'label'?"),
        ("webdataset", {"label": "class"}, "cannot find 00.class, only 00.cls. Set data.label to cls, another "
         "extension or json.FIELD"),
    ],
)  # fmt: skip
def test_a_wrong_name_of_a_field_is_answered_with_the_nearest(
    source: str, setting: Settings, message: str, samples: list[Sample]
) -> None:
    given = said(source, put_both(source, samples, samples[:3]) | setting)
    assert given.startswith("data.train: ")
    assert message in given


@pytest.mark.parametrize("source", [source for source in ALL if source != "numpy"])
def test_images_in_both_splits_are_reported(
    source: str, samples: list[Sample], caplog: pytest.LogCaptureFixture
) -> None:
    settings = put_both(source, samples, samples[:3])
    if source == "folder":
        Path("set/val").rename("old")
        Path("set/val").symlink_to(Path("set/train").resolve())
    else:
        Path("link").symlink_to(settings["train"])  # by another name, but not of a list
        settings["val"] = settings["train"] if source == "filelist" else "link"
    load(source, settings)
    assert re.search(r"(\d) of \1 val images are copies of train images, such as ", caplog.text)
