"""Records put together byte by byte, from the specifications of their formats."""

import struct

MAGIC = struct.pack("<I", 0xCED7230A)


def part(kind: int, content: bytes) -> bytes:
    return MAGIC + struct.pack("<I", kind << 29 | len(content)) + content + bytes(-len(content) % 4)


def header(flag: int, label: float) -> bytes:
    return struct.pack("<IfQQ", flag, label, 7, 0)


def varint(value: int) -> bytes:
    low, high = value & 127, value >> 7
    return bytes([low | 128]) + varint(high) if high else bytes([low])


def datum(data: bytes | None, **numbers: int) -> bytes:
    """Put a Datum together: data is field 4, encoded 7; the numbers are varints."""
    fields = {"channels": 1, "height": 2, "width": 3, "label": 5, "encoded": 7}
    content = b"".join(bytes([fields[name] << 3]) + varint(value) for name, value in numbers.items())
    return content if data is None else b"\x22" + varint(len(data)) + data + content


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
