"""Describe a data set as text for the terminal."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from augment.recipe.steps import SPLITS
from augment.support.text import amount, clip, list_some, short_number
from augment.tools.info.duplicates import Tally
from augment.tools.info.findings import Finding
from augment.tools.info.summary import Info

LISTED = 24  # classes, up to which all are listed; of more, only the largest and smallest
_ENDS = 8
_FILES = 10  # files named per list, at most
_WIDEST = 40  # characters of a class name, at most

_INNER = ("1%", "10%", "median", "90%", "99%")

T = TypeVar("T")


def report(info: Info, findings: Sequence[Finding]) -> str:
    """Return statistics, then findings."""
    lines = [headline(info), "", *_table(info), "", *_figures(info), ""]
    if info.folder and (info.scan.faults or info.copies.groups or info.pairs):
        lines += [f"in {info.folder}"]
    bad = sorted(info.scan.faults.items())
    lines += _named("cannot be used", bad, lambda fault: f"{info.short_name(fault[0])} {fault[1]}")
    lines += _named("the same bytes", info.copies.groups, partial(_together, info))
    lines += _named("look the same", info.pairs, partial(_together, info))
    if findings:
        lines += ["Problems", *(f"  - {finding.text}" for finding in findings)]
    else:
        lines.append("No problems found.")
    return "\n".join(lines)


def headline(info: Info) -> str:
    """Return the number of images and classes in one line."""
    data = info.data
    train, val = len(data.train), len(data.val)
    kinds = amount(len(data.classes), data.noun)
    parts = f"{train:,} in train and {val:,} in val ({val / (train + val):.0%})"
    return f"{info.source}: {amount(train + val, 'image')}, {parts}; {kinds}"


def _table(info: Info) -> list[str]:
    if info.data.task == "regress":
        rows = [
            (f"{name} ({split})", *map(short_number, spread.values()))
            for name, both in info.numbers.items()
            for split, spread in both.items()
        ]
        return _aligned([("", "mean", "std", "min", "max"), *rows])
    order = np.argsort(-info.counts.sum(axis=1), kind="stable").tolist()
    if len(order) <= LISTED:
        order, cut = sorted(order), len(order)
    else:
        order, cut = [*order[:_ENDS], *order[-_ENDS:]], _ENDS
    rows = [
        (clip(info.data.classes[index], _WIDEST), *(f"{count:,}" for count in info.counts[index])) for index in order
    ]
    lines = _aligned([("", *SPLITS), *rows])
    if cut < len(order):
        lines.insert(1 + cut, f"  ... {len(info.data.classes) - len(order):,} between the largest and the smallest")
    if info.labels_each:
        each = info.labels_each
        mean = sum(labels * count for labels, count in each.items()) / max(sum(each.values()), 1)
        lines += ["", f"labels per image  {min(each)}..{max(each)}, mean {mean:.2f}"]
    return lines


def _figures(info: Info) -> list[str]:
    facts, more = info.scan.facts, "" if info.copies.all_compared else "; too many to compare all"
    rotated = int((facts["orientation"] > 1).sum())
    total = f"{facts['bytes'].sum() / 1e6:,.1f} MB in total"
    rows = {
        "width": _spread(info.quantiles(facts["width"]), "px"),
        "height": _spread(info.quantiles(facts["height"]), "px"),
        "short side": _spread(info.quantiles(info.short_side), "px", *_INNER),
        "aspect": _spread(info.quantiles(info.aspect), "(width / height)", *_INNER),
        "file size": f"{_spread(info.quantiles(facts['bytes'] / 1000), 'kB')}; {total}",
        "formats": f"{_listed(info.frequent(facts['format']))}; {_listed(info.frequent(info.modes))}",
        "EXIF": f"{rotated:,} rotated" if rotated else "none rotated",
        "unreadable": f"{len(info.scan.faults):,}" if info.scan.faults else "none",
        "duplicates": _tallied(info.exact),
        "look alike": _tallied(info.near) + more,
    }
    return [f"{name:<13}{value}" for name, value in rows.items()]


def _spread(q: Mapping[str, float], unit: str, *names: str) -> str:
    """Describe quantiles: the extremes, and those of the given names if the extremes differ."""
    if not q or q["max"] == q["min"]:
        return f"{short_number(q['min'])} {unit}" if q else "-"
    inner = ", ".join(f"{name} {short_number(q[name])}" for name in names or ("median",))
    return f"{short_number(q['min'])}..{short_number(q['max'])} {unit}: {inner}"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "-"


def _tallied(counted: Tally) -> str:
    parts = {"within train": counted.train, "within val": counted.val, "of val in train": counted.leaked}
    return ", ".join(f"{count:,} {name}" for name, count in parts.items() if count) or "none"


def _together(info: Info, group: Sequence[int]) -> str:
    return list_some((f"{info.short_name(index)} ({info.split_of(index)})" for index in group), 3, " = ")


def _named(title: str, things: Sequence[T], say: Callable[[T], str]) -> list[str]:
    if not things:
        return []
    more = [f"  and {len(things) - _FILES:,} more"] if len(things) > _FILES else []
    return [title, *(f"  {say(thing)}" for thing in things[:_FILES]), *more, ""]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(max(w, 6)) for cell, w in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
