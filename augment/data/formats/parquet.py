"""Parquet files with a column of encoded images, as the Hugging Face hub has them.

The images are copied into one plain file once, and read from there. Reading one image in place means decoding a row
group, or at best a page, of a hundred or a thousand images; in shuffled order that happens for each image, unless all
row groups fit into memory.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import time_ns
from typing import Any

from augment.data.formats.records import Record, RecordFile
from augment.data.targets.class_names import Label
from augment.support.errors import UserError, first_line, suggest
from augment.support.files import atomic_path


def read_table(
    file: RecordFile, *, image: str, label: str, targets: Sequence[str] = (), destination: Callable[[RecordFile], Path]
) -> Iterator[Record]:
    """Copy the images of a file to its destination, and yield its rows with their spans in the copy.

    This takes the memory of about two row groups, often 100 MB each. The column of images holds bytes, or the hub's
    struct of bytes and path; that of labels whole numbers, names, floats to predict, or lists of these. The targets are
    columns of a number each, instead of labels.

    Raises:
        UserError: the file is not a parquet file, a column is missing or holds something else, an image is only a
            path, a row has no label, or there is not enough space.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file.path, pre_buffer=False, buffer_size=2**20) as table:
            columns = targets or (label,)
            key_of = {image: "data.image"} | dict.fromkeys(columns, "data.targets" if targets else "data.label")
            for name, key in key_of.items():
                if name not in table.schema_arrow.names:
                    raise UserError(f"there is no column '{name}' ({key}).{suggest(name, table.schema_arrow.names)}")
            rows = (row for some in table.iter_batches(64, columns=list(key_of)) for row in some.to_pylist())
            with atomic_path(destination(file)) as part:
                with part.open("wb") as stream:
                    for number, row in enumerate(rows):
                        labels = _labels([row[name] for name in columns], f"row {number}", columns)
                        offset, length = stream.tell(), stream.write(_bytes(row[image], f"row {number}", image))
                        yield Record(offset, length, labels)
                # The same if another process copies it at the same time: for a run that reads it, nothing changes.
                os.utime(part, ns=(time_ns(), file.mtime_ns))
    except pa.ArrowException as error:
        raise UserError(f"is not a parquet file that can be read: {first_line(error).rstrip('.')}.") from None
    except OSError as error:
        raise UserError(f"cannot be read, or its images not be kept: {error.strerror or first_line(error)}.") from None


def class_names(file: Path, label: str) -> tuple[str, ...] | None:
    """Return the names of the classes that the hub's library writes into a file's schema, if they are there."""
    from pyarrow import parquet

    try:
        feature = json.loads(parquet.read_schema(file).metadata[b"huggingface"])["info"]["features"][label]
        feature = feature.get("feature", feature)
        return tuple(feature["names"]) if feature["_type"] == "ClassLabel" else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _bytes(cell: Any, row: str, column: str) -> bytes:
    """Return the image in a cell; the check reports one that is empty."""
    content, path = (cell.get("bytes"), cell.get("path")) if isinstance(cell, Mapping) else (cell, None)
    if (path and not content) or not isinstance(content or b"", bytes):
        allowed = "bytes, or a struct with bytes, not only with a path"
        raise UserError(f"{row} has {cell!r:.60} in column '{column}' (data.image). Allowed: {allowed}.")
    return content or b""


def _labels(values: list[Any], row: str, columns: Sequence[str]) -> list[Label]:
    if None in values:
        raise UserError(f"{row} has no value in column '{columns[values.index(None)]}'.")
    return values[0] if len(values) == 1 and isinstance(values[0], list) else values
