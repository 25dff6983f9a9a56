"""As much of the protocol buffers' wire format as pictures are kept in: fields by number, nested, and varints.

Source: protobuf.dev/programming-guides/encoding. The messages that are read here have a handful of fields and one of
them is a picture, which stays where it is: a parser of whole messages would copy it.
"""

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

# A buffer that gives an int by an index: of a memory map too, of which only the pages are read that are looked at.
Buffer = bytes | memoryview


def read_fields(buffer: Buffer, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of a message that lies in buffer[start:stop].

    Yields:
        Number, wire type, and the place of the value: its start and stop in the buffer, of a varint the value itself
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
    """Return an unsigned number and where it ends.

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
    """Return a varint as the int64 or int32 that was written."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def varint(value: int) -> bytes:
    """Encode a number; a negative one takes ten bytes, as int64 has it."""
    value &= 2**64 - 1
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def field(number: int, content: bytes) -> bytes:
    """Encode a field that holds bytes, text or a message."""
    return varint(number << 3 | BYTES) + varint(len(content)) + content
