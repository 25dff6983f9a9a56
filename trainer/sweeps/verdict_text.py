"""Verdicts in words, for people who know their metric but not statistics; and tables and lines, which they read."""

import math
import re
from collections.abc import Iterable

from rich import table as rich
from rich.console import Console
from rich.text import Text

from augment.support.formatting import amount, as_bytes, list_some, printable
from augment.support.nested import grouped
from trainer.sweeps.verdict import MANY, Difference, Metric, Replicates

# A title, and the rows of a table, of which the first one holds the names of its columns.
Table = tuple[str, list[list[str]]]

# A part of what is printed and written: a table, or lines.
Part = Table | list[str]

# The beginning of a tag.
_TAG = re.compile(r"<(?=[A-Za-z/!?])")

# Columns that are aligned to the left.
_WORDS = ("job", "what it varies", "status", "configuration")

# How many seeds or folds a comparison should have, where nothing else is known.
_ENOUGH = 5


def verdict(found: Difference | None, other: Replicates, baseline: Replicates, metric: Metric, detect: float) -> str:
    """Return what a difference means that `trainer.sweeps.verdict.compare` found, without the configuration's name."""
    if found is None:
        return _too_few(other, baseline)
    unit, (ours, theirs) = found.unit, found.counts
    counts = amount(ours, unit) if ours == theirs else f"{ours} and {amount(theirs, unit)}"
    better = (found.mean < 0) == metric.smaller
    if found.interval is None or found.p is None:
        if len({*other.samples, *baseline.samples}) == 1:
            return (
                f"the same score in every run ({counts}), which says nothing about what was changed: perhaps no model "
                "has learned anything yet, or none can do better"
            )
        if abs(found.mean) < 1e-12:
            return f"the same scores as the baseline ({counts}): what was changed had no effect on them"
        by = size(metric, abs(found.mean))
        return (
            f"{'better' if better else 'worse'} by {by} in each of {counts}, without any spread to judge chance by; "
            f"run more {unit}s"
        )
    sign = -1 if found.beyond_chance and found.mean < 0 else 1
    low, high = sorted(sign * bound for bound in found.interval)
    digits = _digits(metric, found)
    about = f"95% interval {number(metric, low, digits)} to {number(metric, high, digits)}"
    p = f"{'corrected ' if found.tests > 1 else ''}{p_value(found.corrected)}"
    paired = ", paired" if found.paired else "" if ours != theirs else " each"
    if found.beyond_chance:
        by = size(metric, abs(found.mean), digits)
        return f"{'better' if better else 'worse'} by {by} ({about}, {p}, {counts}{paired})"
    details = f"{signed(found, metric)}, {about}, {p}, {counts}{paired}"
    if found.significant:
        return (
            f"no verdict is possible ({details}): if runs end in one of two modes or diverge, chance often explains it "
            f"with so few {unit}s; run at least {amount(found.least, unit)} of each"
        )
    return f"no difference beyond chance ({details}){_more(found, metric, detect)}"


def _more(found: Difference, metric: Metric, detect: float) -> str:
    """Return how many more seeds or folds would show a difference."""
    if found.needed is None:
        return ""
    of, unit = size(metric, detect), found.unit
    more, each = found.needed - min(found.counts), "" if found.paired else " of each"
    if more <= 0:
        return f"; a difference of {of} would probably have been seen"
    if found.needed >= MANY:
        return f"; more than {MANY:,} {unit}s would be needed to detect {of}"
    about = round(more, 1 - math.floor(math.log10(more)))  # the spread is not known any better
    return f"; about {amount(about, f'more {unit}')}{each} would be needed to detect {of}"


def _too_few(other: Replicates, baseline: Replicates) -> str:
    """Return that one seed tells nothing, and what to run."""
    few = [one for one in (other, baseline) if len(one.samples) < 2]
    where = " here and for the baseline" if len(few) == 2 else " for the baseline" if few == [baseline] else ""
    rest = max((other, baseline), key=lambda one: len(one.samples)).scores
    by_fold = len({fold for _, fold in rest}) > 1
    had = {key[by_fold] for one in few for key in one.scores}
    known = [key[by_fold] for key in rest] if len(rest) > 2 else map(str, range(_ENOUGH))
    missing = dict.fromkeys(value for value in known if value not in had)
    setting, unit = ("data.fold", "fold") if by_fold else ("seed", "seed")
    values = ",".join(list(missing)[:_ENOUGH])
    return f"one {unit}{where}, which says nothing about chance; run {setting}={values} as well"


def size(metric: Metric, value: float, digits: int | None = None, *, sign: bool = False) -> str:
    """Return a difference of scores with its unit: points, hundredths of 1, for scores in [0, 1]."""
    text = number(metric, value, digits)
    text = f"+{text}" if sign and not text.startswith("-") else text
    return text + (f" point{'' if text in ('1', '1.0') else 's'}" if metric.share else "")


def score(metric: Metric, value: float, like: float | None = None) -> str:
    """Return a score, or a spread of scores `like` another one, with four decimals, or more if it is small."""
    size = abs(value if like is None else like)
    small = not metric.share and 0 < size < 0.01
    return f"{value:.{3 - math.floor(math.log10(size)) if small else 4}f}"


def signed(found: Difference, metric: Metric) -> str:
    """Return a difference to a baseline with its sign, as precisely as it is known."""
    return size(metric, found.mean, _digits(metric, found), sign=True)


def number(metric: Metric, value: float, digits: int | None) -> str:
    """Return a difference of scores without its unit; with three digits if the number of decimals is None."""
    text = f"{value * (100 if metric.share else 1):{'.3g' if digits is None else f'.{digits}f'}}"
    return text.lstrip("-") if not text.strip("-0.") else text  # no -0.0


def p_value(p: float | None) -> str:
    """Return a p-value as "p = .003"; empty for None."""
    if p is None:
        return ""
    if p < 0.001:
        return "p < .001"
    text = f"{p:.2f}" if p >= 0.1 else f"{p:.3f}"
    return f"p = {text.lstrip('0') if p < 0.995 else '1'}"


def left_out(runs: Iterable[tuple[str, str]]) -> str:
    """Return why runs do not count, given the name and the reason of each; empty if there are none."""
    by_reason = grouped((reason, name) for name, reason in runs)
    reasons = (f"{reason} ({list_some(names)})" for reason, names in by_reason.items())
    return f"Left out: {'; '.join(reasons)}." if by_reason else ""


def _digits(metric: Metric, found: Difference) -> int | None:
    """Return the decimals that a difference deserves; None without an interval."""
    if found.interval is None:
        return None
    half = (found.interval[1] - found.interval[0]) * (100 if metric.share else 1) / 2
    least = -math.floor(math.log10(half))
    return max(1, least) if metric.share else max(0, 1 + least)


def present(console: Console, *parts: Part) -> None:
    """Print tables, and lines as they are, each in one line if the console is wide enough."""
    for part in parts:
        if isinstance(part, tuple):
            _print_table(console, part)
        else:
            for line in part:
                console.print(Text(_one_line(line)), highlight=False, soft_wrap=True)


def _print_table(console: Console, table: Table) -> None:
    title, rows = table
    shown = rich.Table(title=title, title_justify="left")
    for name in rows[0]:
        shown.add_column(name, justify="left" if name in _WORDS else "right", overflow="fold")
    for row in rows[1:]:
        shown.add_row(*(Text(_safe(cell)) for cell in row))  # brackets are no markup here
    console.print(shown)


def markdown_page(*parts: Part) -> str:
    """Return tables and lines in Markdown, of lines the first one as a paragraph and the others as a list."""
    return "\n".join(map(_markdown_part, parts))


def _markdown_part(part: Part) -> str:
    if isinstance(part, tuple):
        title, (head, *body) = part
        align = ["---" if name in _WORDS else "---:" for name in head]
        rows = (head, align, *([markdown(cell) for cell in row] for row in body))
        return f"{title}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)
    first, *rest = map(markdown, part)
    return "\n".join([first, *([""] if rest else []), *(f"- {line}" for line in rest)]) + "\n"


def markdown(text: str) -> str:
    """Return a text that Markdown shows as it is: without cells, tags and links of its own."""
    return _TAG.sub("&lt;", _one_line(text)).replace("|", r"\|").replace("](", r"]\(")


def _one_line(text: str) -> str:
    return " ".join(_safe(text).split("\n"))


def _safe(text: str) -> str:
    """Return a text without control characters, and without halves of surrogate pairs, which JSON allows."""
    return printable(as_bytes(text).decode(errors="replace"))
