"""Guess a file's real format, for error messages."""

import struct
from pathlib import Path

from augment.data.formats.spans import masked_crc

# Offset, the bytes found there, and a sentence about such a file.
_MARKS = (
    (0, b"\x1f\x8b", "It is compressed (gzip): unpack it first."),
    (0, b"\x28\xb5\x2f\xfd", "It is compressed (zstd): unpack it first."),
    (0, b"BZh", "It is compressed (bzip2): unpack it first."),
    (0, b"\xfd7zXZ", "It is compressed (xz): unpack it first."),
    (0, b"PK\x03\x04", "It is a zip file (.npz, too): unpack it first."),
    (0, b"PAR1", "It is a parquet file: data=parquet reads it."),
    (0, b"\x0a\x23\xd7\xce", "It is RecordIO: data=recordio reads it."),
    (0, b"\x93NUMPY", "It is an array of NumPy: data=numpy reads it."),
    (0, b"\x89HDF", "It is HDF5, which no source reads."),
    (0, b"\xff\xd8\xff", "It is an image: data=folder or data=filelist reads such files."),
    (0, b"\x89PNG", "It is an image: data=folder or data=filelist reads such files."),
    (257, b"ustar", "It is a tar file: data=webdataset reads it."),
    (16, b"\xde\xc0\xef\xbe", "It is an LMDB database: data=lmdb reads it."),  # behind the header of its first page
)


def describe_content(file: Path, asked: str) -> str:
    """Return a sentence, after a blank, about the format that a file seems to have.

    It is empty if nothing is known, or if the file seems to be of the source that it was given to, `asked`.
    """
    try:
        with file.open("rb") as stream:
            head = stream.read(512)
    except OSError:
        return ""
    for offset, mark, sentence in _MARKS:
        if head.startswith(mark, offset):
            return "" if f"data={asked} " in sentence else f" {sentence}"
    if not head:
        return " It is empty (0 bytes)."
    if len(head) >= 12 and masked_crc(head[:8]) == struct.unpack_from("<I", head, 8)[0]:
        return " It is a TFRecord file: data=tfrecord reads it." if asked != "tfrecord" else ""
    if all(byte in b"\t\n\r" or byte >= 32 for byte in head):
        return " It is text, like lists and the indexes of other formats."
    return ""
