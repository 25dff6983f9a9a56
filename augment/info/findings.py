"""What looks wrong with a data set, in a sentence each, with what helps where something does."""

from collections.abc import Iterator

import numpy as np

from augment.info.looks import find_odd_pictures, find_odd_sizes
from augment.info.summary import SPLITS, Info
from augment.info.wording import Finding, percent, some
from augment.wording import amount

IMBALANCE = 5.0  # pictures in train of the largest class over those of the smallest
FEW = 10  # pictures of a class in train
VAL_SHARES = (0.05, 0.4)
DUPLICATE_SHARE = 0.01  # of copies within a split


def find_wrong(info: Info, *, skip_bad: bool | None = None, convert: str = "") -> list[Finding]:
    """Return what looks wrong, the gravest first.

    Args:
        info: the data set.
        skip_bad: value of data.skip_bad; None if the source has no such setting.
        convert: the data's overrides, for a command line that writes it smaller.
    """
    return [
        *_unreadable(info, skip_bad),
        *_leaks(info),
        *_contradictions(info),
        *(_numbers(info) if info.data.task == "regress" else _classes(info)),
        *_val_share(info),
        *_repeated(info),
        *find_odd_sizes(info, convert),
        *find_odd_pictures(info),
    ]


def _unreadable(info: Info, skip_bad: bool | None) -> Iterator[Finding]:
    bad = len(info.found.faults)
    if not bad:
        return
    remedy = {
        None: "Repair or remove them.",
        False: "Training refuses to start until they are repaired or removed, or data.skip_bad=true leaves them out.",
        True: "Training leaves them out (data.skip_bad=true).",
    }[skip_bad]
    what = amount(bad, "picture")
    yield Finding("unreadable", f"{what} of {len(info.pictures):,} cannot be used. {remedy}")


def _leaks(info: Info) -> Iterator[Finding]:
    total = len(info.data.val)
    why = "Scores on val are better than they should be; take them out of one of the two."
    doubt = "Pictures alike by nature (scans, icons, frames of a film) count too: see the pairs in the drawing."
    for kind, counted, how in (
        ("leak", info.exact, f"byte by byte. {why}"),
        ("near_leak", info.near, f"by their looks: re-encoded, resized, or almost the same scene. {why} {doubt}"),
    ):
        if counted.leaked:
            what = f"{counted.leaked:,} of {total:,} val pictures ({percent(counted.leaked / total)})"
            yield Finding(kind, f"{what} are in train too, {how}")


def _contradictions(info: Info) -> Iterator[Finding]:
    what = "numbers" if info.data.task == "regress" else "labels"
    for kind, counted, which, wrong in (
        ("contradiction", info.exact, "copies of one file have", "must be wrong"),
        (
            "near_contradiction",
            info.near,
            "two pictures that look the same have",
            "is wrong, if they are not just alike by nature (scans, icons, frames of a film)",
        ),
    ):
        if counted.contradicting:
            group = counted.contradicting[0]
            other = next(place for place in group if info.targets[place] != info.targets[group[0]])
            times = amount(len(counted.contradicting), "time")
            example = f"{_labeled(info, group[0])} and {_labeled(info, other)}"
            yield Finding(kind, f"{times} {which} different {what}, of which one {wrong}: {example}.")


def _labeled(info: Info, place: int) -> str:
    target = info.targets[place]
    name = info.short_name(place)
    return f"{name} ({info.data.classes[target]})" if isinstance(target, int) else name


def _classes(info: Info) -> Iterator[Finding]:
    names, (train, val) = info.data.classes, info.counts.T
    labels = info.data.task == "multilabel"
    one, several = ("label", "labels") if labels else ("class", "classes")
    if len(names) == 1 and not labels:
        yield Finding("one_class", "There is one class only: nothing to tell apart.")
    for split, counts in zip(SPLITS, (train, val), strict=True):
        missing = np.flatnonzero(counts == 0).tolist()
        if missing:
            what = f"{len(missing):,} of {amount(len(names), one, several)} {'has' if len(missing) == 1 else 'have'}"
            why = "and cannot be learned" if split == "train" else "and no part in the scores"
            listed = some(names[place] for place in missing)
            yield Finding(f"missing_in_{split}", f"{what} no picture in {split} {why}: {listed}.")
    tiny = np.flatnonzero((train > 0) & (train < FEW)).tolist()
    if tiny:
        what = amount(len(tiny), f"{one} has", f"{several} have")
        listed = some(f"{names[place]} ({train[place]})" for place in tiny)
        yield Finding("tiny", f"{what} fewer than {FEW} pictures in train, too few to learn from: {listed}.")
    there = np.flatnonzero(train)
    if not labels and len(there):
        most, least = there[np.argmax(train[there])], there[np.argmin(train[there])]
        ratio = train[most] / train[least]
        if ratio >= IMBALANCE:
            what = f"{train[most]:,} pictures of {names[most]} and {train[least]:,} of {names[least]}"
            remedy = "data.balance=oversample or data.balance=weights evens this out"
            yield Finding("imbalance", f"Train has {what}, {ratio:.0f} times fewer; {remedy}.")
    everywhere = np.flatnonzero(train == len(info.data.train)).tolist()
    if labels and everywhere:
        what = amount(len(everywhere), "label is", "labels are")
        listed = some(names[place] for place in everywhere)
        yield Finding("everywhere", f"{what} on every picture of train, which teaches nothing: {listed}.")


def _numbers(info: Info) -> Iterator[Finding]:
    for name, (train, val) in info.numbers.items():
        if not train.std:
            yield Finding("constant", f"{name} is {train.mean:.4g} for every picture of train: nothing to learn.")
        if train.std and (val.max > train.max + train.std or val.min < train.min - train.std):
            what = f"{name} is {val.min:.4g}..{val.max:.4g} in val, {train.min:.4g}..{train.max:.4g} in train"
            yield Finding("range", f"{what}: what lies beyond was never learned.")


def _val_share(info: Info) -> Iterator[Finding]:
    total = len(info.pictures)
    share = len(info.data.val) / total
    if not VAL_SHARES[0] <= share <= VAL_SHARES[1]:
        side = "few to score on" if share < VAL_SHARES[0] else "many that could be learned from"
        what = f"val has {len(info.data.val):,} of {total:,} pictures ({percent(share)})"
        yield Finding("val_share", f"{what}, {side}; usual are 10 to 30%.")


def _repeated(info: Info) -> Iterator[Finding]:
    for kind, counted, how in (
        ("duplicates", info.exact, "are copies, byte by byte, of others in it."),
        ("near_duplicates", info.near, "look the same as others in it: copies, or alike by nature."),
    ):
        for split, count, total in (
            ("train", counted.train, len(info.data.train)),
            ("val", counted.val, len(info.data.val)),
        ):
            if count and count >= DUPLICATE_SHARE * total:
                yield Finding(kind, f"{count:,} of {total:,} {split} pictures ({percent(count / total)}) {how}")
