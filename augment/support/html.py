"""HTML for notebooks."""

from collections.abc import Iterable, Sequence
from html import escape


def html_table(head: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "", last: str = "") -> str:
    """Return a table with its texts escaped: a title above it, and a line below."""
    caption = f"<caption style='text-align:left;caption-side:top'><b>{escape(title)}</b></caption>" if title else ""
    names = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in head)
    cells = ("".join(f"<td style='text-align:left'>{escape(str(cell))}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    foot = f"<tr><td colspan='{len(head)}' style='text-align:left'>{escape(last)}</td></tr>" if last else ""
    return f"<table>{caption}<tr>{names}</tr>{body}{foot}</table>"
