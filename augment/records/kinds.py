"""What a file is that is not of the format which was asked for."""

import struct
from pathlib import Path

_BEGINNINGS = (
    (b"\x1f\x8b", "It is compressed (gzip): unpack it first."),
    (b"\x28\xb5\x2f\xfd", "It is compressed (zstd): unpack it first."),
    (b"BZh", "It is compressed (bzip2): unpack it first."),
    (b"\xfd7zXZ", "It is compressed (xz): unpack it first."),
    (b"PK\x03\x04", "It is a zip file: unpack it first."),
    (b"PAR1", "It is a parquet file: data=parquet reads it."),
    (b"\x0a\x23\xd7\xce", "It is RecordIO: data=recordio reads it."),
    (b"\x93NUMPY", "It is an array of NumPy: data=numpy reads it."),
    (b"\x89HDF", "It is HDF5, which is not read."),
    (b"\xff\xd8\xff", "It is a picture: data=folder or data=filelist reads such files."),
    (b"\x89PNG", "It is a picture: data=folder or data=filelist reads such files."),
)
_TAR = 257, b"ustar"
_LMDB = 16, b"\xde\xc0\xef\xbe"  # behind the header of its first page


def told_by_content(file: Path, asked: str) -> str:
    """Return a sentence, after a blank, about what a file is instead of that which was asked for.

    Args:
        file: the file.
        asked: name of the source that it was given to.

    Returns:
        The sentence, "" if nothing is known or the file seems to be of that source.
    """
    try:
        with file.open("rb") as stream:
            told = _told(stream.read(512))
    except OSError:
        return ""
    return "" if f"data={asked} " in told else told


def _told(head: bytes) -> str:
    for beginning, what in _BEGINNINGS:
        if head.startswith(beginning):
            return f" {what}"
    for (place, mark), what in (
        (_TAR, "It is a tar file: data=webdataset reads it."),
        (_LMDB, "It is an LMDB database: data=lmdb reads it."),
    ):
        if head[place : place + len(mark)] == mark:
            return f" {what}"
    if _begins_with_record(head):
        return " It is a TFRecord file: data=tfrecord reads it."
    if head and all(byte in b"\t\n\r" or byte >= 32 for byte in head):
        return " It is text, as lists and the indexes of other formats are."
    return ""


def _begins_with_record(head: bytes) -> bool:
    from augment.records.tfrecord import masked_crc

    return len(head) >= 12 and masked_crc(head[:8]) == struct.unpack_from("<I", head, 8)[0]
