"""Show tables and lines about runs, whose names may be a stranger's: on the terminal and in Markdown."""

import re
from collections.abc import Sequence

from rich import table as rich
from rich.console import Console
from rich.text import Text

from augment.support.text import as_bytes, printable

# A title, and the rows of a table, of which the first one holds the names of its columns.
Table = tuple[str, list[list[str]]]

# The beginning of a tag.
_TAG = re.compile(r"<(?=[A-Za-z/!?])")

# Columns that are aligned to the left.
_WORDS = ("job", "what it varies", "status", "configuration")


def print_table(console: Console, table: Table) -> None:
    """Print a table."""
    title, rows = table
    shown = rich.Table(title=title, title_justify="left")
    for name in rows[0]:
        shown.add_column(name, justify="left" if name in _WORDS else "right", overflow="fold")
    for row in rows[1:]:
        shown.add_row(*(Text(_safe(cell)) for cell in row))  # brackets are no markup here
    console.print(shown)


def print_lines(console: Console, lines: Sequence[str]) -> None:
    """Print lines as they are, each in one line if the console is wide enough."""
    for line in lines:
        console.print(Text(_one_line(line)), highlight=False, soft_wrap=True)


def markdown_table(table: Table) -> str:
    """Return a table in Markdown."""
    title, (head, *body) = table
    align = ["---" if name in _WORDS else "---:" for name in head]
    rows = (head, align, *([markdown(cell) for cell in row] for row in body))
    return f"{title}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def markdown_lines(lines: Sequence[str]) -> str:
    """Return lines in Markdown, the first one as a paragraph and the others as a list."""
    first, *rest = map(markdown, lines)
    return "\n".join([first, *([""] if rest else []), *(f"- {line}" for line in rest)]) + "\n"


def markdown(text: str) -> str:
    """Return a text that Markdown shows as it is: without cells, tags and links of its own."""
    return _TAG.sub("&lt;", _one_line(text)).replace("|", r"\|").replace("](", r"]\(")


def _one_line(text: str) -> str:
    return " ".join(_safe(text).split("\n"))


def _safe(text: str) -> str:
    """Return a text without control characters, and without halves of surrogate pairs, which JSON allows."""
    return printable(as_bytes(text).decode(errors="replace"))
