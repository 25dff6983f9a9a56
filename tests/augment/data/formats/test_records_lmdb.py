"""Caffe's LMDB: databases that are built here by the specification; DALI reads them, too."""

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from encoding import datum
from nvidia.dali import fn, pipeline_def

from augment.data.formats.protobuf_records import DatumImage, read_datums
from augment.data.formats.records import Index, RecordFile, build_index
from augment.support.errors import UserError

lmdb = pytest.importorskip("lmdb")


def write(folder: Path, records: Mapping[bytes, bytes]) -> Path:
    with lmdb.open(str(folder), map_size=2**22) as environment, environment.begin(write=True) as transaction:
        for key, value in records.items():
            transaction.put(key, value)
    return folder / "data.mdb"


def index(path: Path) -> Index:
    return build_index(RecordFile.of(path), read_datums)


def read(path: Path, found: Index) -> list[bytes]:
    return [DatumImage(RecordFile.of(path), bytes.fromhex(name)).read() for name in found.names]


def test_encoded_images_in_the_order_of_keys(tmp_path: Path) -> None:
    records = {
        b"00000001_b.jpg": datum(b"second", channels=3, height=4, width=5, label=300, encoded=1),
        b"00000000_a.jpg": datum(b"first" * 3000, label=2, encoded=1),
        b"2\0": datum(b"\xff\xd8 not said to be encoded", label=0),
    }
    path = write(tmp_path / "base", records)
    found = index(path)
    assert read(path, found) == [b"first" * 3000, b"second", b"\xff\xd8 not said to be encoded"]
    assert found.labels.values.tolist() == [2, 300, 0]

    @pipeline_def(batch_size=3, num_threads=1, device_id=None)
    def pipeline() -> tuple[object, ...]:
        return tuple(fn.readers.caffe(path=str(tmp_path / "base")))

    image_files, labels = pipeline().run()
    assert [np.array(image_files[i]).tobytes() for i in range(3)] == read(path, found)
    assert [int(np.array(labels[i])[0]) for i in range(3)] == found.labels.values.tolist()


def test_pixels_are_encoded_losslessly(tmp_path: Path) -> None:
    # Two rows of three pixels: planes of blue, green and red.
    planes = np.arange(18, dtype=np.uint8).reshape(3, 2, 3)
    color = datum(planes.tobytes(), channels=3, height=2, width=3, label=1)
    gray = datum(bytes([9, 8]), channels=1, height=1, width=2, label=0)
    path = write(tmp_path / "base", {b"0": color, b"1": gray})
    rgb = np.stack([planes[2], planes[1], planes[0]], axis=2)
    assert read(path, index(path)) == [b"P6\n3 2\n255\n" + rgb.tobytes(), b"P5\n2 1\n255\n\x09\x08"]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (datum(None, label=1), "record k cannot be read as a Datum with an image: it has no data"),
        (datum(bytes(4), channels=2, height=1, width=2), "it has 2 channels instead of 1 or 3"),
        (b"\x35" + struct.pack("<f", 1.0), r"it has no data\. Store .* instead of float_data"),
        (b"\x22\xff", "record k cannot be read as a Datum"),
    ],
)
def test_a_record_that_is_no_image_is_named(record: bytes, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "base", {b"k": record})
    with pytest.raises(UserError, match=message):
        index(path)


def test_pages_that_repeat_their_records_are_rejected(tmp_path: Path) -> None:
    path = write(tmp_path / "base", {b"%05d" % i: datum(bytes(200), label=0, encoded=1) for i in range(500)})
    content = bytearray(path.read_bytes())
    for page in range(2 * 4096, len(content), 4096):
        flags, lower = struct.unpack_from("<HH", content, page + 10)
        if flags & 1:  # a branch: let each of its entries lead to its first child
            count = (lower - 16) // 2
            first = struct.unpack_from("<H", content, page + 16)
            struct.pack_into(f"<{count}H", content, page + 16, *first * count)
    path.write_bytes(content)
    with pytest.raises(UserError, match="several records with the key 00000"):
        index(path)
