"""Format counts, percentages, times, numbers and lists of names for sentences, and HTML tables for notebooks."""

import re
import sys
from codecs import lookup
from collections.abc import Iterable, Sequence
from html import escape
from io import TextIOWrapper
from unicodedata import category

# Spreadsheets run text as a formula at the start of a cell or after a separator, unless an apostrophe precedes it.
# The pattern includes the variants of =, +, - and @ on East Asian keyboards.
_FORMULA = r"(?:^|(?<=[;,|\t\r\n])){0}(?=[\s\"']{{0,9}}[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r])"
_START_OF_FORMULA, _APOSTROPHE = re.compile(_FORMULA.format("")), re.compile(_FORMULA.format("'"))

# Unicode categories of characters that are invisible, move a terminal's cursor or reverse the text direction.
_UNSEEN = ("Cc", "Cf", "Zl", "Zp")

# Half of a surrogate pair, which cannot be encoded. The halves that Python uses for bytes of file names are excluded.
_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")

# The beginning of a tag.
_TAG = re.compile(r"<(?=[A-Za-z/!?])")


def amount(count: int, one: str, several: str = "") -> str:
    """Return a count with its noun, such as "1 class" or "2,000 classes". See `plural`."""
    return f"{count:,} {plural(count, one, several)}"


def plural(count: int, one: str, several: str = "") -> str:
    """Return the singular or the plural of a word. By default, the plural adds s or es."""
    if count == 1:
        return one
    ending = "es" if one.endswith(("ss", "x", "tch", "sh")) else "s"
    return several or one + ending


def percent(share: float, digits: int = 0) -> str:
    """Return a share as a percentage. A share below 1 is never rounded to 100%."""
    if share < 1 and round(100 * share, digits) == 100:
        return f"{100 - 10.0**-digits:.{digits}f}%" if digits else "above 99%"
    return f"{100 * share:.{digits}f}%"


def duration(seconds: float) -> str:
    """Return a time as "2 h 5 min", "5 min 3 s" or "3 s"."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def short_number(value: float) -> str:
    """Return a number with three significant digits. Numbers of at least 100 are rounded to whole numbers."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table_cell(text: object) -> str:
    """Return a name as a CSV cell. An apostrophe prevents spreadsheets from running the name as a formula."""
    return _START_OF_FORMULA.sub("'", str(text))


def from_table_cell(cell: str) -> str:
    """Return the name in a cell that `table_cell` wrote."""
    return _APOSTROPHE.sub("", cell)


def as_bytes(text: str) -> bytes:
    """Encode a string as UTF-8. File names that are not UTF-8 keep their bytes."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON allows
        return text.encode(errors="replace")


def make_stdout_lenient() -> None:
    """Make stdout print every file name, even if the name is not UTF-8 or stdout's encoding lacks a character."""
    if isinstance(sys.stdout, TextIOWrapper):
        is_utf8 = lookup(sys.stdout.encoding).name == "utf-8"
        sys.stdout.reconfigure(errors="surrogateescape" if is_utf8 else "replace")


def printable(text: str) -> str:
    """Replace control characters and invisible characters with question marks, for terminals."""
    if text.isprintable():
        return text
    text = _SURROGATE.sub("?", text)
    return "".join("?" if category(char) in _UNSEEN and char not in "\n\t" else char for char in text)


def encodable(text: str) -> str:
    """Replace bytes that are not UTF-8, and unpaired surrogates, with placeholders. JSON allows such surrogates."""
    return as_bytes(text).decode(errors="replace")


def one_line(text: str) -> str:
    """Return a name as a single line without control characters, for terminals and UTF-8 files."""
    return " ".join(printable(encodable(text)).split("\n"))


def markdown(text: str) -> str:
    """Escape a string so that Markdown shows it unchanged, without new cells, tags or links."""
    return _TAG.sub("&lt;", one_line(text)).replace("|", r"\|").replace("](", r"]\(")


def clip(text: str, most: int) -> str:
    """Shorten a string to a maximum number of characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def list_some(names: Iterable[str], most: int = 5, separator: str = ", ") -> str:
    """Return the first names and the number of further names, such as "a, b, c and 5 more"."""
    listed = list(names)
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return separator.join(listed[:most]) + more


def html_table(head: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "", last: str = "") -> str:
    """Return an HTML table with escaped strings, a title above it, and a line below it."""
    caption = f"<caption style='text-align:left;caption-side:top'><b>{escape(title)}</b></caption>" if title else ""
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    foot = f"<tr><td colspan='{len(head)}' style='text-align:left'>{escape(last)}</td></tr>" if last else ""
    return f"<table>{caption}<tr>{_cells('th', head)}</tr>{body}{foot}</table>"


def _cells(tag: str, cells: Iterable[object]) -> str:
    return "".join(f"<{tag} style='text-align:left'>{escape(str(cell))}</{tag}>" for cell in cells)
