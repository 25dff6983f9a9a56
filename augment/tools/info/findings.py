"""Find likely problems of a data set, and describe each in a sentence or two, with a remedy where there is one."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from augment.data.faults import CONVERT, NOT_DECODED
from augment.data.formats.folder import describe_nested
from augment.data.sources.notices import describe_foreign
from augment.recipe.steps import SPLITS
from augment.support.text import amount, list_some, percent, plural
from augment.tools.info.summary import GRAY, Info

IMBALANCE = 5.0  # train images of the largest class / those of the smallest
FEW = 10  # train images of a class
VAL_SHARES = (0.05, 0.4)
DUPLICATE_SHARE = 0.01  # of duplicates within a split
SMALL_SHARE = 0.1  # of images that are enlarged
LARGE = 3.0  # median short side / aug.size
LONG, LONG_SHARE = 3.0, 0.01  # longer side / shorter side, and the share of such images
OTHER_SIZE = 1.5  # ratio of the median short sides of train and val
GRAY_SHARE = 0.05
# A class is given away by its gray images if they are this share of it, this many times the share in other classes, and
# at least this many.
GRAY_OF_CLASS, GRAY_TIMES, GRAY_FROM = 0.1, 3.0, 10


@dataclass(frozen=True)
class Finding:
    """A likely problem.

    Attributes:
        kind: an identifier for programs.
        text: one or two sentences.
    """

    kind: str
    text: str


def find_problems(info: Info, *, skip_bad: bool | None = None, convert: str = "") -> list[Finding]:
    """Return likely problems, the most severe first.

    Args:
        info: the data set.
        skip_bad: the value of data.skip_bad; None if the source has no such setting.
        convert: overrides that select the data, for the command that writes smaller copies.
    """
    return [
        *(Finding("structure", f"Training refuses to start: {problem}") for problem in info.data.problems),
        *_foreign(info),
        *_unreadable(info, skip_bad),
        *_leakage(info),
        *_contradictions(info),
        *(_numbers(info) if info.data.task == "regress" else _classes(info)),
        *(_val_share(info) if len(info.data.val) else ()),
        *_duplicates(info),
        *_sizes(info, convert),
        *_modes(info),
    ]


# --- files and duplicates ---


def _foreign(info: Info) -> Iterator[Finding]:
    if text := describe_foreign(info.data):
        yield Finding("formats", f"{text}.")


def _unreadable(info: Info, skip_bad: bool | None) -> Iterator[Finding]:
    bad = len(info.scan.faults)
    if not bad:
        return
    they, them = plural(bad, "it is", "they are"), plural(bad, "it", "them")
    remedy = {
        None: f"Repair or remove {them}.",
        False: f"Training refuses to start until {they} repaired or removed; data.skip_bad=true skips {them}.",
        True: f"Training skips {them} (data.skip_bad=true).",
    }[skip_bad]
    other = any(NOT_DECODED in reason for reason in info.scan.faults.values())
    remedy += f" Of other formats, {CONVERT}." if other else ""
    yield Finding("unreadable", f"{amount(bad, 'image')} of {len(info.images):,} cannot be used. {remedy}")


def _leakage(info: Info) -> Iterator[Finding]:
    total = len(info.data.val)
    why = "This inflates the scores on val; remove such images from one of the splits."
    looks = (
        f"judging by their looks: re-encoded, resized, or almost the same scene. {why} Images that are naturally alike "
        "(scans, icons, video frames) count, too: see the pairs in the figure."
    )
    for kind, counted, how in (("leak", info.exact, f"byte for byte. {why}"), ("near_leak", info.near, looks)):
        if counted.leaked:
            yield Finding(kind, f"{_part(counted.leaked, total, 'is', 'are', noun='val image')} also in train, {how}")


def _contradictions(info: Info) -> Iterator[Finding]:
    what = "numbers" if info.data.task == "regress" else "labels"
    alike = "is wrong, unless they are naturally alike (scans, icons, video frames)"
    for kind, counted, which, wrong in (
        ("contradiction", info.exact, "copies of a file have", "must be wrong"),
        ("near_contradiction", info.near, "two images that look the same have", alike),
    ):
        if counted.contradicting:
            group = counted.contradicting[0]
            other = next(index for index in group if info.targets[index] != info.targets[group[0]])
            times = amount(len(counted.contradicting), "time")
            example = " and ".join(_labeled(info, index) for index in (group[0], other))
            yield Finding(kind, f"{times}, {which} different {what}, of which one {wrong}: {example}.")


def _labeled(info: Info, index: int) -> str:
    label = info.label(index)
    return info.short_name(index) + (f" ({label})" if label else "")


def _duplicates(info: Info) -> Iterator[Finding]:
    for kind, counted, forms, why in (
        ("duplicates", info.exact, ("is a byte-for-byte copy of another", "are byte-for-byte copies of others"), "."),
        ("near_duplicates", info.near, ("looks like another one", "look like others"), ": copies, or naturally alike."),
    ):
        for split, count, total in (
            ("train", counted.train, len(info.data.train)),
            ("val", counted.val, len(info.data.val)),
        ):
            if count and count >= DUPLICATE_SHARE * total:
                yield Finding(kind, f"{_part(count, total, *forms, noun=f'{split} image')} in it{why}")


# --- targets and splits ---


def _classes(info: Info) -> Iterator[Finding]:
    names, (train, val) = info.data.classes, info.counts.T
    labels, noun = info.data.task == "multilabel", info.data.noun
    if len(names) == 1 and not labels:
        yield Finding("one_class", f"There is only one class: nothing to classify{describe_nested(info.data)}.")
    has = ("has", "have")
    everywhere = labels & (train == len(info.data.train))
    for kind, which, verbs, what in (
        ("missing_in_train", train == 0, has, "no image in train and cannot be learned"),
        ("missing_in_val", (val == 0) & bool(len(info.data.val)), has, "no image in val and cannot be scored"),
        ("tiny", (train > 0) & (train < FEW), has, f"fewer than {FEW} images in train, too few to learn from"),
        ("everywhere", everywhere, ("is", "are"), "on every train image, so there is nothing to learn"),
    ):
        if which.any():
            chosen = np.flatnonzero(which).tolist()
            listed = list_some((names[i] + (f" ({train[i]})" if kind == "tiny" else "") for i in chosen), most=3)
            yield Finding(kind, f"{amount(len(chosen), noun)} {plural(len(chosen), *verbs)} {what}: {listed}.")
    present = np.flatnonzero(train)
    if not labels and len(present):
        most, least = present[np.argmax(train[present])], present[np.argmin(train[present])]
        ratio = train[most] / train[least]
        if ratio >= IMBALANCE:
            yield Finding(
                "imbalance",
                f"Train has {train[most]:,} images of {names[most]} but only {train[least]:,} of {names[least]}, "
                f"a ratio of {ratio:.0f} to 1; data.balance=oversample or data.balance=weights compensates for that.",
            )


def _numbers(info: Info) -> Iterator[Finding]:
    for name, spread in info.numbers.items():
        train, val = spread["train"], spread.get("val", spread["train"])
        if not train["std"]:
            yield Finding(
                "constant", f"{name} is {train['mean']:.4g} for every train image: there is nothing to learn."
            )
        elif val["max"] > train["max"] + train["std"] or val["min"] < train["min"] - train["std"]:
            in_val, in_train = (f"{of['min']:.4g}..{of['max']:.4g}" for of in (val, train))
            yield Finding("range", f"{name} is {in_val} in val but {in_train} in train: models extrapolate poorly.")


def _val_share(info: Info) -> Iterator[Finding]:
    total = len(info.images)
    share = len(info.data.val) / total
    if not VAL_SHARES[0] <= share <= VAL_SHARES[1]:
        side = "few to score on" if share < VAL_SHARES[0] else "many that could be used for training"
        yield Finding(
            "val_share",
            f"val has {len(info.data.val):,} of {total:,} images ({percent(share)}), {side}; 10 to 30% is usual.",
        )


# --- the images themselves ---


def _sizes(info: Info, convert: str) -> Iterator[Finding]:
    if not info.good.any():
        return
    medians = [info.quantiles(info.short_side, split).get("median", 0) for split in SPLITS]
    if min(medians) > 0 and max(medians) >= OTHER_SIZE * min(medians):
        yield Finding(
            "other_size",
            f"Images of train and val differ in size: the median short side is {medians[0]:.0f} px in train and "
            f"{medians[1]:.0f} px in val.",
        )
    small = info.good & (info.short_side < info.size)
    if small.sum() >= SMALL_SHARE * info.good.sum():
        yield Finding(
            "small",
            f"{_count(small, 'has', 'have')} a short side below aug.size={info.size}: enlarging costs time and adds no "
            "detail.",
        )
    median = info.quantiles(info.short_side)["median"]
    if median > LARGE * info.size:
        yield Finding(
            "large",
            f"Half of the images have a short side of {median:.0f} px or more, {median / info.size:.1f} times "
            f"aug.size={info.size}; smaller copies decode faster: python -m augment convert {convert} --to webdataset "
            f"--out DIR --size {2 * info.size}",
        )
    lengths = np.maximum(info.aspect, 1 / info.aspect)
    long = lengths > LONG
    if long.sum() >= LONG_SHARE * info.good.sum():
        index = int(np.argmax(lengths))
        yield Finding(
            "aspect",
            f"{_count(long, 'is', 'are')} more than {LONG:g} times as long as wide, so that a square crop shows only a "
            f"small part; the longest is {info.short_name(index)}, {info.shape(index)}.",
        )


def _modes(info: Info) -> Iterator[Finding]:
    facts, gray = info.scan.facts, info.good & np.isin(info.modes, GRAY)
    giveaway = _giveaway(info, gray)
    is_mixed = GRAY_SHARE * info.good.sum() <= gray.sum() < info.good.sum()
    blank = list_some((info.short_name(index) for index in np.flatnonzero(facts["blank"]).tolist()), most=3)
    alpha, cmyk, deep = (np.char.find(info.modes, part) >= 0 for part in ("alpha", "CMYK", "16 bit"))
    are, have = ("is", "are"), ("has", "have")
    for kind, which, verbs, what in (
        (
            "alpha",
            alpha,
            are,
            "partly transparent. Alpha is dropped, which reveals hidden colors; composite the images onto a "
            "background first.",
        ),
        ("cmyk", cmyk, are, "in CMYK, which is converted to RGB without a color profile, so colors may be off."),
        ("deep", deep, have, "16 bits per channel, of which the upper 8 are used."),
        ("gray", gray & (bool(giveaway) | is_mixed), are, f"gray{giveaway or ', the others in color'}."),
        (
            "exif",
            facts["orientation"] > 1,
            have,
            "an EXIF orientation, which is applied here; programs that ignore EXIF show rotated images.",
        ),
        ("blank", facts["blank"], have, f"a single color: {blank}."),
    ):
        if which.any():
            yield Finding(kind, f"{_count(which, *verbs)} {what}")


def _giveaway(info: Info, which: NDArray[np.bool_]) -> str:
    """Return the end of a sentence if images of one class are so often among `which`, (N,), that it gives them away."""
    if info.data.task != "classify" or len(info.data.classes) < 2:
        return ""
    targets = np.array(info.targets)
    totals = np.bincount(targets[info.good], minlength=len(info.data.classes))
    shares = np.bincount(targets[which], minlength=len(info.data.classes)) / np.maximum(totals, 1)
    most = int(np.argmax(shares))
    mine = shares[most] * totals[most]
    rest = float((which.sum() - mine) / max(info.good.sum() - totals[most], 1))
    if shares[most] < max(GRAY_TIMES * rest, GRAY_OF_CLASS) or mine < GRAY_FROM:
        return ""
    than = f"{percent(float(shares[most]))} of {info.data.classes[most]} but {percent(rest)} of the others"
    return f", {than}: that alone may give the class away"


def _count(which: NDArray[np.bool_], one: str, several: str) -> str:
    """Return how many images are selected by `which`, (N,), and a verb; see `_part`."""
    return _part(int(which.sum()), len(which), one, several)


def _part(count: int, total: int, one: str, several: str, noun: str = "image") -> str:
    """Return a part with its share and the form of a verb that goes with it: "3 of 20 images (15%) are"."""
    return f"{count:,} of {amount(total, noun)} ({percent(count / total)}) {plural(count, one, several)}"
