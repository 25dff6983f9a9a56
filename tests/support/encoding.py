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
