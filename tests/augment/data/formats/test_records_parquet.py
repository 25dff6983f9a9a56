"""Parquet files like those of the Hugging Face hub, written by pyarrow."""

import json
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from augment.data.formats.parquet import read_parquet, schema_class_names
from augment.data.formats.records import Index, RecordFile, Span, _opened, build_index
from augment.data.images import read_encoded
from augment.data.sources import parse_data
from augment.support.errors import UserError

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

IMAGES = [b"image %d" % i * (i + 1) for i in range(150)]  # more than are copied at a time


def write(path: Path, columns: dict[str, Any], features: object = None) -> Path:
    table = pa.table(columns)
    if features:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    parquet.write_table(table, path, row_group_size=40)
    return path


def unpack(path: Path, label: str = "label", image: str = "image") -> Index:
    read = partial(read_parquet, image=image, label=label, destination=lambda _: path.with_suffix(".images"))
    return build_index(RecordFile.of(path), read)


def read(path: Path, found: Index) -> list[bytes]:
    file = RecordFile.of(path.with_suffix(".images"))
    return [bytes(Span(file, "", offset, length).read()) for offset, length in found.spans.tolist()]


def test_tables_and_class_names_of_the_hub(tmp_path: Path) -> None:
    rows = [{"bytes": image, "path": f"{i}.jpg"} for i, image in enumerate(IMAGES)]
    names = {"label": {"names": ["cat", "dog", "emu"], "_type": "ClassLabel"}, "image": {"_type": "Image"}}
    path = write(tmp_path / "a.parquet", {"image": rows, "label": [i % 3 for i in range(150)]}, names)
    found = unpack(path)
    assert read(path, found) == IMAGES
    assert found.labels.values.tolist() == [i % 3 for i in range(150)]
    assert schema_class_names(path, "label") == ("cat", "dog", "emu")
    names["label"]["names"] = ["dog", "cat"]
    write(tmp_path / "b.parquet", {"image": rows, "label": [0] * 150}, names)
    source = parse_data({"source": "parquet", "train": f"{tmp_path}/?.parquet", "dir": str(tmp_path)})
    with pytest.raises(UserError, match=r"^data\.train: b\.parquet has the class names dog, cat, but"):
        source.load()


LISTS = [made(pa.int8()) for made in (pa.list_, pa.large_list, pa.list_view, pa.large_list_view)]


@pytest.mark.parametrize(
    ("labels", "flat", "counts"),
    [
        (pa.array(["b", "a"]), ["b", "a"], [1, 1]),
        (pa.array(["b", "a"]).dictionary_encode(), ["b", "a"], [1, 1]),
        *((pa.array([[1, 2], []], kind), [1, 2], [2, 0]) for kind in LISTS),
    ],
)
def test_plain_bytes_and_several_kinds_of_labels(
    labels: Any, flat: list[object], counts: list[int], tmp_path: Path
) -> None:
    path = write(tmp_path / "a.parquet", {"image": pa.array([b"1", b"22"], pa.large_binary()), "label": labels})
    found = unpack(path)
    assert read(path, found) == [b"1", b"22"]
    assert list(chain.from_iterable(found.labels.lists())) == flat
    assert found.labels.counts.tolist() == counts
    assert schema_class_names(path, "label") is None


@pytest.mark.parametrize("path_kind", [pa.string(), pa.large_string(), pa.null()])
def test_images_of_the_hub_may_lack_a_path(path_kind: Any, tmp_path: Path) -> None:
    rows = [{"bytes": image, "path": None} for image in IMAGES[:2]]
    kind = pa.struct([("bytes", pa.large_binary()), ("path", path_kind)])
    path = write(tmp_path / "a.parquet", {"image": pa.array(rows, kind), "label": [0, 1]})
    assert read(path, unpack(path)) == IMAGES[:2]


@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(b""), Path.unlink])
def test_deleted_unpacked_images_are_unpacked_again(
    damage: Callable[[Path], object], photos: tuple[Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.parquet", {"image": [photos[0].read_bytes()], "label": [0]})
    given = {"source": "parquet", "train": "a.parquet", "val": "a.parquet"}
    parse_data(given).load()
    (unpacked,) = Path("outputs/data/parquet").glob("*.images")
    damage(unpacked)
    _opened.cache_clear()  # as in another process
    (image,) = parse_data(given).load().train.files
    assert read_encoded(image) == photos[0].read_bytes()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"image": ["text"], "label": [0]}, "row 0 has 'text' in column 'image' (data.image). Allowed: bytes, or"),
        ({"image": [b"1"], "label": [b"0"]}, "record 0 has the label b'0'. Use numbers, names,"),
        ({"image": [b"1", b"2"], "label": [0, None]}, "row 1 has no value in column 'label'"),
        (
            {"image": [{"bytes": b"1", "path": ""}, {"bytes": None, "path": "a.jpg"}], "label": [0, 0]},
            "row 1 has {'bytes': None, 'path': 'a.jpg'} in column 'image' (data.image). Allowed: bytes, or a struct",
        ),
    ],
)
def test_wrong_columns_and_empty_rows_are_named(columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", columns)
    with pytest.raises(UserError) as caught:
        unpack(path)
    assert message in str(caught.value)
    assert not list(tmp_path.glob(".*.part"))


@pytest.mark.parametrize(("image", "rows"), [(bytes(2**23), 100), pytest.param(b"", 1_000_000, marks=pytest.mark.long)])
def test_small_files_that_repeat_a_value_without_end_are_rejected(image: bytes, rows: int, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([image], pa.binary()))
    table = pa.table({"image": repeated, "label": pa.array([0] * rows)})
    parquet.write_table(table, path, compression="zstd", write_statistics=False, dictionary_pagesize_limit=2**30)
    with pytest.raises(UserError, match="which is too much for its size"):
        unpack(path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("written", "names"), [("[" * 100_000, None), ('["a", 1]', ("a", "1"))])
def test_class_names_of_the_hub_may_be_malformed(written: str, names: object, tmp_path: Path) -> None:
    table = pa.table({"image": [b"1"], "label": [0]})
    features = f'{{"info": {{"features": {{"label": {{"_type": "ClassLabel", "names": {written}}}}}}}}}'
    parquet.write_table(table.replace_schema_metadata({"huggingface": features}), tmp_path / "a.parquet")
    assert schema_class_names(tmp_path / "a.parquet", "label") == names


@pytest.mark.parametrize(
    ("value", "kind"),
    [(False, pa.list_(pa.bool_())), (None, pa.list_(pa.null())), *((0, kind) for kind in LISTS)],
)
def test_a_few_bytes_do_not_become_many_labels(value: int | None, kind: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"image": IMAGES[:1], "label": pa.array([[value] * 700_000], kind)})
    with pytest.raises(UserError, match="unpacks to more than 67,108,864 bytes"):
        unpack(path)


@pytest.mark.parametrize("column", ["image", "label"])
def test_columns_of_structs_are_not_read(column: str, tmp_path: Path) -> None:
    columns = {"image": IMAGES[:1], "label": [0], column: [{"a": 1, "b": 2}]}
    with pytest.raises(UserError, match=rf"column '{column}' \(data\.{column}\) has the type struct.*Allowed: "):
        unpack(write(tmp_path / "a.parquet", columns))


def test_other_fields_of_images_are_not_read(tmp_path: Path) -> None:
    rows = [{"bytes": IMAGES[0], "more": [0] * 700_000}]
    path = write(tmp_path / "a.parquet", {"image": rows, "label": [0]})
    assert read(path, unpack(path)) == IMAGES[:1]
