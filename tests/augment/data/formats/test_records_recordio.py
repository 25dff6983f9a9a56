"""RecordIO: read files that are built here by the specification; DALI's reader reads ours."""

import struct
from pathlib import Path

import numpy as np
import pytest
from encoding import MAGIC, header, part
from nvidia.dali import fn, pipeline_def
from recordio_writer import write_records

from augment.data.formats.recordio import read_records, unpack
from augment.data.formats.records import Index, RecordFile, Span, build
from augment.support.errors import UserError


def index(path: Path) -> Index:
    return build(RecordFile.of(path), read_records)


def read(path: Path, found: Index) -> list[bytes]:
    file = RecordFile.of(path)
    return [bytes(Span(file, "", offset, length, unpack).read()) for offset, length in found.spans.tolist()]


IMAGES = [b"first", b"1234" + MAGIC + b"5678", b"odd", MAGIC + MAGIC + b"!"]


@pytest.fixture
def by_hand(tmp_path: Path) -> Path:
    """Four records: plain, cut at a magic number, with three labels, cut twice."""
    path = tmp_path / "hand.rec"
    path.write_bytes(
        part(0, header(0, 3.0) + IMAGES[0])
        + part(1, header(0, 1.0) + b"1234")
        + part(3, b"5678")
        + part(0, header(3, 0.0) + struct.pack("<3f", 4.0, 5.0, 6.0) + IMAGES[2])
        + part(1, header(0, 2.0))
        + part(2, b"")
        + part(3, b"!")
    )
    return path


def test_files_built_by_the_specification_are_read(by_hand: Path) -> None:
    found = index(by_hand)
    assert read(by_hand, found) == IMAGES
    assert found.labels.values.tolist() == [3, 1, 4, 5, 6, 2]
    assert found.labels.values.dtype == np.int64
    assert found.labels.counts.tolist() == [1, 1, 3, 1]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(lambda data: data[:-8], "is cut short: it ends at byte", id="in a part"),
        pytest.param(lambda data: data[:-12], "is cut short: it ends at byte", id="before the last part"),
        pytest.param(lambda data: data + MAGIC, "is cut short: it ends at byte", id="in a head"),
        pytest.param(lambda _: part(0, b"short"), "record 0, at byte 0, is too short for a label", id="no header"),
    ],
)
def test_damage_is_named(by_hand: Path, damage: object, message: str) -> None:
    assert callable(damage)
    by_hand.write_bytes(damage(by_hand.read_bytes()))
    with pytest.raises(UserError, match=message):
        index(by_hand)


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
