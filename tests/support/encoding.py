"""Records put together byte by byte, from the specifications of their formats."""

import struct


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
