"""Read the texts and tables that settings name."""

import csv
import os
import re
from collections.abc import Callable, Iterable, Sequence
from io import TextIOWrapper
from pathlib import Path

from augment.support.errors import UserError, for_each
from augment.support.files import near_file, open_file
from augment.support.formatting import amount

_MAX_BYTES = 2**31

_COLUMNS = ("path", "label")  # an example for messages

# A row of a table: the number of its line, from 1, and its cells.
TableRow = tuple[int, list[str]]


def read_text(key: str, file: Path, allowed: str) -> str:
    """Return the text of a UTF-8 file.

    Args:
        key: the setting that names the file, for messages.
        file: the file.
        allowed: what the file should be, for messages.

    Raises:
        UserError: the file is missing, or not UTF-8 text.
    """
    try:
        with TextIOWrapper(open_file(file), encoding="utf-8-sig") as stream:
            if (size := os.fstat(stream.fileno()).st_size) > _MAX_BYTES:
                raise UserError(f"{key}: {file} has {size:,} bytes. The limit is {_MAX_BYTES:,}. Split it.")
            text = stream.read()
        if "\0" not in text:
            return text
        why = f"has a NUL character in line {text.count(chr(10), 0, text.index(chr(0))) + 1}"
    except FileNotFoundError:
        raise UserError(f"{key}: the file {file} does not exist.{near_file(file)} Allowed: {allowed}.") from None
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError as error:
        why = f"is not UTF-8 text (byte {error.start}). Save it as UTF-8"
    raise UserError(f"{key}: {file} {why}. Allowed: {allowed}.")


def whole_number(text: str, otherwise: str) -> int | str:
    """Convert a text to an integer of up to 18 digits. Return `otherwise` for any other text, such as 007."""
    return int(text) if re.fullmatch("0|-?[1-9][0-9]{,17}", text) else otherwise


def describe_absent(given: Iterable[tuple[str, Sequence[Path], Callable[[int], str]]], hint: str) -> tuple[str, ...]:
    """Return a message for each setting with missing files.

    Args:
        given: for each setting, its key, its files, and a function that describes where a file is listed, given the
            file's index.
        hint: sentences about paths, to append.
    """
    found = []
    for key, files, where in given:
        if absent := [index for index, file in enumerate(files) if not os.path.isfile(file)]:
            first, more = files[absent[0]], f" (and {len(absent) - 1:,} more)" if len(absent) > 1 else ""
            skip = " To leave out missing images, set data.skip_bad=true." if len(absent) < len(files) else ""
            found.append(f"{key}: cannot find {first}{more}, {where(absent[0])}.{near_file(first)}{hint}{skip}")
    return tuple(found)


def read_rows(key: str, file: Path, allowed: str, separator: str = ",") -> list[TableRow]:
    """Return the rows of a CSV file, without empty rows."""
    reader = csv.reader(
        read_text(key, file, allowed).splitlines(keepends=True), delimiter=separator, skipinitialspace=True
    )
    try:
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except csv.Error as error:
        raise UserError(f"{key}: line {reader.line_num} of {file}: {error}.") from None
    return [row for row in rows if any(row[1])]


def header_error(
    key: str, file: Path, header: Sequence[str], separator: str, columns: Sequence[str] = _COLUMNS
) -> UserError:
    """Return the error about a CSV file without a header, or with a different separator."""
    found = f"line 1 of {file} is {separator.join(header)}" if header else f"{file} is empty"
    return UserError(
        f"{key}: {found}. Write a header with at least two columns, separated by {separator!r}, such as "
        f"{separator.join(columns)}."
    )


def read_table(
    key: str, file: Path, allowed: str, separator: str = ",", columns: Sequence[str] = _COLUMNS
) -> tuple[list[str], list[TableRow]]:
    """Return the header and the rows of a CSV file. A row with a single cell is filled with empty cells.

    `columns` are an example of a header, for messages.

    Raises:
        UserError: the file cannot be read, has fewer than two columns, or a row has a different number of cells.
    """
    (_, header), *rows = read_rows(key, file, allowed, separator) or [(1, [])]
    if len(header) < 2:
        raise header_error(key, file, header, separator, columns)

    def fill(row: TableRow) -> None:
        number, cells = row
        if len(cells) != len(header) and any(cells[1:]):
            raise UserError(
                f"{key}: line {number} of {file} has {amount(len(cells), 'cell')}, but the header has {len(header)}. "
                f"Put cells that contain {separator!r} in double quotes."
            )
        cells[len(cells) :] = [""] * (len(header) - len(cells))

    for_each(fill, rows)
    return header, rows
