"""Parquet files with a column of encoded images, as the Hugging Face hub has them.

The images are copied into one plain file once, and read from there. Reading one image in place means decoding a row
group, or at best a page, of a hundred or a thousand images; in shuffled order that happens for each image, unless all
row groups fit into memory.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from augment.data.formats.index import Advance, Index
from augment.data.formats.spans import RecordFile
from augment.support.errors import UserError, first_line, suggest
from augment.support.files import atomic_path

_MARK = b"PAR1"  # at both ends of a file
_LONGEST_TYPE = 60
_ROWS = 64  # that are Python's at a time


def unpack_table(
    file: RecordFile,
    advance: Advance,
    *,
    image: str,
    label: str,
    targets: Sequence[str] = (),
    destination: Callable[[RecordFile], Path],
) -> Index:
    """Copy the images of a file; its class names, if any, become the index's keys, as JSON.

    This takes the memory of about two row groups, often 100 MB each.

    Args:
        file: the file.
        advance: called with the number of bytes processed.
        image: column of the encoded images: bytes, or the hub's struct of bytes and path.
        label: column of the labels: whole numbers, names, floats to predict, or lists of these.
        targets: columns of a number each, instead of `label`.
        destination: returns the path of the file for the images.

    Raises:
        UserError: the file is not a parquet file, a column is missing or of another type, an image is only a path, a
            row has no label, or there is not enough space.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file.path, pre_buffer=False, buffer_size=2**20) as table:
            schema = table.schema_arrow
            key_of = {image: "data.image"} | (dict.fromkeys(targets, "data.targets") or {label: "data.label"})
            for name, key in key_of.items():
                if name not in schema.names:
                    raise UserError(f"there is no column '{name}' ({key}).{suggest(name, schema.names)}")
            if not table.metadata.num_rows:
                raise UserError("holds no rows.")
            _check_types(pa, schema, image, label, targets)
            names = json.dumps(None if targets else _class_names(schema.metadata or {}, label)).encode()
            return _copy(table, file, advance, image, targets or label, destination(file), names)
    except pa.ArrowException as error:
        raise UserError(f"is not a parquet file that can be read: {_why(file, error)}.") from None
    except OSError as error:
        raise UserError(f"cannot be read, or its images not be kept: {error.strerror or first_line(error)}.") from None


def class_names(index: Index) -> tuple[str, ...] | None:
    """Return the names of the classes that a file has, if it has any."""
    names = json.loads(index.keys or b"null")
    return tuple(names) if names else None


def _check_types(pa: Any, schema: Any, image: str, label: str, targets: Sequence[str]) -> None:
    types = pa.types
    kind = schema.field(image).type
    if types.is_struct(kind) and "bytes" in [kind.field(i).name for i in range(kind.num_fields)]:
        kind = kind.field("bytes").type
    if not (types.is_binary(kind) or types.is_large_binary(kind)):
        raise UserError(
            f"column '{image}' (data.image) holds {_short(schema.field(image).type)}; "
            "allowed: binary, or a struct with bytes."
        )
    for name in targets:
        kind = schema.field(name).type
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            hint = f"; data.label={name} data.task=regress reads lists" if _is_list(types, kind) else ""
            raise UserError(f"column '{name}' (data.targets) holds {_short(kind)}; allowed: numbers{hint}.")
    if targets:
        return
    kind = schema.field(label).type
    if _is_list(types, kind):
        kind = kind.value_type
    if types.is_dictionary(kind):
        kind = kind.value_type
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_string(kind) or types.is_large_string(kind)):
        raise UserError(
            f"column '{label}' (data.label) holds {_short(schema.field(label).type)}; "
            "allowed: numbers, text, or lists of these."
        )


def _is_list(types: Any, kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _copy(
    table: Any,
    file: RecordFile,
    advance: Advance,
    image: str,
    wanted: str | Sequence[str],
    destination: Path,
    names: bytes,
) -> Index:
    columns = [wanted] if isinstance(wanted, str) else list(wanted)
    destination.parent.mkdir(parents=True, exist_ok=True)
    groups = [table.metadata.row_group(group) for group in range(table.metadata.num_row_groups)]
    needed, free = sum(group.total_byte_size for group in groups), shutil.disk_usage(destination.parent).free
    if needed > free:
        raise UserError(
            f"its images take {needed / 1e9:.1f} GB unpacked, and {destination.parent} has room for {free / 1e9:.1f}. "
            "data.dir=DIR unpacks elsewhere."
        )
    lengths: list[int] = []
    labels: list[list[int | float | str]] = []
    with atomic_path(destination) as part:
        with part.open("wb") as stream:
            for batch in table.iter_batches(_ROWS, columns=[image, *columns]):
                column = batch.column(image)
                begin = len(lengths)
                for encoded in (column.field("bytes") if hasattr(column, "field") else column).to_pylist():
                    if not encoded:  # the check reports empty images; a path without bytes is an error now
                        cell = column[len(lengths) - begin].as_py()
                        if isinstance(cell, Mapping) and cell.get("path"):
                            raise UserError(
                                f"row {len(lengths)} has no image in column '{image}', only its path, {cell['path']}. "
                                "Write the table again with the bytes of the images in it."
                            )
                    lengths.append(stream.write(encoded or b""))
                for values in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
                    if None in values:
                        what = "label" if isinstance(wanted, str) else "number"
                        raise UserError(f"row {len(labels)} has no {what} in column '{columns[values.index(None)]}'.")
                    if not isinstance(wanted, str):
                        labels.append(list(map(float, values)))
                    else:
                        labels.append(values[0] if isinstance(values[0], list) else [values[0]])
                advance(file.size * batch.num_rows // table.metadata.num_rows)
        # The same if another process copies it at the same time: for a run that reads it, nothing changes.
        os.utime(part, ns=(file.mtime_ns, file.mtime_ns))
    ends = np.cumsum([0, *lengths])
    return Index.of(list(zip(ends[:-1].tolist(), lengths, strict=True)), labels, names)


def _why(file: RecordFile, error: BaseException) -> str:
    """Return the fault of a file that pyarrow cannot open."""
    with file.path.open("rb") as stream:
        begins = stream.read(len(_MARK)) == _MARK
        stream.seek(max(file.size - len(_MARK), 0))
        ends = stream.read() == _MARK
    return "it is cut short" if begins and not ends else first_line(error).rstrip(".")


def _short(kind: object) -> str:
    """Return a type's name, shortened: that of a struct with many fields is very long."""
    text = str(kind)
    return text if len(text) <= _LONGEST_TYPE else f"{text[:_LONGEST_TYPE]}..."


def _class_names(metadata: Mapping[bytes, bytes], label: str) -> list[str] | None:
    """Return the names that the hub's library writes into the schema, by class."""
    try:
        feature = json.loads(metadata[b"huggingface"])["info"]["features"][label]
        feature = feature.get("feature", feature)
        return list(feature["names"]) if feature["_type"] == "ClassLabel" else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
