"""Parquet files as the Hugging Face hub has them, written here by pyarrow."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from augment.errors import UserError
from augment.records.index import Index
from augment.records.parquet import class_names, is_kept, unpack_table
from augment.records.spans import RecordFile, Span

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

PICTURES = [b"picture %d" % i * (i + 1) for i in range(150)]  # more than are copied at a time


def write(path: Path, columns: dict[str, Any], features: object = None) -> Path:
    table = pa.table(columns)
    if features:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    parquet.write_table(table, path, row_group_size=40)
    return path


def unpack(path: Path, label: str = "label", image: str = "image") -> Index:
    return unpack_table(
        RecordFile.of(path), lambda _: None, image=image, label=label, place=lambda _: path.with_suffix(".pictures")
    )


def read(path: Path, found: Index) -> list[bytes]:
    file = RecordFile.of(path.with_suffix(".pictures"))
    return [bytes(Span(file, "", offset, length).read()) for offset, length in found.spans.tolist()]


def test_the_hubs_form_with_its_names(tmp_path: Path) -> None:
    rows = [{"bytes": picture, "path": f"{i}.jpg"} for i, picture in enumerate(PICTURES)]
    names = {"label": {"names": ["cat", "dog", "emu"], "_type": "ClassLabel"}, "image": {"_type": "Image"}}
    path = write(tmp_path / "a.parquet", {"image": rows, "label": [i % 3 for i in range(150)]}, names)
    found = unpack(path)
    assert read(path, found) == PICTURES
    assert found.labels.tolist() == [i % 3 for i in range(150)]
    assert class_names(found) == ("cat", "dog", "emu")


def test_a_second_copy_of_the_same_file_is_no_change(tmp_path: Path) -> None:
    """Two processes may copy at once."""
    path = write(tmp_path / "a.parquet", {"image": PICTURES, "label": [0] * 150})
    os.utime(path, (1e9, 1e9))
    unpack(path)
    first = RecordFile.of(path.with_suffix(".pictures"))
    unpack(path)
    assert RecordFile.of(path.with_suffix(".pictures")) == first
    os.utime(path, (2e9, 2e9))
    unpack(path)
    assert RecordFile.of(path.with_suffix(".pictures")) != first


@pytest.mark.parametrize(
    ("labels", "flat", "counts"),
    [
        (pa.array(["b", "a"]), ["b", "a"], [1, 1]),
        (pa.array(["b", "a"]).dictionary_encode(), ["b", "a"], [1, 1]),
        (pa.array([[1, 2], []], pa.list_(pa.int8())), [1, 2], [2, 0]),
    ],
)
def test_plain_bytes_and_several_kinds_of_labels(
    labels: Any, flat: list[object], counts: list[int], tmp_path: Path
) -> None:
    path = write(tmp_path / "a.parquet", {"image": pa.array([b"1", b"22"], pa.large_binary()), "label": labels})
    found = unpack(path)
    assert read(path, found) == [b"1", b"22"]
    assert found.values().tolist() == flat
    assert found.counts.tolist() == counts
    assert class_names(found) is None


def test_pictures_that_are_gone_are_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"image": [b"1"], "label": [0]})
    found, place = unpack(path), path.with_suffix(".pictures")
    assert is_kept(found, place)
    place.write_bytes(b"")
    assert not is_kept(found, place)
    place.unlink()
    assert not is_kept(found, place)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"img": [b"1"], "label": [0]},
            "there is no column 'image' (data.image). Did you mean 'img'. Allowed: img, label.",
        ),
        (
            {"image": [b"1"], "labels": [0]},
            "there is no column 'label' (data.label). Did you mean 'labels'. Allowed: image, labels",
        ),
        (
            {"image": ["text"], "label": [0]},
            "column 'image' (data.image) holds string; allowed: binary, or a struct with bytes",
        ),
        (
            {"image": [b"1"], "label": [b"0"]},
            "column 'label' (data.label) holds binary; allowed: numbers, text, or lists of these.",
        ),
        ({"image": [b"1", b"2"], "label": [0, None]}, "row 1 has no label in column 'label'"),
        (
            {"image": [{"bytes": b"1", "path": ""}, {"bytes": None, "path": "a.jpg"}], "label": [0, 0]},
            "row 1 has no picture in column 'image', only its path, a.jpg",
        ),
    ],
)
def test_wrong_columns_and_empty_rows_are_named(columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", columns)
    with pytest.raises(UserError) as caught:
        unpack(path)
    assert message.replace("'. A", "'? A") in str(caught.value)
    assert not list(tmp_path.glob(".*.part"))


@pytest.mark.parametrize("damage", [lambda data: data[:-100], lambda data: b"PAR1" + data[5:-1], lambda _: b"tiny"])
def test_damage_is_named(damage: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"image": PICTURES, "label": [0] * 150})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=r"is no parquet file that can be read|cannot be read"):
        unpack(path)
