"""Write MXNet's RecordIO, as `augment.data.formats.recordio` reads it."""

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

MAGIC = 0xCED7230A
MAGIC_BYTES = struct.pack("<I", MAGIC)
WHOLE, FIRST, MIDDLE, LAST = range(4)
PART = struct.Struct("<II")
HEADER = struct.Struct("<IfQQ")


def write_records(path: Path, samples: Iterable[tuple[bytes, float | Sequence[float]]]) -> None:
    """Write encoded images with their class or numbers, and the index `<stem>.idx` for MXNet's and DALI's readers."""
    lines: list[str] = []
    with path.open("wb") as stream:
        for number, (image, labels) in enumerate(samples):
            lines.append(f"{number}\t{stream.tell()}\n")
            if isinstance(labels, Sequence):
                head = HEADER.pack(len(labels), 0, number, 0) + struct.pack(f"<{len(labels)}f", *labels)
            else:
                head = HEADER.pack(0, labels, number, 0)
            for part, kind in _cut(head + image):
                stream.write(PART.pack(MAGIC, kind << 29 | len(part)) + part + bytes(-len(part) % 4))
    path.with_suffix(".idx").write_text("".join(lines))


def _cut(record: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the parts of a record and their kinds."""
    found = re.finditer(re.escape(MAGIC_BYTES), record)
    cuts = [0, *chain.from_iterable(match.span() for match in found if match.start() % 4 == 0), len(record)]
    ends = list(zip(cuts[::2], cuts[1::2], strict=True))
    for number, (start, stop) in enumerate(ends):
        last = number == len(ends) - 1
        kind = WHOLE if len(ends) == 1 else FIRST if number == 0 else LAST if last else MIDDLE
        yield record[start:stop], kind
