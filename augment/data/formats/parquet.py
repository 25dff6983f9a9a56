"""Parquet files with a column of encoded images, as on the Hugging Face Hub.

The images are copied into one plain file once, and read from there. Reading a single image from a parquet file means
decoding a page or row group with a hundred or a thousand images. In shuffled order, that would happen for each image.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import time_ns
from typing import Any

from augment.data.formats.records import Record, RecordFile
from augment.data.targets.class_names import Label
from augment.support.errors import UserError, first_line, suggest
from augment.support.files import atomic_path
from augment.support.formatting import amount
from augment.support.untrusted_files import parse_json

# Limits of unpacked files: this many times the file's size, or 64 MiB if that is more. Each row also counts as 100
# bytes, and each value of a list, too. Encoded images can hardly be compressed, but a tiny file could repeat a value
# until memory or disk are full.
_MAX_RATIO, _MIN_LIMIT, _ROW_BYTES = 100, 2**26, 100

_LISTS = ("List", "LargeList", "FixedSizeList", "ListView", "LargeListView")


def read_parquet(
    file: RecordFile, *, image: str, label: str, targets: Sequence[str] = (), destination: Callable[[RecordFile], Path]
) -> Iterator[Record]:
    """Copy the images of a file to its destination, and yield its rows with their spans in the copy.

    This takes the memory of about two row groups, often 100 MB each.

    Args:
        file: the parquet file.
        image: the column of images: bytes, or the hub's struct of bytes and path.
        label: the column of labels: integers, names, floats to predict, or lists of these.
        targets: columns with one number each, instead of `label`.
        destination: returns the file that the images are copied to.

    Raises:
        UserError: the file is not a parquet file, or unpacks to far more than its size. A column is missing or has the
            wrong type. An image is only a path, or a row has no label. The disk is full.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file.path, pre_buffer=False, buffer_size=2**20) as table:
            columns = targets or (label,)
            key_of = {image: "data.image"} | dict.fromkeys(columns, "data.targets" if targets else "data.label")
            for name, key in key_of.items():
                if name not in table.schema_arrow.names:
                    raise UserError(f"cannot find column '{name}' ({key}).{suggest(name, table.schema_arrow.names)}")
            read = [path for name in key_of for path in _paths(table.schema_arrow, name, key_of[name])]
            most = max(_MAX_RATIO * file.size, _MIN_LIMIT)
            with atomic_path(destination(file)) as part:
                with part.open("wb") as stream:
                    for number, row in enumerate(_rows(table, read, most)):
                        labels = _labels([row[name] for name in columns], f"row {number}", columns)
                        offset, length = stream.tell(), stream.write(_bytes(row[image], f"row {number}", image))
                        _require_size(offset + length + _ROW_BYTES * number, most)
                        yield Record(offset, length, labels)
                # Give the copy the file's time. If the images are unpacked again, a resumed run then sees no change.
                os.utime(part, ns=(time_ns(), file.mtime_ns))
    except pa.ArrowException as error:
        raise UserError(f"cannot be read as a parquet file: {first_line(error).rstrip('.')}.") from None
    except OSError as error:
        raise UserError(f"cannot be read or unpacked: {error.strerror or first_line(error)}.") from None


def _rows(table: Any, columns: list[str], most: int) -> Iterator[dict[str, Any]]:
    for batch in table.iter_batches(16, columns=columns):
        values = sum(len(column.flatten()) for column in batch.columns if _is_list(column.type))
        _require_size(batch.nbytes + _ROW_BYTES * values, most)
        yield from batch.to_pylist()


def _paths(schema: Any, name: str, key: str) -> list[str]:
    """Return the paths of the values to read in a column. Other fields of a struct could take much memory.

    Raises:
        UserError: the column has a wrong type.
    """
    from pyarrow import types

    kind = schema.field(name).type
    kinds = {name: kind.value_type if _is_list(kind) else kind}
    if key == "data.image" and types.is_struct(kind):
        kinds = {f"{name}.{field.name}": field.type for field in kind if field.name in ("bytes", "path")}
    if not kinds or any(map(types.is_nested, kinds.values())):
        allowed = "bytes, or a struct with bytes" if key == "data.image" else "numbers, names, or lists of these"
        raise UserError(f"column '{name}' ({key}) has the type {kind!s:.60}. Allowed: {allowed}.")
    return list(kinds)


def _is_list(kind: Any) -> bool:
    return type(kind).__name__.removesuffix("Type") in _LISTS  # old versions lack some of these types


def _require_size(size: int, most: int) -> None:
    if size > most:
        raise UserError(
            f"unpacks to more than {amount(most, 'byte')}, which is too much for its size. Write each image into one "
            "row only."
        )


def schema_class_names(file: Path, label: str) -> tuple[str, ...] | None:
    """Return the class names that the hub's library writes into a file's schema, or None."""
    from pyarrow import parquet

    try:
        feature = parse_json(parquet.read_schema(file).metadata[b"huggingface"])["info"]["features"][label]
        feature = feature.get("feature", feature)
        return tuple(map(str, feature["names"])) if feature["_type"] == "ClassLabel" else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _bytes(cell: Any, row: str, column: str) -> bytes:
    """Return the image in a cell. An empty image is reported by the check of all images."""
    content, path = (cell.get("bytes"), cell.get("path")) if isinstance(cell, Mapping) else (cell, None)
    if (path and not content) or not isinstance(content or b"", bytes):
        raise UserError(
            f"{row} has {cell!r:.60} in column '{column}' (data.image). Allowed: bytes, or a struct with bytes. A path "
            "without bytes is not enough."
        )
    return content or b""


def _labels(values: list[Any], row: str, columns: Sequence[str]) -> list[Label]:
    if None in values:
        raise UserError(f"{row} has no value in column '{columns[values.index(None)]}'.")
    return values[0] if len(values) == 1 and isinstance(values[0], list) else values
