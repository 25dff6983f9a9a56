"""Find the mask of each image in folders, and read what their pixels mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from augment.data.cache import remember
from augment.data.dataset import NO_VAL, Dataset, ImageRef, Split
from augment.data.formats.annotations import cache_file, read_headers
from augment.data.formats.folder import find_images
from augment.data.formats.text_files import read_rows
from augment.data.targets.masks import MASKS, NO_MASK, MaskFile, describe_gaps
from augment.data.targets.spatial import IGNORE
from augment.support.errors import UserError
from augment.support.files import near_file, shown
from augment.support.formatting import amount

_MOST = IGNORE - 1  # classes

# The images of a split with their masks, or with what is wrong with those without one.
Pairs = Mapping[Path, Path | str]


def read_palette(file: Path) -> tuple[tuple[str, ...], MaskFile]:
    """Read a palette: lines `name,value` or `name,red,green,blue` in the order of the classes.

    Lines with the same name are one class; pixels of lines without a name do not count.

    Returns:
        The names of the classes, and a mask of such pixels, without a file.

    Raises:
        UserError: it cannot be read, or a line is of another form.
    """
    key, allowed = f"data.palette={file}", "lines name,red,green,blue or name,value of 0 to 255, no value twice"
    names: dict[str, int] = {}
    labels: dict[tuple[int, ...], int] = {}
    for number, (name, *words) in read_rows("data.palette", file, allowed):
        if number == 1 and not any(word.isdecimal() for word in words):
            continue  # a header
        values = tuple(int(word) for word in words if word.isdecimal() and int(word) <= IGNORE)
        width = len(next(iter(labels), values))
        if len(values) != len(words) or len(values) not in (1, 3) or len(values) != width or values in labels:
            raise UserError(f"{key}: line {number} is {','.join((name, *words))}. Allowed: {allowed}.")
        labels[values] = names.setdefault(name, len(names)) if name else IGNORE
    if not names or len(names) > _MOST:
        raise UserError(f"{key}: names {amount(len(names), 'class')}. Allowed: 1 to {_MOST}.")
    colors = tuple((color[0], color[1], color[2]) for color in labels if len(color) == 3)
    if colors:
        return tuple(names), MaskFile(Path(), tuple(labels.values()), colors)
    # Values that are not in the palette mean a label beyond all classes.
    return tuple(names), MaskFile(Path(), tuple(labels.get((value,), _MOST) for value in range(IGNORE + 1)))


@dataclass(frozen=True)
class _Facts:
    """What is known of a mask: its size, its labels with their colors, empty without a palette, and its fault."""

    height: int
    width: int
    colors: Mapping[int, str]
    fault: str

    @classmethod
    def of(cls, line: str) -> "_Facts":
        """Return what a line of `_judge` says."""
        height, width, labels, fault = line.split(" ", 3)
        pairs = (word.partition(":") for word in labels.split(",") if word)
        return cls(int(height), int(width), {int(label): color for label, _, color in pairs}, fault)

    @property
    def top(self) -> int:
        """The highest label that counts; -1: there is none."""
        return max((label for label in self.colors if label != IGNORE), default=-1)


def read_masks(found: Sequence[Pairs], names: tuple[str, ...], plain: MaskFile) -> Dataset:
    """Return the data set of the images of train, and of val if there is one; masks that do not fit are faults.

    Args:
        found: the images of each split.
        names: those of the classes; empty: numbers up to the highest that is found.
        plain: what the pixels of masks mean, without a file. Unless it says so, all masks must mean the same.

    Raises:
        UserError: no mask has a label, or values mean one thing in a mask and another in the next.
    """
    everything = [mask for pairs in found for mask in pairs.values() if isinstance(mask, Path)]
    cache = cache_file("mask labels", everything, plain.labels, plain.colors)
    lines = remember(everything, lambda file: _judge(replace(plain, path=file)), cache)
    facts = {file: _Facts.of(line) for file, line in zip(everything, lines, strict=True)}
    highest = max((of.top for of in facts.values()), default=-1)
    if (highest < 1 and not names) or (highest == 0 and len(names) > 1):
        if bad := next((f"{file} {of.fault}" for file, of in facts.items() if of.fault), ""):
            raise UserError(f"data.root: {bad}")
        only = f"no label but {IGNORE if highest else 0}, which is nothing to learn; {IGNORE} does not count"
        remedy = "other masks; or data.palette=FILE, with lines such as background,0 and object,255"
        raise UserError(
            f"data.root: the masks, such as {next(iter(everything), 'none')}, have {only}. Allowed: {remedy}."
        )
    notices = () if plain.labels or plain.colors else _compare(facts, highest)
    if not names:
        labels = {label for of in facts.values() for label in of.colors}
        notices = (*notices, describe_gaps(labels, "name them: data.palette=FILE with lines name,value"))
    names = names or tuple(map(str, range(highest + 1)))
    made: list[Split] = []
    faults: dict[ImageRef, str] = {}
    for pairs in found:
        headers = read_headers(list(pairs))
        targets = []
        for file, mask in pairs.items():
            target = replace(plain, path=Path(mask), classes=len(names))
            fault = mask if isinstance(mask, str) else ""
            if not fault and file in headers:  # others cannot be read, which the check reports
                of = facts[target.path]
                turn, fault = headers[file].turn_of((of.height, of.width)), of.fault
                if not fault and of.top >= len(names):
                    fault = f"has the mask {target.path.name} with the label {of.top} of {len(names)} classes"
                elif not fault and turn is None:
                    size = " x ".join(map(str, headers[file].shown))
                    fault = f"has {size} pixels, but its mask {mask} {of.height} x {of.width}"
                target = replace(target, orientation=turn or 1)
            targets.append(NO_MASK if fault else target)
            faults |= {file: fault} if fault else {}
        made.append(Split(tuple(pairs), tuple(targets), MASKS))
    return Dataset(names, made[0], made[1] if len(made) > 1 else NO_VAL, faults=faults).noting(*notices)


def _compare(facts: Mapping[Path, _Facts], highest: int) -> tuple[str, ...]:
    """Check that values mean the same in all masks; return what is strange about them."""
    good = {file: of.colors for file, of in facts.items() if not of.fault}
    remedy = "state what values mean, with data=masks: data.palette=FILE with lines such as"
    odd = next((file for file, colors in good.items() if set(colors) == {0, IGNORE}), None)
    if highest == 1 and odd:
        other = next(file for file, colors in good.items() if 1 in colors)
        what = f"{odd} has the values 0 and {IGNORE}, but {other} has 1; {IGNORE} does not count"
        raise UserError(f"data.root: {what}. Make them alike, or {remedy} background,0 object,1 and object,{IGNORE}.")
    first: dict[int, tuple[str, Path]] = {}
    for file, colors in good.items():
        for label, color in colors.items():
            known, where = first.setdefault(label, (color, file)) if color else ("", file)
            if color != known and label != IGNORE:
                what = f"the label {label} is #{known} in the palette of {where}, but #{color} in that of {file}"
                raise UserError(f"data.root: {what}. Use one palette, or {remedy} name,red,green,blue or name,value.")
    gray = next((file for file, colors in good.items() if colors and not any(colors.values())), None)
    if not (first and gray):
        return ()
    where = next(iter(first.values()))[1]
    return (f"data.root: some masks have a palette, such as {where}, others do not, such as {gray}: values are labels",)


def find_pairs(images: Path, masks: Path, image_suffix: str = "", mask_suffix: str = "") -> Pairs:
    """Return the images in a folder with their masks in another one, by the path in it without suffix and extension.

    Raises:
        UserError: a folder is missing, or holds no images.
    """
    for folder in (images, masks):
        if not folder.is_dir():
            raise UserError(f"data.root: there is no folder {folder}.{near_file(folder, folder=True)}")
    files = [file for file in find_images(images) if file.stem.endswith(image_suffix)]
    if not files:
        raise UserError(f"data.root: {images} holds no images.")
    named: dict[str, list[Path]] = {}
    for mask in find_images(masks, with_foreign=True):
        named.setdefault(_key(mask, masks, mask_suffix), []).append(mask)
    pairs: dict[Path, Path | str] = {}
    for file in files:
        key = _key(file, images, image_suffix)
        match named.get(key, []):
            case [mask]:
                pairs[file] = mask
            case [mask, other, *_]:
                pairs[file] = f"has several masks: {mask.name} and {other.name}"
            case _:
                pairs[file] = f"has no mask: no {key}{mask_suffix}.png in {shown(masks)}"
    return pairs


def _key(file: Path, folder: Path, suffix: str) -> str:
    stem = file.relative_to(folder).with_suffix("").as_posix()
    return stem.removesuffix(suffix) if stem.endswith(suffix) else f"{stem}/"  # which no other has


def _judge(mask: MaskFile) -> str:
    """Return height, width, the labels with their colors in the palette, if there is one, and the fault of a mask."""
    try:
        labels = mask.read()
        with Image.open(mask.path) as image:
            palette = bytes(image.getpalette() or ()) if image.mode == "P" and not mask.colors else b""
    except UserError as error:
        return f"0 0  has a bad mask: {str(error).rstrip('.')}"
    found = np.flatnonzero(np.bincount(labels.ravel(), minlength=IGNORE + 1)).tolist()
    shown = ",".join(f"{label}:{palette[3 * label : 3 * label + 3].hex()}" for label in found)
    return f"{labels.shape[0]} {labels.shape[1]} {shown} "
