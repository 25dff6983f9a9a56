"""The `filelist` source: lists of pictures with a class, several labels or numbers each, as text or CSV.

Reading a list is one idea, saying what its words mean the other: `read_list` returns rows of words with their line
numbers, `augment.targets.lists` turns the words of both lists into targets.
"""

import csv
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from augment.errors import UserError, suggest
from augment.files import near_file
from augment.folder import EXTENSIONS

# Endings of lists that are CSV with a header; all others are lines of words.
SEPARATORS = {".csv": ",", ".tsv": "\t"}

# Between several labels in one cell of a CSV.
LABELS_SEPARATOR = ";"

_FLAGS = ("0", "1", "0.0", "1.0")


@dataclass(frozen=True)
class Line:
    """A line of a list.

    Attributes:
        number: in the file, from 1.
        path: of the picture, as written.
        words: its labels or numbers, as written.
    """

    number: int
    path: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Lines:
    """A list as it was read.

    Attributes:
        key: of the setting that names the file.
        file: the list.
        lines: what it holds, at least one.
        columns: names of the columns that the words come from, where each has one of its own.
        flags: names of the columns that hold nothing but 0 and 1, where the one of the words is among them, as the
            first, and was chosen for its place alone.
        placed: the column that the words come from, if it was chosen for its place alone, and then the columns that
            they could come from as well.
    """

    key: str
    file: Path
    lines: tuple[Line, ...]
    columns: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    placed: tuple[str, ...] = ()

    def error(self, line: Line, text: str) -> UserError:
        """Return an error that says where."""
        return UserError(f"{self.key}: line {line.number} of {self.file}: {text}")


def read_list(key: str, file: Path, *, image: str | None, label: str | None, targets: Sequence[str]) -> Lines:
    """Read a list.

    A line of text is a path and what belongs to it, separated by blanks; quotes as in a shell, # begins a comment. CSV
    has a header; several labels in a cell are separated by a semicolon.

    Args:
        key: of the setting that names the file.
        file: the list; CSV by its ending, see `SEPARATORS`.
        image: column of the path; None: "path", or the first one.
        label: column of the labels; None: "label", or the second one.
        targets: columns of numbers or of 0 and 1, in place of `label`; empty: none.

    Raises:
        UserError: there is no such file, it is empty or not as it should be.
    """
    if file.is_dir() or not file.exists():
        what = f"{file} is a folder." if file.is_dir() else f"there is no file {file}.{near_file(file)}"
        raise UserError(f"{key}: {what} Allowed: a list of pictures, as text or CSV.")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{key}: {file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{key}: {file} is no text in UTF-8 (byte {error.start}). Save it as such.") from None
    columns = tuple(targets)
    if twice := [name for name in columns if columns.count(name) > 1]:
        raise UserError(f"data.targets: '{twice[0]}' is there twice. Allowed: each column once.")
    flags: tuple[str, ...] = ()
    placed: tuple[str, ...] = ()
    separator = SEPARATORS.get(file.suffix.lower())
    if separator is None:
        if image or label or targets:
            raise UserError(
                f"{key}: {file} has no columns to choose. Allowed with data.image, data.label or data.targets: "
                f"files that end in {' or '.join(SEPARATORS)}."
            )
        lines = tuple(_text_lines(key, file, text))
    else:
        lines, flags, placed = _csv_lines(key, file, text, separator, image=image, label=label, targets=columns)
    if not lines:
        raise UserError(f"{key}: {file} lists no pictures.")
    return Lines(key, file, lines, columns, flags, placed)


def _text_lines(key: str, file: Path, text: str) -> Iterator[Line]:
    for number, line in enumerate(text.splitlines(), 1):
        try:
            words = _words(line)
        except ValueError as error:
            raise UserError(
                f"{key}: line {number} of {file}: {error}; a quote in a name is put in other quotes."
            ) from None
        if words:
            yield Line(number, words[0], tuple(words[1:]))


def _words(line: str) -> list[str]:
    """Split a line as a shell does: # begins a comment where a word begins, and is any letter within one."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    return list(takewhile(lambda word: not word.startswith("#"), lexer))


def _csv_lines(
    key: str, file: Path, text: str, separator: str, *, image: str | None, label: str | None, targets: tuple[str, ...]
) -> tuple[tuple[Line, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the lines, `Lines.flags` and `Lines.placed`."""
    reader = csv.reader(text.splitlines(keepends=True), delimiter=separator, skipinitialspace=True)
    header = [name.strip() for name in next(reader, [])]
    if len(header) < 2:
        other = next((c for c in (";", "\t", ",", "|") if c in "".join(header)), None)
        hint = f" Its first line has {other!r} in it, but columns are separated by {separator!r}." if other else ""
        raise UserError(f"{key}: {file} has no header with two columns or more, as path{separator}label.{hint}")
    place = _column(key, file, header, "data.image", image, "path", 0)
    if Path(header[place]).suffix.lower() in EXTENSIONS:
        raise UserError(
            f"{key}: line 1 of {file} is a picture, {header[place]}. Allowed: a header, as path{separator}label."
        )
    names = targets or (label,)
    default = 1 if place == 0 else 0
    setting = "data.targets" if targets else "data.label"
    places = [_column(key, file, header, setting, name, "label", default) for name in names]
    by_place = not (targets or label or "label" in header)
    flags = list(range(places[0], len(header))) if by_place else []
    placed = [header[places[0]], *(n for i, n in enumerate(header) if i not in (place, places[0]))] if by_place else []
    lines = []
    for row in reader:
        if not any(cell.strip() for cell in row):
            continue
        if len(row) != len(header):
            raise UserError(
                f"{key}: line {reader.line_num} of {file}: {len(row)} cells, but the header has {len(header)}; "
                "a cell with a comma in it is put in double quotes."
            )
        cells = [row[i].strip() for i in places]
        words = cells if targets else [word.strip() for word in cells[0].split(LABELS_SEPARATOR)]
        lines.append(Line(reader.line_num, row[place].strip(), tuple(words if targets else filter(None, words))))
        flags = [i for i in flags if row[i].strip() in _FLAGS]
    return tuple(lines), tuple(header[i] for i in flags) if places[0] in flags else (), tuple(placed)


def _column(key: str, file: Path, header: list[str], setting: str, name: str | None, usual: str, default: int) -> int:
    if name is None:
        return header.index(usual) if usual in header else default
    if name not in header:
        raise UserError(f"{setting}: {file} ({key}) has no column '{name}'.{suggest(name, header)}")
    return header.index(name)
