"""Describe a dataset in the terminal, and find likely problems with their remedies."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.data.display import channel_names
from augment.data.image_faults import CONVERT, NOT_DECODED
from augment.data.images import name_of
from augment.data.sources.loading import describe_foreign
from augment.data.targets.class_names import suggest_spelling
from augment.recipe.steps import SPLITS
from augment.support.formatting import amount, clip, list_some, percent, plural, short_number
from augment.tools.info.scan import tally
from augment.tools.info.summary import LISTED, Info, SpatialStats

_MAX_LISTED = 10  # maximum number of files per list


def report(info: Info, findings: Sequence[str]) -> str:
    """Return the printed text: statistics, duplicates, and the `findings` of `find_problems`."""
    lines = [info.headline, "", *_table(info), "", *_image_rows(info), ""]
    lines += [] if info.data.pixels.is_rgb else [*_channels(info), ""]
    lines += _named("cannot be used", [f"{name_of(info.images[index])} {fault}" for index, fault in info.faults])
    for title, pairs in (("the same bytes", info.copies.same), ("look the same", info.copies.alike)):
        lines += _named(title, [" = ".join(map(info.describe, pair)) for pair in info.ordered(pairs)])
    indented = [finding.replace("\n", "\n    ") for finding in findings]
    lines += ["Problems", *(f"  - {finding}" for finding in indented)] if findings else ["No problems found."]
    if info.data.task in ("classify", "multilabel"):
        lines.append("Training also checks the labels: python -m trainer labels RUN lists the suspicious ones.")
    return "\n".join(lines)


def _table(info: Info) -> list[str]:
    if info.data.task == "regress":
        rows = [
            (f"{name} ({split})", *map(short_number, spread.values()))
            for name, both in info.target_stats.items()
            for split, spread in both.items()
        ]
        return _aligned([("", "mean", "std", "min", "max"), *rows])
    header, counts = ["", *SPLITS], info.counts
    if info.spatial is not None and info.spatial.unit != "images":
        header = ["", *(f"images, {split}" for split in SPLITS), *(f"{info.spatial.unit}, {split}" for split in SPLITS)]
        counts = np.concatenate([counts, info.spatial.amounts], axis=1)
    rows = [(clip(info.names[index], 40), *map("{:,}".format, counts[index])) for index in info.listed]
    lines = _aligned([header, *rows])
    if left := len(info.counts) - len(rows):
        lines.insert(1 + LISTED // 2, f"  ... {left:,} between the largest and the smallest")
    if info.data.task == "multilabel":
        lines += ["", f"labels per image  mean {info.counts.sum() / len(info.targets):.2f}"]
    return lines


def _image_rows(info: Info) -> list[str]:
    rotated = int((info.facts["orientation"] > 1).sum())
    usable = {name: values[info.usable] for name, values in info.sizes.items()}
    look_alike = _listed(info.alike) or "none"
    if not info.copies.all_compared:
        look_alike += "; too many to compare all"
    rows = {
        **{name: _spread(usable[name], "px") for name in ("width", "height", "short_side")},
        **({} if info.spatial is None else _spatial_rows(info.spatial)),
        "aspect": _spread(usable["aspect"], "(width / height)"),
        "file size": f"{_spread(usable['bytes'] / 1e3, 'kB')}; {info.sizes['bytes'].sum() / 1e6:,.1f} MB in total",
        "formats": f"{_listed(info.frequent('format'))}; {_listed(info.frequent('mode'))}",
        "EXIF": f"{rotated:,} rotated" if rotated else "none rotated",
        "unreadable": f"{len(info.faults):,}" if info.faults else "none",
        "duplicates": _listed(info.same) or "none",
        "look alike": look_alike,
    }
    return [f"{name.replace('_', ' '):<13}{value}" for name, value in rows.items()]


def _channels(info: Info) -> list[str]:
    rows = [["channel", *info.channels, "data.range"]]
    names, statistics = channel_names(info.data.pixels), zip(*info.channels.values(), strict=True)
    for name, (*values, clipped), ends in zip(names, statistics, info.ends.T, strict=True):
        rows.append([name, *map(short_number, values), percent(clipped, 1), "..".join(map(short_number, ends))])
    return _aligned(rows)


def _spatial_rows(stats: SpatialStats) -> dict[str, str]:
    rows = {name: _spread(values) for name, values in stats.distributions.items() if len(values)}
    counts = {name: both for name, both in stats.counts.items() if any(both)}
    return rows | {name: f"{train:,} in train, {val:,} in val" for name, (train, val) in counts.items()}


def _spread(values: NDArray[Any], unit: str = "") -> str:
    """Describe values by their minimum, median and maximum."""
    if not len(values):
        return "-"
    low, median, high = (short_number(float(measure(values))) for measure in (np.min, np.median, np.max))
    return f"{low}..{high} {unit}".rstrip() + f": median {median}" if low != high else f"{low} {unit}"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)


def _named(title: str, lines: Sequence[str]) -> Iterable[str]:
    more = [f"  and {len(lines) - _MAX_LISTED:,} more"] if len(lines) > _MAX_LISTED else []
    return [title, *(f"  {line}" for line in lines[:_MAX_LISTED]), *more, ""] if lines else []


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *cells in rows:
        padded = (cell.rjust(max(width, 6)) for cell, width in zip(cells, others, strict=True))
        lines.append("  ".join([name.ljust(first), *padded]))
    return lines


FEW = 10  # train images of a class
_CLIPPED = 0.05  # share of a channel's values


_HAVE, _ARE = ("has", "have"), ("is", "are")


def find_problems(info: Info, *, skip_bad: bool | None = None) -> list[str]:
    """Return likely problems, the most severe first. `skip_bad` is None if the source lacks this setting."""
    return [
        *(f"Training cannot start: {problem}" for problem in info.data.problems),
        *_unusable_problems(info, skip_bad),
        *_duplicate_problems(info),
        *(_regression_problems(info) if info.data.task == "regress" else _class_problems(info)),
        *(_size_problems(info) if info.usable.any() else ()),
        *(f"{notice}." for notice in info.data.notices),
        *(() if info.data.pixels.is_rgb else _range_problems(info)),
    ]


def _unusable_problems(info: Info, skip_bad: bool | None) -> Iterator[str]:
    if text := describe_foreign(info.data):
        yield f"{text}."
    if bad := len(info.faults):
        they, them = plural(bad, "it is", "they are"), plural(bad, "it", "them")
        remedy = {
            None: f"Repair or remove {them}.",
            False: f"Training cannot start until {they} repaired or removed. To skip {them}, set data.skip_bad=true.",
            True: f"Training skips {them} (data.skip_bad=true).",
        }[skip_bad]
        other = f" For other formats: {CONVERT}." if any(NOT_DECODED in reason for _, reason in info.faults) else ""
        yield f"{amount(bad, 'image')} of {len(info.images):,} cannot be used. {remedy}{other}"


def _duplicate_problems(info: Info) -> Iterator[str]:
    """Find val and test images that are also in another split, and duplicates with different targets."""
    why = "This inflates the scores on val. Remove such images from one of the splits."
    looks = (
        f"because they look alike: re-encoded, resized, or almost the same scene. {why} This list may include images "
        "that are naturally similar (scans, icons, video frames), so check the pairs in the figure. If val is taken "
        "from train, data.group keeps the images of a video, patient or scene in one split."
    )
    for counts, how in ((info.same, f"byte for byte. {why}"), (info.alike, looks)):
        if leaked := counts["val_in_train"]:
            yield f"{_share(leaked, len(info.data.val), *_ARE, noun='val image')} also in train, {how}"
    if (leaks := info.leaks) is not None:
        for pairs, how in ((leaks.same, "byte for byte"), (leaks.alike, "because they look alike")):
            if leaked := tally(pairs, len(info.images))["val_in_train"]:
                share = _share(leaked, len(info.test), *_ARE, noun="test image")
                yield f"{share} also in train or val, {how}. Remove them."
    if odd := info.contradicting:
        count, example = amount(len(odd), "pair"), " and ".join(map(info.describe, odd[0]))
        yield (
            f"{count} of identical files {plural(len(odd), *_HAVE)} different targets, such as {example}. Correct the "
            "wrong target."
        )


def _class_problems(info: Info) -> Iterator[str]:
    names, (train, val), noun = info.names, info.counts.T, info.data.kind.noun
    several = info.data.task == "multilabel" or info.data.kind.follows
    if len(names) == 1 and not several:
        yield "There is only one class. Training needs at least two."
    for which, what in (
        (train == 0, "no image in train and cannot be learned"),
        ((val == 0) & bool(len(info.data.val)), "no image in val and cannot be scored"),
        ((train > 0) & (train < FEW), f"fewer than {FEW} images in train, too few to learn from"),
    ):
        if count := int(which.sum()):
            listed = list_some((f"{names[i]} ({train[i]})" for i in np.flatnonzero(which).tolist()), most=3)
            yield f"{amount(count, noun)} {plural(count, *_HAVE)} {what}: {listed}."
    absent = [names[i] for i in np.flatnonzero((train == 0) | (val == 0)).tolist()]
    if hint := suggest_spelling(absent, dict(zip(names, (train + val).tolist(), strict=True))):
        yield f"Some labels may be misspelled.{hint}"
    if several or not names:
        return
    # The largest class, and the smallest class that has images.
    most, least = int(train.argmax()), int(np.where(train, train, train.max()).argmin())
    if train[most] >= 5 * max(train[least], 1):
        yield (
            f"Train has {train[most]:,} images of {names[most]} but only {train[least]:,} of {names[least]}, a ratio "
            f"of {train[most] / train[least]:.0f} to 1. Use data.balance=oversample or data.balance=weights to "
            "compensate."
        )


def _regression_problems(info: Info) -> Iterator[str]:
    for name, spread in info.target_stats.items():
        train, val = spread["train"], spread.get("val", spread["train"])
        if val["max"] > train["max"] + train["std"] or val["min"] < train["min"] - train["std"]:
            in_val, in_train = (f"{split['min']:.4g}..{split['max']:.4g}" for split in (val, train))
            yield f"{name} is {in_val} in val but {in_train} in train. Models extrapolate poorly."


def _size_problems(info: Info) -> Iterator[str]:
    short_side, size = info.sizes["short_side"], min(info.size)
    small = int((info.usable & (short_side < size)).sum())
    if small >= 0.1 * info.usable.sum():
        below = f"a short side below aug.size={info.size.plain}. Enlarging costs time and adds no detail."
        yield f"{_share(small, len(short_side), *_HAVE)} {below}"


def _range_problems(info: Info) -> Iterator[str]:
    clipped = np.flatnonzero(info.channels["clipped"] > _CLIPPED).tolist()
    if clipped:
        which = f"{plural(len(clipped), 'channel')} {list_some(map(str, clipped))}"
        spread = f"The values range from {info.channels['min'].min():g} to {info.channels['max'].max():g}."
        yield f"data.range clips more than {_CLIPPED:.0%} of the values of {which}. {spread} Set data.range=auto."


def _share(count: int, total: int, one: str, several: str, noun: str = "image") -> str:
    """Return a count with its percentage and a verb, such as "3 of 20 images (15%) are"."""
    return f"{count:,} of {amount(total, noun)} ({percent(count / total)}) {plural(count, one, several)}"
