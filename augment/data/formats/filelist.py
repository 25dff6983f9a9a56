"""Read lists of images with a class, several labels or numbers each, as text or CSV.

`augment.data.targets.interpretation` converts the words to targets.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from augment.data.formats.folder import EXTENSIONS
from augment.data.formats.text_files import header_error, read_table, read_text
from augment.support.errors import UserError, suggest
from augment.support.formatting import from_table_cell, list_some

# Extensions of CSV lists, which have a header, and their separators. All other lists are lines of words.
SEPARATORS = {".csv": ",", ".tsv": "\t"}

_ALLOWED = "a list of images, as text or CSV"

_MAX_LINE = 65_536  # characters of a line of text. The time to split a word grows with the square of its length


@dataclass(frozen=True)
class Line:
    """A line of a list, with its words as written."""

    number: int  # from 1
    path: str  # of the image
    words: tuple[str, ...]  # labels or numbers of the image


@dataclass(frozen=True)
class Lines:
    """The content of a list."""

    key: str  # the setting that names the file
    file: Path
    lines: tuple[Line, ...]  # at least one
    columns: tuple[str, ...] = ()  # the column of each word, if each word has its own column
    column: str = ""  # the column of all words. Empty: the list has no header, or has `columns`
    hint: str = ""  # a sentence that names the probable column of paths, if `path` does not hold paths

    def describe(self, index: int) -> str:
        """Describe the image with an index, for messages."""
        line = self.lines[index]
        return f"line {line.number} of {self.file}: {line.path}"

    def error(self, line: Line, text: str) -> UserError:
        return UserError(f"{self.key}: line {line.number} of {self.file}: {text}")


def read_image_list(
    key: str, file: Path, *, image: str | None, label: str | None, targets: Sequence[str], label_key: str = "data.label"
) -> Lines:
    """Read a list: CSV if it has an extension in `SEPARATORS`, otherwise text.

    A line of text holds a path and its labels, separated by spaces. Quotes work as in a shell, and # begins a comment.
    CSV has a header and a column of paths. Another column holds labels, separated by semicolons. Instead, several
    columns may hold numbers, or 0 and 1.

    Args:
        key: the setting that names the list, for messages.
        file: the list.
        image: the column of paths. Default: "path", or the first column.
        label: the column of labels. Default: "label", or, in a list of two columns, the column without paths.
        targets: the columns of numbers, instead of `label`.
        label_key: the setting that names the column of labels, for messages.

    Raises:
        UserError: the file is missing, empty or malformed.
    """
    columns = tuple(targets)
    if len(set(columns)) < len(columns):
        raise UserError(f"data.targets: {', '.join(columns)}. List each column once.")
    separator = SEPARATORS.get(file.suffix.lower())
    if separator is None:
        if image or label or targets:
            raise UserError(
                f"{key}: {file} is not a CSV file and has no columns. Remove data.image, data.label and data.targets, "
                f"or use a file with the extension {' or '.join(SEPARATORS)}."
            )
        found = Lines(key, file, tuple(_text_lines(key, file, read_text(key, file, _ALLOWED))))
    else:
        found = _read_csv(key, file, separator, image, label, columns, label_key)
    if not found.lines:
        raise UserError(f"{key}: {file} lists no images.")
    return found


def _text_lines(key: str, file: Path, text: str) -> Iterator[Line]:
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > _MAX_LINE:
            raise UserError(
                f"{key}: line {number} of {file} has {len(line):,} characters. The limit is {_MAX_LINE:,}. Use CSV."
            )
        lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
        # As in a shell, # begins a comment only at the start of a word.
        lexer.whitespace_split, lexer.commenters = True, ""
        try:
            words = list(takewhile(lambda word: not word.startswith("#"), lexer))
        except ValueError as error:
            raise UserError(
                f"{key}: line {number} of {file}: {error}. Put a name that contains a quote into quotes of the other "
                "kind."
            ) from None
        if words:
            yield Line(number, words[0], tuple(words[1:]))


def _read_csv(
    key: str, file: Path, separator: str, image: str | None, label: str | None, targets: tuple[str, ...], label_key: str
) -> Lines:
    header, rows = read_table(key, file, _ALLOWED, separator)
    header = list(map(from_table_cell, header))
    path_column = _column(key, file, header, "data.image", image, "path", 0)
    if any(Path(name).suffix.lower() in EXTENSIONS for name in header):
        raise header_error(key, file, header, separator)
    names = targets or (label,)
    default = 1 if path_column == 0 else 0
    setting = "data.targets" if targets else label_key
    columns = [_column(key, file, header, setting, name, "label", default) for name in names]
    first = rows[0][1] if rows else header
    suffixes = [Path(cell).suffix.lower() in EXTENSIONS for cell in first]
    paths, hint = path_column, ""
    if image is None and not suffixes[path_column] and any(suffixes):
        paths = suffixes.index(True)
        hint = f" If column '{header[paths]}' holds the paths of the images, set data.image={header[paths]}."
    if not (targets or label or "label" in header) and len(header) > 2:
        others = list_some(name for index, name in enumerate(header) if index != paths)
        raise UserError(
            f"{key}: {file} has no column 'label'. Set data.label=NAME for a class, data.targets=[NAME,...] for "
            "numbers, or data.targets=[NAME,...] data.multilabel=true for columns of 0 and 1. Allowed names: "
            f"{others}.{hint}"
        )
    lines = []
    for number, row in rows:
        cells = [from_table_cell(row[i]) for i in columns]
        words = cells if targets else filter(None, (word.strip() for word in cells[0].split(";")))
        lines.append(Line(number, from_table_cell(row[path_column]), tuple(words)))
    return Lines(key, file, tuple(lines), targets, "" if targets else header[columns[0]], hint)


def _column(key: str, file: Path, header: list[str], setting: str, name: str | None, usual: str, default: int) -> int:
    if name is not None and name not in header:
        raise UserError(f"{setting}: {file} ({key}) has no column '{name}'.{suggest(name, header)}")
    name = name or usual
    if header.count(name) > 1:
        raise UserError(f"{setting}: {file} ({key}) has {header.count(name)} columns '{name}'. Rename the others.")
    return header.index(name) if name in header else default
