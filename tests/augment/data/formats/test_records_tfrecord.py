"""TFRecord: read files that are built here by the specification; DALI's reader reads ours."""

import struct
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from encoding import bytes_feature, delimited, entry, example, framed, masked, packed
from nvidia.dali import fn, pipeline_def, tfrecord
from tfrecord_writer import IMAGE, LABEL, TEXT, write_examples

from augment.data.formats.protobuf_records import masked_crc, read_examples
from augment.data.formats.records import Index, RecordFile, Span, build_index
from augment.support.errors import UserError

IMAGES = [b"first", b"", b"x" * 300]  # of one and of two bytes of length


MINUS_ONE = b"\xff" * 9 + b"\x01"


def index(path: Path, **names: str) -> Index:
    return build_index(RecordFile.of(path), partial(read_examples, **{"image": IMAGE, "label": LABEL, **names}))


def read(path: Path, found: Index) -> list[bytes]:
    file = RecordFile.of(path)
    return [bytes(Span(file, "", offset, length).read()) for offset, length in found.spans.tolist()]


@pytest.fixture
def by_hand(tmp_path: Path) -> Path:
    """Three records with labels packed, not packed and negative, and features in several orders."""
    image = [entry("image", bytes_feature(content)) for content in IMAGES]
    other = entry("width", delimited(0x12, delimited(0x0A, struct.pack("<f", 1.5))))
    path = tmp_path / "hand.tfrecord"
    path.write_bytes(
        framed(example(image[0], entry("label", packed(b"\x05")), other))
        + framed(example(entry("label", delimited(0x1A, b"\x08\xac\x02")), image[1]))
        + framed(example(other, entry("label", packed(MINUS_ONE, b"\x03")), image[2]))
    )
    return path


def test_files_built_by_the_specification_are_read(by_hand: Path) -> None:
    found = index(by_hand, image="image", label="label")
    assert read(by_hand, found) == IMAGES
    assert found.labels.values.tolist() == [5, 300, -1, 3]
    assert found.labels.counts.tolist() == [1, 1, 2]


def test_the_checksum_is_that_of_the_specification() -> None:
    for content in (b"", b"123456789", bytes(range(256))):
        assert struct.pack("<I", masked_crc(content)) == masked(content)


def test_a_record_that_is_no_example_is_named(tmp_path: Path) -> None:
    path = tmp_path / "other.tfrecord"
    path.write_bytes(framed(b"\x0a\xff"))
    with pytest.raises(UserError, match=r"record 0 cannot be read as a tf\.train\.Example"):
        index(path)


def test_an_image_feature_that_holds_something_else_is_rejected(by_hand: Path) -> None:
    with pytest.raises(
        UserError, match=r"record 0: feature 'width' \(data.image\) holds 0 byte strings instead of one image"
    ):
        index(by_hand, image="width", label="label")


def test_two_images_in_a_record_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "two.tfrecord"
    path.write_bytes(framed(example(entry("image", bytes_feature(b"1", b"2")), entry("label", packed(b"\1")))))
    with pytest.raises(UserError, match="holds 2 byte strings instead of one image"):
        index(path, image="image", label="label")


def test_dali_reads_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "ours.tfrecord"
    samples = [(b"abc", 0, "cat"), (bytes(range(256)) * 70, 300, "dog"), (b"\0", 2, "ä")]
    write_examples(path, [{IMAGE: [image], LABEL: [label], TEXT: [name.encode()]} for image, label, name in samples])

    @pipeline_def(batch_size=3, num_threads=1, device_id=None)
    def pipeline() -> tuple[object, ...]:
        features = {
            IMAGE: tfrecord.FixedLenFeature((), tfrecord.string, ""),
            LABEL: tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
            TEXT: tfrecord.FixedLenFeature((), tfrecord.string, ""),
        }
        found = fn.readers.tfrecord(path=str(path), index_path=f"{path}.idx", features=features)
        return found[IMAGE], found[LABEL], found[TEXT]

    image_files, labels, names = pipeline().run()
    assert [np.array(image_files[i]).tobytes() for i in range(3)] == [image for image, _, _ in samples]
    assert [int(np.array(labels[i])[0]) for i in range(3)] == [0, 300, 2]
    assert [np.array(names[i]).tobytes().decode() for i in range(3)] == ["cat", "dog", "ä"]
    assert read(path, index(path)) == [image for image, _, _ in samples]


def test_records_of_gigabytes_are_rejected(tmp_path: Path) -> None:
    head = struct.pack("<Q", 3 * 2**30)
    path = tmp_path / "sparse"
    with path.open("wb") as stream:
        stream.write(head + struct.pack("<I", masked_crc(head)))
        stream.truncate(16 + 3 * 2**30)
    with pytest.raises(UserError, match=r"record 0 has 3,221,225,472 bytes\. The limit is 2,147,483,648"):
        index(path)
