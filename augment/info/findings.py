"""What looks wrong with a data set, in a sentence each, with what helps where something does."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from augment.info.duplicates import Tally
from augment.info.summary import GRAY, SPLITS, Info

IMBALANCE = 5.0  # pictures in train of the largest class over those of the smallest
FEW = 10  # pictures of a class in train
VAL_SHARES = (0.05, 0.4)
SMALL_SHARE = 0.1  # of pictures that are enlarged
LARGE = 3.0  # median of the short sides over aug.size
LONG, LONG_SHARE = 3.0, 0.01  # longer over shorter side, and the share of such pictures
DUPLICATE_SHARE = 0.01  # of copies within a split
GRAY_SHARE = 0.01
OTHER_SIZE = 1.5  # median of train's short sides over that of val's, or the reverse
NUMBER_SCALE = 3.0  # of mean or standard deviation
_SHOWN = 3

BALANCE = "data.balance=oversample or data.balance=weights evens this out"


@dataclass(frozen=True)
class Finding:
    """Something that looks wrong.

    Attributes:
        kind: a word for it, for programs.
        text: a sentence, or two where something helps.
    """

    kind: str
    text: str


def find_wrong(info: Info, *, skip_bad: bool | None = None, convert: str = "") -> list[Finding]:
    """Return what looks wrong, the gravest first.

    Args:
        info: the data set.
        skip_bad: value of data.skip_bad; None if the source has no such setting.
        convert: the data's overrides, for a command line that writes it smaller.
    """
    found = [
        *_unreadable(info, skip_bad),
        *_leaks(info),
        *_contradictions(info),
        *(_numbers(info) if info.data.task == "regress" else _classes(info)),
        *_split(info),
        *_repeated(info),
        *_sizes(info, convert),
        *_modes(info),
    ]
    return [Finding(kind, text) for kind, text in found]


_Found = Iterator[tuple[str, str]]


def _unreadable(info: Info, skip_bad: bool | None) -> _Found:
    count = len(info.found.faults)
    if not count:
        return
    remedy = {
        None: "Repair or remove them.",
        False: "Training refuses to start until they are repaired or removed, or data.skip_bad=true leaves them out.",
        True: "Training leaves them out (data.skip_bad=true).",
    }[skip_bad]
    yield "unreadable", f"{_pictures(info, count)} cannot be used. {remedy}"


def _leaks(info: Info) -> _Found:
    total = len(info.data.val)
    for kind, counted, how in (
        ("leak", info.exact, "byte by byte"),
        ("near_leak", info.near, "as it looks: re-encoded, resized, or frames of one scene"),
    ):
        if counted.leaked:
            yield kind, (
                f"{counted.leaked:,} of {total:,} val pictures ({_percent(counted.leaked / total)}) are in train too, {how}. "
                "Scores on val are too good by that much at most; take them out of one of the two."
            )


def _contradictions(info: Info) -> _Found:
    for kind, counted, how in (
        ("contradiction", info.exact, "are the same file"),
        ("near_contradiction", info.near, "look the same"),
    ):
        if counted.contradicting:
            first = " and ".join(_labeled(info, place) for place in counted.contradicting[0][:2])
            what = "numbers" if info.data.task == "regress" else "labels"
            yield kind, (
                f"{_times(len(counted.contradicting), 'time', 'times')} pictures {how} and have different {what}, "
                f"so that one must be wrong: {first}."
            )


def _labeled(info: Info, place: int) -> str:
    target = info.targets[place]
    if isinstance(target, int):
        return f"{info.name(place)} ({info.data.classes[target]})"
    return info.name(place)


def _classes(info: Info) -> _Found:
    names, (train, val) = info.data.classes, info.counts.T
    what, plural = ("label", "labels") if info.data.task == "multilabel" else ("class", "classes")
    if len(names) == 1 and what == "class":
        yield "one_class", "There is one class only: nothing to tell apart."
    for split, counts in zip(SPLITS, (train, val), strict=True):
        missing = np.flatnonzero(counts == 0)
        if len(missing):
            why = "cannot be learned" if split == "train" else "are not scored"
            yield f"missing_in_{split}", (
                f"{len(missing):,} of {_times(len(names), what, plural)} have no picture in {split} and {why}: "
                f"{_some(_at(names, missing))}."
            )
    tiny = np.flatnonzero((train > 0) & (train < FEW))
    if len(tiny):
        yield "tiny", (
            f"{_times(len(tiny), f'{what} has', f'{plural} have')} fewer than {FEW} pictures in train, "
            f"too few to learn from: {_some(_at(names, tiny))}."
        )
    there = np.flatnonzero(train)
    if what == "class" and len(there):
        largest, smallest = there[np.argmax(train[there])], there[np.argmin(train[there])]
        ratio = train[largest] / train[smallest]
        if ratio >= IMBALANCE:
            yield "imbalance", (
                f"Train has {train[largest]:,} pictures of {names[largest]} and {train[smallest]:,} of "
                f"{names[smallest]}, {ratio:.0f} times fewer: {BALANCE}."
            )
    everywhere = np.flatnonzero(train == len(info.data.train))
    if what == "label" and len(everywhere):
        yield "everywhere", (
            f"{_times(len(everywhere), 'label is', 'labels are')} on every picture of train, which teaches nothing: "
            f"{_some(_at(names, everywhere))}."
        )


def _numbers(info: Info) -> _Found:
    constant = [name for name, (train, _) in info.numbers.items() if train.std == 0]
    if constant:
        yield "constant", f"Numbers that are the same for every picture of train: {', '.join(constant[:_SHOWN])}."
    for name, (train, val) in info.numbers.items():
        if train.std and max(abs(train.mean), train.std) > NUMBER_SCALE:
            yield "scale", (
                f"{name} has mean {train.mean:.4g} and standard deviation {train.std:.4g} in train; networks learn "
                "numbers of about -1..1 best, so bring it there."
            )
        if val.max > train.max + train.std or val.min < train.min - train.std:
            yield "range", (
                f"{name} is {val.min:.4g}..{val.max:.4g} in val but {train.min:.4g}..{train.max:.4g} in train: what "
                "lies beyond was never learned."
            )


def _split(info: Info) -> _Found:
    share = len(info.data.val) / len(info.pictures)
    if not VAL_SHARES[0] <= share <= VAL_SHARES[1]:
        side = "few to score on" if share < VAL_SHARES[0] else "many that could be learned from"
        yield "val_share", (
            f"val has {len(info.data.val):,} of {len(info.pictures):,} pictures ({_percent(share)}): {side}; "
            "usual are 10 to 30%."
        )
    medians = [info.quantiles(info.short_side, split).get("median", 0) for split in SPLITS]
    if min(medians) > 0 and max(medians) >= OTHER_SIZE * min(medians):
        yield "other_size", (
            f"Pictures of train and val differ in size: short sides have a median of {medians[0]:.0f} px in train and "
            f"{medians[1]:.0f} px in val."
        )


def _repeated(info: Info) -> _Found:
    for kind, counted, how in (
        ("duplicates", info.exact, "are copies, byte by byte, of others in it"),
        ("near_duplicates", info.near, "look the same as others in it"),
    ):
        for split, count, total in _by_split(counted, info):
            if count >= DUPLICATE_SHARE * total and count:
                yield kind, f"{count:,} of {total:,} {split} pictures ({_percent(count / total)}) {how}."


def _by_split(counted: Tally, info: Info) -> Sequence[tuple[str, int, int]]:
    return (("train", counted.train, len(info.data.train)), ("val", counted.val, len(info.data.val)))


def _sizes(info: Info, convert: str) -> _Found:
    if not info.good.any():
        return
    small = info.good & (info.short_side < info.size)
    if small.sum() >= SMALL_SHARE * info.good.sum():
        yield "small", (
            f"{_pictures(info, int(small.sum()))} have a short side below aug.size={info.size}: they are enlarged, which "
            "costs time and shows nothing more."
        )
    median = info.quantiles(info.short_side)["median"]
    if median > LARGE * info.size:
        remedy = (
            f": python -m augment.convert {convert} --to webdataset --out DIR --size {2 * info.size}"
            if info.data.task == "classify"
            else ""
        )
        yield "large", (
            f"Half of the pictures have a short side of {median:.0f} px or more, {median / info.size:.1f} times "
            f"aug.size={info.size}; smaller copies are decoded faster{remedy}"
        )
    longer = np.maximum(info.aspect, 1 / info.aspect) > LONG
    if longer.sum() >= LONG_SHARE * info.good.sum():
        place = int(np.argmax(np.maximum(info.aspect, 1 / info.aspect)))
        yield "aspect", (
            f"{_pictures(info, int(longer.sum()))} are more than {LONG:g} times as long as wide, of which a square shows "
            f"little; the longest is {info.name(place)}, {info.found.width[place]} x {info.found.height[place]}."
        )


def _modes(info: Info) -> _Found:
    facts, kinds = info.found.facts, info.kinds
    alpha, cmyk, deep = (
        info.good & np.isin(kinds, [kind for kind in set(kinds.tolist()) if part in kind])
        for part in ("alpha", "CMYK", "16 bit")
    )
    if alpha.any():
        yield "alpha", (
            f"{_pictures(info, int(alpha.sum()))} are see-through in parts. Alpha is dropped, so that colors appear "
            "there that nobody saw; lay them on a background first."
        )
    if cmyk.any():
        yield "cmyk", (
            f"{_pictures(info, int(cmyk.sum()))} are CMYK, as for print. They are turned into RGB without their color "
            "profile, and may look off."
        )
    if deep.any():
        yield "deep", f"{_pictures(info, int(deep.sum()))} have 16 bits a channel, of which 8 are used."
    gray = info.good & np.isin(kinds, GRAY)
    if GRAY_SHARE * info.good.sum() <= gray.sum() < info.good.sum() and gray.any():
        yield "gray", f"{_pictures(info, int(gray.sum()))} are gray{_mostly(info, gray)}."
    if (facts["orientation"] > 1).any():
        count = int((facts["orientation"] > 1).sum())
        yield "exif", (
            f"{_pictures(info, count)} are turned by an EXIF note. They are upright here; other programs may ignore the "
            "note, so check boxes or labels that depend on it."
        )
    if facts["blank"].any():
        places = np.flatnonzero(facts["blank"]).tolist()
        yield "blank", f"{_pictures(info, len(places))} are of one color: {_some([info.name(p) for p in places])}."


def _mostly(info: Info, some: NDArray[np.bool_]) -> str:
    """Return the tail of a sentence about pictures of which one class has most, which may give it away."""
    if info.data.task != "classify" or len(info.data.classes) < 2:
        return ""
    of = np.array(info.targets)
    totals = np.bincount(of[info.good], minlength=len(info.data.classes))
    shares = np.bincount(of[some], minlength=len(info.data.classes)) / np.maximum(totals, 1)
    most = int(np.argmax(shares))
    rest = (some.sum() - shares[most] * totals[most]) / max(info.good.sum() - totals[most], 1)
    if shares[most] < 3 * rest or totals[most] < FEW:
        return ""
    name = info.data.classes[most]
    return f", {_percent(shares[most])} of {name} but {_percent(rest)} of the others: a sign of the class by which it may be told"


def _pictures(info: Info, count: int) -> str:
    return f"{count:,} of {len(info.pictures):,} pictures ({_percent(count / len(info.pictures))})"


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.0f}%"


def _times(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"


def _at(names: Sequence[str], places: NDArray[np.int64]) -> list[str]:
    return [names[place] for place in places.tolist()]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
