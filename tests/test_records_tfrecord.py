"""TFRecord: files that are put together here by the specification are read, and DALI's reader reads what we write."""

import struct
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from nvidia.dali import fn, pipeline_def, tfrecord

from augment.errors import UserError
from augment.records.index import Index
from augment.records.spans import RecordFile, Span
from augment.records.tfrecord import IMAGE, LABEL, TEXT, Features, index_examples, masked_crc, write_examples

PICTURES = [b"first", b"", b"x" * 300]  # of one and of two bytes of length


def crc32c(content: bytes) -> int:
    """The polynomial division of RFC 3720, bit by bit."""
    register = 0xFFFFFFFF
    for byte in content:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def masked(content: bytes) -> bytes:
    crc = crc32c(content)
    return struct.pack("<I", ((crc >> 15) | (crc << 17) & 0xFFFFFFFF) + 0xA282EAD8 & 0xFFFFFFFF)


def framed(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    return length + masked(length) + record + masked(record)


def delimited(tag: int, content: bytes) -> bytes:
    """A field whose tag byte ends in 2: its length, in 7 bits a byte, and its content."""
    low, high = len(content) & 127, len(content) >> 7
    return bytes([tag, low | 128, high]) + content if high else bytes([tag, low]) + content


def entry(name: str, feature: bytes) -> bytes:
    return delimited(0x0A, delimited(0x0A, name.encode()) + delimited(0x12, feature))


def bytes_feature(*values: bytes) -> bytes:
    return delimited(0x0A, b"".join(delimited(0x0A, value) for value in values))


def example(*entries: bytes) -> bytes:
    return delimited(0x0A, b"".join(entries))


def packed(*varints: bytes) -> bytes:
    return delimited(0x1A, delimited(0x0A, b"".join(varints)))


MINUS_ONE = b"\xff" * 9 + b"\x01"


def index(path: Path, **names: str) -> Index:
    return index_examples(RecordFile.of(path), lambda _: None, **names)


def read(path: Path, found: Index) -> list[bytes]:
    file = RecordFile.of(path)
    return [bytes(Span(file, "", offset, length).read()) for offset, length in found.spans.tolist()]


@pytest.fixture
def by_hand(tmp_path: Path) -> Path:
    """Three records with labels packed, not packed and negative, and features in several orders."""
    image = [entry("image", bytes_feature(picture)) for picture in PICTURES]
    other = entry("width", delimited(0x12, delimited(0x0A, struct.pack("<f", 1.5))))
    path = tmp_path / "hand.tfrecord"
    path.write_bytes(
        framed(example(image[0], entry("label", packed(b"\x05")), other))
        + framed(example(entry("label", delimited(0x1A, b"\x08\xac\x02")), image[1]))
        + framed(example(other, entry("label", packed(MINUS_ONE, b"\x03")), image[2]))
    )
    return path


def test_files_made_by_the_specification_are_read(by_hand: Path) -> None:
    found = index(by_hand, image="image", label="label")
    assert read(by_hand, found) == PICTURES
    assert found.labels.tolist() == [5, 300, -1, 3]
    assert found.counts.tolist() == [1, 1, 2]


def test_labels_may_be_names(tmp_path: Path) -> None:
    path = tmp_path / "names.tfrecord"
    path.write_bytes(
        framed(example(entry("image", bytes_feature(b"1")), entry("name", bytes_feature("Käfer".encode()))))
    )
    assert index(path, image="image", label="name").values().tolist() == ["Käfer"]


def test_the_checksum_is_that_of_the_specification() -> None:
    for content in (b"", b"123456789", bytes(range(256))):
        assert struct.pack("<I", masked_crc(content)) == masked(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(lambda data: data[:-1], "is cut short: it ends at byte", id="last byte"),
        pytest.param(
            lambda data: data[:5], "is cut short: it ends at byte 5, within record 0", id="in the first length"
        ),
        pytest.param(
            lambda data: data[:-2] + b"\0\0",
            r"record 2, at byte .*, is damaged: its checksum is another",
            id="checksum",
        ),
        pytest.param(lambda data: b"\1" + data[1:], "is no TFRecord file", id="another file"),
        pytest.param(lambda data: data + bytes(16), "is damaged behind record 2", id="zeros at the end"),
        pytest.param(lambda _: b"", "is empty", id="empty"),
        pytest.param(lambda _: framed(b"\x0a\xff"), "record 0 is no tf.train.Example", id="no message"),
    ],
)
def test_damage_is_named(by_hand: Path, damage: "partial[bytes]", message: str) -> None:
    by_hand.write_bytes(damage(by_hand.read_bytes()))
    with pytest.raises(UserError, match=message):
        index(by_hand, image="image", label="label")


@pytest.mark.parametrize(
    ("image", "label", "message"),
    [
        (
            "images",
            "label",
            "record 0 has no feature 'images' (data.image). Did you mean 'image'. Allowed: image, label, width.",
        ),
        ("width", "label", "record 0: feature 'width' (data.image) holds floats; allowed are bytes"),
        ("label", "label", "record 0: feature 'label' (data.image) holds whole numbers; allowed are bytes"),
    ],
)
def test_a_wrong_feature_is_named_with_those_there_are(by_hand: Path, image: str, label: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        index(by_hand, image=image, label=label)
    assert message.replace("'. A", "'? A") in str(caught.value)


def test_two_pictures_in_a_record_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "two.tfrecord"
    path.write_bytes(framed(example(entry("image", bytes_feature(b"1", b"2")), entry("label", packed(b"\1")))))
    with pytest.raises(UserError, match="holds 2 pictures; allowed is one"):
        index(path, image="image", label="label")


def test_dali_reads_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "ours.tfrecord"
    samples = [(b"abc", 0, "cat"), (bytes(range(256)) * 70, 300, "dog"), (b"\0", 2, "ä")]
    write_examples(path, [(picture, Features([label], [name])) for picture, label, name in samples])

    @pipeline_def(batch_size=3, num_threads=1, device_id=None)
    def pipeline() -> tuple[object, ...]:
        features = {
            IMAGE: tfrecord.FixedLenFeature((), tfrecord.string, ""),
            LABEL: tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
            TEXT: tfrecord.FixedLenFeature((), tfrecord.string, ""),
        }
        found = fn.readers.tfrecord(path=str(path), index_path=f"{path}.idx", features=features)
        return found[IMAGE], found[LABEL], found[TEXT]

    pictures, labels, names = pipeline().run()
    assert [np.array(pictures[i]).tobytes() for i in range(3)] == [picture for picture, _, _ in samples]
    assert [int(np.array(labels[i])[0]) for i in range(3)] == [0, 300, 2]
    assert [np.array(names[i]).tobytes().decode() for i in range(3)] == ["cat", "dog", "ä"]
    assert read(path, index(path)) == [picture for picture, _, _ in samples]
