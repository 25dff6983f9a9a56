"""RecordIO: DALI's reader reads what tests write."""

import struct
from pathlib import Path

import numpy as np
import pytest
from encoding import MAGIC, part
from nvidia.dali import fn, pipeline_def
from recordio_writer import write_records

from augment.data.formats.recordio import read_records, unpack
from augment.data.formats.records import Index, RecordFile, Span, build_index
from augment.support.errors import UserError


def index(path: Path) -> Index:
    return build_index(RecordFile.of(path), read_records)


def read(path: Path, found: Index) -> list[bytes]:
    file = RecordFile.of(path)
    return [bytes(Span(file, "", offset, length, unpack).read()) for offset, length in found.spans.tolist()]


def test_a_record_without_a_header_is_named(tmp_path: Path) -> None:
    path = tmp_path / "hand.rec"
    path.write_bytes(part(0, b"short"))
    with pytest.raises(UserError, match="record 0, at byte 0, is too short for a label"):
        index(path)


def test_dali_reads_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "ours.rec"
    # With the magic number at a multiple of 4, elsewhere, and at both ends.
    image_files = [b"abcde", b"1234" + MAGIC + b"5", b"12" + MAGIC + b"3", MAGIC + b"x" * 5000 + MAGIC]
    write_records(path, [(image, target) for target, image in enumerate(image_files)])

    @pipeline_def(batch_size=4, num_threads=1, device_id=None)
    def pipeline() -> object:
        return tuple(fn.readers.mxnet(path=[str(path)], index_path=[str(path.with_suffix(".idx"))]))

    found, labels = pipeline().run()
    assert [int(np.array(labels[i])[0]) for i in range(4)] == [0, 1, 2, 3]
    assert [np.array(found[i]).tobytes() for i in range(4)] == image_files
    assert read(path, index(path)) == image_files
    assert index(path).labels.values.tolist() == [0, 1, 2, 3]


def test_records_of_gigabytes_are_rejected(tmp_path: Path) -> None:
    path, length = tmp_path / "sparse.rec", 2**29 - 4
    with path.open("wb") as stream:
        for number, kind in enumerate((1, 2, 2, 2, 3)):
            stream.seek(number * (length + 8))
            stream.write(MAGIC + struct.pack("<I", kind << 29 | length))
        stream.truncate(5 * (length + 8))
    with pytest.raises(UserError, match=r"record 0 has 2,684,354,5.. bytes\. The limit is 2,147,483,648"):
        index(path)
