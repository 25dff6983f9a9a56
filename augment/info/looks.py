"""What looks wrong with the pictures themselves: their sizes, shapes and kinds."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from augment.info.summary import GRAY, SPLITS, Info
from augment.info.wording import Finding, percent, pictures, some

SMALL_SHARE = 0.1  # of pictures that are enlarged
LARGE = 3.0  # median of the short sides over aug.size
LONG, LONG_SHARE = 3.0, 0.01  # longer over shorter side, and the share of such pictures
OTHER_SIZE = 1.5  # median of train's short sides over that of val's, or the reverse
GRAY_SHARE = 0.05
# Share of a class that is gray, how many times more than of the others, and pictures of it that make it no accident.
GRAY_OF_CLASS, GRAY_TIMES, GRAY_FROM = 0.1, 3.0, 10


def find_odd_sizes(info: Info, convert: str) -> Iterator[Finding]:
    """Yield what looks wrong with sizes and shapes.

    Args:
        info: the data set.
        convert: the data's overrides, for a command line that writes it smaller.
    """
    if not info.good.any():
        return
    medians = [info.quantiles(info.short_side, split).get("median", 0) for split in SPLITS]
    if min(medians) > 0 and max(medians) >= OTHER_SIZE * min(medians):
        what = f"short sides have a median of {medians[0]:.0f} px in train and {medians[1]:.0f} px in val"
        yield Finding("other_size", f"Pictures of train and val differ in size: {what}.")
    small = info.good & (info.short_side < info.size)
    if small.sum() >= SMALL_SHARE * info.good.sum():
        why = "they are enlarged, which costs time and shows nothing more"
        yield Finding("small", f"{pictures(small)} have a short side below aug.size={info.size}: {why}.")
    median = info.quantiles(info.short_side)["median"]
    if median > LARGE * info.size:
        times = f"{median / info.size:.1f} times aug.size={info.size}"
        what = f"Half of the pictures have a short side of {median:.0f} px or more, {times}"
        command = f"python -m augment.convert {convert} --to webdataset --out DIR --size {2 * info.size}"
        yield Finding("large", f"{what}; smaller copies are decoded faster: {command}")
    lengths = np.maximum(info.aspect, 1 / info.aspect)
    long = lengths > LONG
    if long.sum() >= LONG_SHARE * info.good.sum():
        place = int(np.argmax(lengths))
        longest = f"{info.short_name(place)}, {info.found.width[place]} x {info.found.height[place]}"
        what = f"{pictures(long)} are more than {LONG:g} times as long as wide"
        yield Finding("aspect", f"{what}, of which a square crop shows little; the longest is {longest}.")


def find_odd_pictures(info: Info) -> Iterator[Finding]:
    """Yield what looks wrong with kinds of pictures."""
    facts, kinds = info.found.facts, info.kinds
    alpha, cmyk, deep = (
        info.good & np.isin(kinds, [kind for kind in set(kinds.tolist()) if part in kind])
        for part in ("alpha", "CMYK", "16 bit")
    )
    if alpha.any():
        why = "Alpha is dropped, so that colors appear there that nobody saw; lay them on a background first."
        yield Finding("alpha", f"{pictures(alpha)} are see-through in parts. {why}")
    if cmyk.any():
        why = "They are turned into RGB without their color profile, and may look off."
        yield Finding("cmyk", f"{pictures(cmyk)} are CMYK, as for print. {why}")
    if deep.any():
        yield Finding("deep", f"{pictures(deep)} have 16 bits a channel, of which 8 are used.")
    gray = info.good & np.isin(kinds, GRAY)
    giveaway = _giveaway(info, gray)
    if giveaway or GRAY_SHARE * info.good.sum() <= gray.sum() < info.good.sum():
        yield Finding("gray", f"{pictures(gray)} are gray{giveaway or ', the others in color'}.")
    turned = facts["orientation"] > 1
    if turned.any():
        why = "They are shown upright here; programs that ignore the note see them turned."
        yield Finding("exif", f"{pictures(turned)} are turned by an EXIF note. {why}")
    if facts["blank"].any():
        names = some(info.short_name(place) for place in np.flatnonzero(facts["blank"]).tolist())
        yield Finding("blank", f"{pictures(facts['blank'])} are of one color: {names}.")


def _giveaway(info: Info, which: NDArray[np.bool_]) -> str:
    """Return the tail of a sentence where one class has most of some pictures, which may give it away."""
    if info.data.task != "classify" or len(info.data.classes) < 2:
        return ""
    of = np.array(info.targets)
    totals = np.bincount(of[info.good], minlength=len(info.data.classes))
    shares = np.bincount(of[which], minlength=len(info.data.classes)) / np.maximum(totals, 1)
    most = int(np.argmax(shares))
    mine = shares[most] * totals[most]
    rest = float((which.sum() - mine) / max(info.good.sum() - totals[most], 1))
    if shares[most] < max(GRAY_TIMES * rest, GRAY_OF_CLASS) or mine < GRAY_FROM:
        return ""
    than = f"{percent(float(shares[most]))} of {info.data.classes[most]} but {percent(rest)} of the others"
    return f", {than}: it may be told by that alone"
