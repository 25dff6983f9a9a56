"""What is known of a data set, as text for the terminal."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from augment.info.duplicates import Tally
from augment.info.summary import SPLITS, Info
from augment.info.wording import Finding, written
from augment.wording import amount

LISTED = 24  # classes that are all listed; of more the largest and the smallest
_ENDS = 8
_FILES = 10  # files that are named
_WIDEST = 40  # letters of a class's name

T = TypeVar("T")

_NOUNS = {"classify": ("class", "classes"), "multilabel": ("label", "labels"), "regress": ("number", "numbers")}


def report(info: Info, findings: Sequence[Finding]) -> str:
    """Return all figures, then what looks wrong."""
    lines = [headline(info), "", *_table(info), "", *_figures(info), ""]
    if info.folder and (info.found.faults or info.copies.groups or info.pairs):
        lines += [f"below {info.folder}"]
    bad = sorted(info.found.faults.items())
    lines += _named("cannot be used", bad, lambda fault: f"{info.short_name(fault[0])} {fault[1]}")
    lines += _named("the same bytes", info.copies.groups, partial(_together, info))
    lines += _named("look the same", info.pairs, partial(_together, info))
    if findings:
        lines += ["What looks wrong", *(f"  - {finding.text}" for finding in findings)]
    else:
        lines.append("Nothing looks wrong.")
    return "\n".join(lines)


def headline(info: Info) -> str:
    """Return a line about the whole."""
    data = info.data
    train, val = len(data.train), len(data.val)
    kinds = amount(len(data.classes), *_NOUNS[data.task])
    parts = f"{train:,} in train and {val:,} in val ({val / (train + val):.0%})"
    return f"{info.source}: {train + val:,} pictures, {parts}; {kinds}"


def _table(info: Info) -> list[str]:
    if info.data.task == "regress":
        rows = [
            (f"{name} ({split})", *(written(v) for v in (spread.mean, spread.std, spread.min, spread.max)))
            for name, both in info.numbers.items()
            for split, spread in zip(SPLITS, both, strict=True)
        ]
        return _aligned([("", "mean", "std", "min", "max"), *rows])
    order = np.argsort(-info.counts.sum(axis=1), kind="stable").tolist()
    if len(order) <= LISTED:
        order, cut = sorted(order), len(order)
    else:
        order, cut = [*order[:_ENDS], *order[-_ENDS:]], _ENDS
    rows = [(_short(info.data.classes[place]), *(f"{count:,}" for count in info.counts[place])) for place in order]
    lines = _aligned([("", *SPLITS), *rows])
    if cut < len(order):
        lines.insert(1 + cut, f"  ... {len(info.data.classes) - len(order):,} between the largest and the smallest")
    if info.labels_each:
        each = info.labels_each
        mean = sum(labels * count for labels, count in each.items()) / max(sum(each.values()), 1)
        lines += ["", f"labels each  {min(each)}..{max(each)}, mean {mean:.2f}"]
    return lines


def _figures(info: Info) -> Iterator[str]:
    facts = info.found.facts
    yield f"width        {_range(info.quantiles(info.found.width), 'px')}"
    yield f"height       {_range(info.quantiles(info.found.height), 'px')}"
    yield f"short side   {_spread(info.quantiles(info.short_side), 'px')}"
    yield f"aspect       {_spread(info.quantiles(info.aspect), '(width / height)')}"
    sizes = info.quantiles(facts["bytes"] / 1000)
    yield f"file size    {_range(sizes, 'kB')}; {facts['bytes'].sum() / 1e6:,.1f} MB in all"
    yield f"formats      {_listed(info.frequent(facts['format']))}; {_listed(info.frequent(info.kinds))}"
    turned = int((facts["orientation"] > 1).sum())
    yield f"EXIF         {f'{turned:,} turned' if turned else 'none turned'}"
    yield f"unreadable   {f'{len(info.found.faults):,}' if info.found.faults else 'none'}"
    yield f"duplicates   {_tallied(info.exact)}"
    more = "" if info.copies.all_compared else "; there are too many to look at all"
    yield f"look alike   {_tallied(info.near)}{more}"


def _range(q: Mapping[str, float], unit: str) -> str:
    return f"{_ends(q)} {unit}" + (f", median {written(q['median'])}" if q["max"] > q["min"] else "") if q else "-"


def _spread(q: Mapping[str, float], unit: str) -> str:
    if not q:
        return "-"
    inner = ", ".join(f"{name} {written(q[name])}" for name in ("1%", "10%", "median", "90%", "99%"))
    return f"{_ends(q)} {unit}" + (f": {inner}" if q["max"] > q["min"] else "")


def _ends(q: Mapping[str, float]) -> str:
    return f"{written(q['min'])}..{written(q['max'])}" if q["max"] > q["min"] else written(q["min"])


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "-"


def _tallied(counted: Tally) -> str:
    parts = {"within train": counted.train, "within val": counted.val, "of val in train": counted.leaked}
    return ", ".join(f"{count:,} {name}" for name, count in parts.items() if count) or "none"


def _together(info: Info, places: Sequence[int]) -> str:
    shown = [f"{info.short_name(place)} ({info.split_of(place)})" for place in places[:3]]
    return " = ".join(shown) + (f" and {len(places) - 3:,} more" if len(places) > 3 else "")


def _named(title: str, things: Sequence[T], say: Callable[[T], str]) -> list[str]:
    if not things:
        return []
    more = [f"  and {len(things) - _FILES:,} more"] if len(things) > _FILES else []
    return [title, *(f"  {say(thing)}" for thing in things[:_FILES]), *more, ""]


def _short(name: str) -> str:
    return name if len(name) <= _WIDEST else f"{name[: _WIDEST - 1]}…"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(max(w, 6)) for cell, w in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
