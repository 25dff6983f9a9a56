"""Read the texts and tables that settings name."""

import csv
import os
from collections.abc import Callable, Iterable, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TypeVar

from augment.support.errors import UserError
from augment.support.files import near_file, open_file
from augment.support.formatting import amount

Number = TypeVar("Number")

# A row of a table: the number of its line, from 1, and its cells.
Row = tuple[int, list[str]]


def read_text(key: str, file: Path, allowed: str) -> str:
    """Return the text of a file; `key` is the setting that names it, `allowed` what it should be, for messages.

    Raises:
        UserError: there is no such file, or it is not text in UTF-8.
    """
    try:
        with TextIOWrapper(open_file(file), encoding="utf-8-sig") as stream:
            text = stream.read()
        if "\0" not in text:
            return text
        why = f"has a NUL character in line {text.count(chr(10), 0, text.index(chr(0))) + 1}"
    except FileNotFoundError:
        raise UserError(f"{key}: there is no file {file}.{near_file(file)} Allowed: {allowed}.") from None
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError as error:
        why = f"is not text in UTF-8 (byte {error.start}). Save it as UTF-8"
    raise UserError(f"{key}: {file} {why}. Allowed: {allowed}.")


def whole_number(text: str, otherwise: Number) -> int | Number:
    """Return the whole number that text spells, if a number is written just so, unlike 007; else something else."""
    digits = text.removeprefix("-")
    plain = digits.isascii() and digits.isdecimal() and (digits[0] != "0" or text == "0")
    return int(text) if plain and len(text) <= 40 else otherwise  # Python converts none of more than 4,300 digits


def describe_absent(given: Iterable[tuple[str, Sequence[Path], Callable[[int], str]]]) -> tuple[str, ...]:
    """Return what is missing, a message for each setting with its files and what says where one, by index, is named."""
    found = []
    for key, files, where in given:
        if absent := [index for index, file in enumerate(files) if not os.path.exists(file)]:
            first, more = files[absent[0]], f" (and {len(absent) - 1:,} more)" if len(absent) > 1 else ""
            found.append(f"{key}: there is no {first}{more}, {where(absent[0])}.{near_file(first)}")
    return tuple(found)


def read_rows(key: str, file: Path, allowed: str, separator: str = ",") -> list[Row]:
    """Return the rows of a CSV file, without those that are empty; see `read_text`."""
    reader = csv.reader(
        read_text(key, file, allowed).splitlines(keepends=True), delimiter=separator, skipinitialspace=True
    )
    try:
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except csv.Error as error:
        raise UserError(f"{key}: line {reader.line_num} of {file}: {error}.") from None
    return [row for row in rows if any(row[1])]


def read_table(key: str, file: Path, allowed: str, separator: str = ",") -> tuple[list[str], list[Row]]:
    """Return the header of a CSV file and its rows, all as long; of one with its first cell alone, others are empty.

    Raises:
        UserError: see `read_text`; or a row has another number of cells.
    """
    (_, header), *rows = read_rows(key, file, allowed, separator) or [(1, [])]
    for number, cells in rows:
        if len(cells) != len(header) and any(cells[1:]):
            raise UserError(
                f"{key}: line {number} of {file}: {amount(len(cells), 'cell')}, but the header has {len(header)}; a "
                f"cell with a {separator!r} in it is put in double quotes."
            )
        cells[len(cells) :] = [""] * (len(header) - len(cells))
    return header, rows
