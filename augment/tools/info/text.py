"""Describe a data set as text for the terminal."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from augment.data.images import name_of
from augment.recipe.steps import SPLITS
from augment.support.text import clip, short_number
from augment.tools.info.findings import DataFinding
from augment.tools.info.summary import LISTED, Info, Inside

_FILES = 10  # files named per list, at most
_WIDEST = 40  # characters of a class name, at most


def report(info: Info, findings: Sequence[DataFinding]) -> str:
    """Return statistics, then findings."""
    lines = [info.headline, "", *_table(info), "", *_figures(info), ""]
    lines += _named("cannot be used", [f"{name_of(info.images[index])} {fault}" for index, fault in info.faults])
    for title, pairs in (("the same bytes", info.copies.same), ("look the same", info.copies.alike)):
        lines += _named(title, [" = ".join(map(info.describe, pair)) for pair in info.ordered(pairs)])
    lines += ["Problems", *(f"  - {finding.text}" for finding in findings)] if findings else ["No problems found."]
    return "\n".join(lines)


def _table(info: Info) -> list[str]:
    """Return the statistics of the targets."""
    if info.data.task == "regress":
        rows = [
            (f"{name} ({split})", *map(short_number, spread.values()))
            for name, both in info.numbers.items()
            for split, spread in both.items()
        ]
        return _aligned([("", "mean", "std", "min", "max"), *rows])
    header, counts = ["", *SPLITS], info.counts
    if info.inside is not None and info.inside.unit != "images":
        header = ["", *(f"images, {split}" for split in SPLITS), *(f"{info.inside.unit}, {split}" for split in SPLITS)]
        counts = np.concatenate([counts, info.inside.amounts], axis=1)
    rows = [(clip(info.names[index], _WIDEST), *map("{:,}".format, counts[index])) for index in info.listed]
    lines = _aligned([header, *rows])
    if left := len(info.counts) - len(rows):
        lines.insert(1 + LISTED // 2, f"  ... {left:,} between the largest and the smallest")
    if info.data.task == "multilabel":
        lines += ["", f"labels per image  mean {info.counts.sum() / len(info.targets):.2f}"]
    return lines


def _figures(info: Info) -> list[str]:
    rotated = int((info.facts["orientation"] > 1).sum())
    kilobytes = info.sides["bytes"] / 1000
    rows = {
        "width": _spread(info.spread(info.sides["width"]), "px"),
        "height": _spread(info.spread(info.sides["height"]), "px"),
        **({} if info.inside is None else _inside(info.inside)),
        "short side": _spread(info.spread(info.sides["short_side"]), "px"),
        "aspect": _spread(info.spread(info.sides["aspect"]), "(width / height)"),
        "file size": f"{_spread(info.spread(kilobytes), 'kB')}; {kilobytes.sum() / 1000:,.1f} MB in total",
        "formats": f"{_listed(info.frequent('format'))}; {_listed(info.frequent('mode'))}",
        "EXIF": f"{rotated:,} rotated" if rotated else "none rotated",
        "unreadable": f"{len(info.faults):,}" if info.faults else "none",
        "duplicates": _listed(info.same) or "none",
        "look alike": (_listed(info.alike) or "none")
        + ("" if info.copies.all_compared else "; too many to compare all"),
    }
    return [f"{name:<13}{value}" for name, value in rows.items()]


def _inside(inside: Inside) -> dict[str, str]:
    counts = {n: f"{train:,} in train, {val:,} in val" for n, (train, val) in inside.counts.items() if train + val}
    return {name: _spread(spread) for name, spread in inside.spreads().items()} | counts


def _spread(of: Mapping[str, float], unit: str = "") -> str:
    if not of:
        return "-"
    low, median, high = map(short_number, of.values())
    return f"{low}..{high} {unit}".rstrip() + f": median {median}" if low != high else f"{low} {unit}"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)


def _named(title: str, lines: Sequence[str]) -> Iterable[str]:
    more = [f"  and {len(lines) - _FILES:,} more"] if len(lines) > _FILES else []
    return [title, *(f"  {line}" for line in lines[:_FILES]), *more, ""] if lines else []


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(first), *(cell.rjust(max(w, 6)) for cell, w in zip(row[1:], others, strict=True))])
        for row in rows
    ]
