"""Write verdicts as sentences for readers who know their metric but not statistics. Print and format tables."""

import math
from collections.abc import Iterable

from rich import table as rich
from rich.console import Console
from rich.text import Text

from augment.support.formatting import amount, clip, encodable, list_some, markdown, one_line, printable
from augment.support.nested import grouped
from trainer.sweeps.verdict import MANY, Difference, Metric, Replicates

# A title, and the rows of a table. The first row holds the column names.
Table = tuple[str, list[list[str]]]

# A table, or lines.
Part = Table | list[str]

# Columns that are aligned to the left.
_LEFT_ALIGNED = ("job", "varied settings", "status", "configuration")

_MAX_CELL = 1000  # characters, because rich takes a minute for some megabytes

# The number of seeds or folds to suggest without any other hint.
_SUGGESTED = 5


def verdict(found: Difference | None, other: Replicates, baseline: Replicates, metric: Metric, detect: float) -> str:
    """Describe a difference that `trainer.sweeps.verdict.compare` found. The text ends without a period."""
    if found is None:
        return _too_few(other, baseline)
    unit, (ours, theirs) = found.unit, found.counts
    counts = amount(ours, unit) if ours == theirs else f"{ours} and {amount(theirs, unit)}"
    better = "better" if (found.mean < 0) == metric.smaller else "worse"
    if found.interval is None:
        if len({*other.samples, *baseline.samples}) == 1:
            return (
                f"every run has the same score ({counts}). Perhaps no model has learned anything yet, or all reach the "
                "best possible score"
            )
        if abs(found.mean) < 1e-12:
            return f"the same scores as the baseline ({counts}), so the change had no effect"
        by = format_difference(metric, abs(found.mean))
        return (
            f"{better} by {by} in each of {counts}. Without any variation, chance cannot be estimated. Run more {unit}s"
        )
    digits = _digits(metric, found)
    sign = -1 if found.beyond_chance and found.mean < 0 else 1
    bounds = sorted(sign * bound for bound in found.interval)
    low, high = (format_number(metric, bound, digits) for bound in bounds)
    corrected = "corrected " if found.tests > 1 else ""
    each = " each" if ours == theirs else ""
    paired = ", paired" if found.paired else each
    facts = f"95% interval {low} to {high}, {corrected}{p_value(found.corrected)}, {counts}{paired}"
    if found.beyond_chance:
        return f"{better} by {format_difference(metric, abs(found.mean), digits)} ({facts})"
    facts = f"{format_signed(found, metric)}, {facts}"
    if found.least:
        why = f" With so few {unit}s, a few diverging runs would often explain the difference."
        remedy = f"Run at least {amount(found.least, unit)} of each"
        return f"no verdict is possible ({facts}).{why if found.significant else ''} {remedy}"
    return f"no difference beyond chance ({facts}){_more(found, metric, detect)}"


def _more(found: Difference, metric: Metric, detect: float) -> str:
    """Return a sentence on how many more seeds or folds would show a difference."""
    if found.needed is None:
        return ""
    digits = _digits(metric, found) if abs(found.mean) > detect else None
    by, unit = format_difference(metric, found.sought(detect), digits), found.unit
    more = found.needed - min(found.counts)
    if more <= 0:
        return f". A difference of {by} would probably have been detected"
    if found.needed >= MANY:
        return f". Detecting {by} needs more than {MANY:,} {unit}s"
    about = round(more, 1 - math.floor(math.log10(more)))  # the spread is not known more precisely
    each = "" if found.paired else " of each"
    return f". Detecting {by} needs about {amount(about, f'more {unit}')}{each}"


def _too_few(other: Replicates, baseline: Replicates) -> str:
    """Return the verdict on a single seed or fold, and which ones to add."""
    few = [one for one in (other, baseline) if len(one.samples) < 2]
    where = ""
    if baseline in few:
        where = " for the baseline" if len(few) == 1 else " here and for the baseline"
    scores = max((other, baseline), key=lambda one: len(one.samples)).scores
    by_fold = len({fold for _, fold in scores}) > 1
    setting, unit, part = ("data.fold", "fold", 1) if by_fold else ("seed", "seed", 0)
    had = {key[part] for one in few for key in one.scores}
    # Suggest the seeds or folds of the other side, so that the runs can be paired.
    wanted = [key[part] for key in scores] if len(scores) > 2 else map(str, range(_SUGGESTED))
    missing = dict.fromkeys(value for value in wanted if value not in had)
    values = ",".join(list(missing)[:_SUGGESTED])
    return f"one {unit}{where}, which cannot rule out chance. Also run {setting}={values}"


def format_difference(metric: Metric, value: float, digits: int | None = None, *, sign: bool = False) -> str:
    """Format a difference with its unit. Scores in [0, 1] differ in points, which are hundredths."""
    text = format_number(metric, value, digits)
    if sign and not text.startswith("-"):
        text = f"+{text}"
    if not metric.share:
        return text
    return f"{text} point" if text in ("1", "1.0") else f"{text} points"


def format_score(metric: Metric, value: float, like: float | None = None) -> str:
    """Format a score with four decimals, or with more if it is small.

    A spread of scores gets as many decimals as the score `like`.
    """
    size = abs(value if like is None else like)
    small = not metric.share and 0 < size < 0.01
    decimals = 3 - math.floor(math.log10(size)) if small else 4
    return f"{value:.{decimals}f}"


def format_signed(found: Difference, metric: Metric) -> str:
    """Format a difference from a baseline with its sign and its significant digits."""
    return format_difference(metric, found.mean, _digits(metric, found), sign=True)


def format_number(metric: Metric, value: float, digits: int | None) -> str:
    """Format a difference without its unit, with `digits` decimals. None: three significant digits."""
    form = ".3g" if digits is None else f".{digits}f"
    text = format(value * (100 if metric.share else 1), form)
    is_zero = not text.strip("-0.")
    return text.lstrip("-") if is_zero else text  # never -0.0


def p_value(p: float | None) -> str:
    """Format a p-value as "p = .003". None becomes an empty string."""
    if p is None:
        return ""
    if p < 0.001:
        return "p < .001"
    text = f"{p:.2f}" if p >= 0.1 else f"{p:.3f}"
    return f"p = {text.lstrip('0') if p < 0.995 else '1'}"


def left_out(runs: Iterable[tuple[str, str]]) -> str:
    """Return a sentence on the runs that do not count, given their names and reasons. Empty without such runs."""
    by_reason = grouped((reason, name) for name, reason in runs)
    reasons = (f"{reason} ({list_some(names)})" for reason, names in by_reason.items())
    return f"Left out: {'; '.join(reasons)}." if by_reason else ""


def _digits(metric: Metric, found: Difference) -> int | None:
    """Return the number of significant decimals of a difference. None without an interval."""
    if found.interval is None:
        return None
    half = (found.interval[1] - found.interval[0]) * (100 if metric.share else 1) / 2
    least = -math.floor(math.log10(half))
    return max(1, least) if metric.share else max(0, 1 + least)


def present(console: Console, *parts: Part) -> None:
    """Print tables and lines. A line is not wrapped."""
    for part in parts:
        if isinstance(part, tuple):
            _print_table(console, part)
        else:
            for line in part:
                console.print(Text(one_line(line)), highlight=False, soft_wrap=True)


def _print_table(console: Console, table: Table) -> None:
    title, rows = table
    printed = rich.Table(title=title, title_justify="left")
    for name in rows[0]:
        printed.add_column(name, justify="left" if name in _LEFT_ALIGNED else "right", overflow="fold")
    for row in rows[1:]:
        cells = (printable(encodable(clip(cell, _MAX_CELL))) for cell in row)
        printed.add_row(*map(Text, cells))  # rich would parse brackets in a str as markup
    console.print(printed)


def markdown_page(*parts: Part) -> str:
    """Format tables and lines as Markdown. The first of several lines becomes a paragraph, the others a list."""
    return "\n".join(map(_markdown_part, parts))


def _markdown_part(part: Part) -> str:
    if isinstance(part, tuple):
        title, (head, *body) = part
        align = ["---" if name in _LEFT_ALIGNED else "---:" for name in head]
        cells = [[markdown(cell) for cell in row] for row in body]
        return f"{title}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in (head, align, *cells))
    first, *rest = map(markdown, part)
    return "\n".join([first, *([""] if rest else []), *(f"- {line}" for line in rest)]) + "\n"
