"""Read and write the part of the protocol buffers' wire format that images need: numbered fields and varints.

Source: protobuf.dev/programming-guides/encoding. The messages have a handful of fields, one of which is an image; a
parser of whole messages would copy it.
"""

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

# A buffer whose items are integers; it may be a memory map, of which only accessed pages are read.
Buffer = bytes | memoryview


def read_fields(buffer: Buffer, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of the message in buffer[start:stop].

    Yields:
        Number, wire type, and the span of the value: its start and stop in the buffer; for a varint, the value itself
        and the stop.

    Raises:
        ValueError: these bytes are no message.
    """
    while start < stop:
        tag, start = read_varint(buffer, start, stop)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, start = read_varint(buffer, start, stop)
            yield number, wire, value, start
            continue
        if wire == BYTES:
            length, start = read_varint(buffer, start, stop)
        elif wire in (FIXED64, FIXED32):
            length = 8 if wire == FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if number == 0 or start + length > stop:
            raise ValueError("a field ends beyond its message")
        yield number, wire, start, start + length
        start += length


def read_varint(buffer: Buffer, start: int, stop: int) -> tuple[int, int]:
    """Return an unsigned number and the offset of its end.

    Raises:
        ValueError: it ends beyond `stop`, or has more than 64 bits.
    """
    value = shift = 0
    while start < stop and shift < 64:
        byte = buffer[start]
        start += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, start
        shift += 7
    raise ValueError("a number without an end")


def signed(value: int) -> int:
    """Convert a varint to the int64 or int32 that it encodes."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def varint(value: int) -> bytes:
    """Encode a number; a negative one takes ten bytes, like an int64."""
    value &= 2**64 - 1
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def field(number: int, content: bytes) -> bytes:
    """Encode a field of bytes, text or a message."""
    return varint(number << 3 | BYTES) + varint(len(content)) + content
