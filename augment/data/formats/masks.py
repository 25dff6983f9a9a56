"""Find the mask of each image in folders, and read the meaning of pixel values from palettes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from augment.data.cache import cached_lines
from augment.data.dataset import Dataset
from augment.data.formats.annotations import FaultError, Header, build_dataset, cache_file
from augment.data.formats.folder import find_images
from augment.data.formats.text_files import read_rows
from augment.data.targets.masks import MASKS, NO_MASK, MaskFile, describe_gaps
from augment.data.targets.spatial import IGNORE
from augment.support.errors import UserError
from augment.support.files import near_file, shown
from augment.support.formatting import amount, list_some
from augment.support.nested import grouped

_MOST = IGNORE - 1  # classes

# The images of a split with their masks, or with the fault of an image without a mask.
Pairs = Mapping[Path, Path | str]


def read_palette(file: Path) -> tuple[tuple[str, ...], MaskFile]:
    """Read a palette: lines `name,value` or `name,red,green,blue` in the order of the classes.

    Lines with the same name are one class. Pixels of lines without a name are ignored.

    Returns:
        The class names, and a `MaskFile` without a file, which states the meaning of pixel values.

    Raises:
        UserError: the file cannot be read, or a line has the wrong form.
    """
    key = f"data.palette={file}"
    allowed = "lines name,red,green,blue or name,value, with values from 0 to 255. Write each value once"
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
        raise UserError(f"{key} has {amount(len(names), 'class')}. Allowed: 1 to {_MOST}.")
    colors = tuple((color[0], color[1], color[2]) for color in labels if len(color) == 3)
    if colors:
        return tuple(names), MaskFile(Path(), tuple(labels.values()), colors)
    # A value that is not in the palette gets a label beyond all classes.
    return tuple(names), MaskFile(Path(), tuple(labels.get((value,), _MOST) for value in range(IGNORE + 1)))


@dataclass(frozen=True)
class _MaskFacts:
    """Facts about a mask."""

    height: int
    width: int
    colors: Mapping[int, str]  # the palette color of each label in the mask, or empty strings without a palette
    fault: str

    @property
    def highest(self) -> int:
        """The highest label that counts, or -1 if no label counts."""
        return max((label for label in self.colors if label != IGNORE), default=-1)


def read_masks(found: Sequence[Pairs], names: tuple[str, ...], template: MaskFile) -> Dataset:
    """Return the dataset of one or two splits of images with masks. Masks that do not fit are faults.

    Args:
        found: the images of each split.
        names: the class names. Without names, the numbers up to the highest label are the names.
        template: a `MaskFile` without a file, which states the meaning of pixel values. If it states nothing, all masks
            must agree.

    Raises:
        UserError: the masks have no labels to learn, or disagree about the meaning of values.
    """
    facts = _read_facts([mask for pairs in found for mask in pairs.values() if isinstance(mask, Path)], template)
    highest = max((mask_facts.highest for mask_facts in facts.values()), default=-1)
    if (highest < 1 and not names) or (highest == 0 and len(names) > 1):
        raise _nothing_to_learn(facts, highest)
    notices: list[str] = []
    if not template.labels and not template.colors:
        _compare(facts, highest)
    if not names:
        labels = {label for mask_facts in facts.values() for label in mask_facts.colors}
        notices.append(describe_gaps(labels, "name them: data.palette=FILE with lines name,value"))
        names = tuple(map(str, range(highest + 1)))

    def make(mask: Path | str, header: Header | None) -> MaskFile:
        if isinstance(mask, str):
            raise FaultError(mask)
        found = facts[mask]
        if found.fault:
            raise FaultError(found.fault)
        if found.highest >= len(names):
            raise FaultError(f"has the mask {mask.name} with the label {found.highest}. Allowed: 0 to {len(names) - 1}")
        turn = (
            header.annotated_orientation((found.height, found.width)) if header else 1
        )  # the check reports an unreadable header
        if header and turn is None:
            size = " x ".join(map(str, header.upright_size))
            raise FaultError(f"has {size} pixels, but its mask {mask} has {found.height} x {found.width}")
        return replace(template, path=mask, classes=len(names), orientation=turn or 1)

    return build_dataset(names, found, MASKS, NO_MASK, make).noting(*notices)


def _nothing_to_learn(facts: Mapping[Path, _MaskFacts], highest: int) -> UserError:
    if bad := next((f"{file} {found.fault}" for file, found in facts.items() if found.fault), ""):
        return UserError(f"data.root: {bad}")
    return UserError(
        f"data.root: the masks, such as {next(iter(facts))}, have no label except {IGNORE if highest else 0}, "
        f"so there is nothing to learn. {IGNORE} is ignored. Use other masks, or set data.palette=FILE with lines "
        "such as background,0 and object,255."
    )


def _compare(facts: Mapping[Path, _MaskFacts], highest: int) -> None:
    """Check that values mean the same in all masks."""
    good = {file: found.colors for file, found in facts.items() if not found.fault}
    remedy = "set data.palette=FILE with lines such as"
    odd = next((file for file, colors in good.items() if set(colors) == {0, IGNORE}), None)
    if highest == 1 and odd:
        other = next(file for file, colors in good.items() if 1 in colors)
        raise UserError(
            f"data.root: {odd} has the values 0 and {IGNORE}, but {other} has 1. {IGNORE} is ignored. Use equal "
            f"values, or {remedy} background,0 object,1 and object,{IGNORE}."
        )
    first: dict[int, tuple[str, Path]] = {}
    for file, colors in good.items():
        for label, color in colors.items():
            known, where = first.setdefault(label, (color, file)) if color else ("", file)
            if color != known and label != IGNORE:
                raise UserError(
                    f"data.root: the label {label} is #{known} in the palette of {where}, but #{color} in the palette "
                    f"of {file}. Use one palette, or {remedy} name,red,green,blue or name,value."
                )


def find_pairs(images: Path, masks: Path, image_suffix: str = "", mask_suffix: str = "") -> Pairs:
    """Return the images of a folder with their masks in another folder. Paths must be equal except for the suffixes.

    Raises:
        UserError: a folder is missing, or holds no images.
    """
    for folder in (images, masks):
        if not folder.is_dir():
            raise UserError(f"data.root: the folder {folder} does not exist.{near_file(folder, folder=True)}")
    files = [file for file in find_images(images) if file.stem.endswith(image_suffix)]
    if not files:
        raise UserError(f"data.root: {images} holds no images.")
    named = grouped((_key(mask, masks, mask_suffix), mask) for mask in find_images(masks, with_foreign=True))
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
    if not any(isinstance(mask, Path) for mask in pairs.values()):
        found = list_some(mask.name for group in named.values() for mask in group) or "no images"
        raise UserError(
            f"data.root: no image has exactly one mask. {shown(files[0])} {pairs[files[0]]}. {shown(masks)} contains "
            f"{found}. If the names of images and masks end differently, set data.image_suffix and data.mask_suffix."
        )
    return pairs


def _key(file: Path, folder: Path, suffix: str) -> str:
    stem = file.relative_to(folder).with_suffix("").as_posix()
    return stem.removesuffix(suffix) if stem.endswith(suffix) else f"{stem}/"  # a key that matches no image


def _read_facts(masks: Sequence[Path], template: MaskFile) -> dict[Path, _MaskFacts]:
    lines = cached_lines(
        masks,
        lambda file: _facts_of(replace(template, path=file)),
        cache_file("mask facts", masks, template.labels, template.colors),
    )
    fields = zip(masks, map(json.loads, lines), strict=True)
    return {file: _MaskFacts(height, width, dict(colors), fault) for file, (height, width, colors, fault) in fields}


def _facts_of(mask: MaskFile) -> str:
    """Return the fields of `_MaskFacts` as JSON."""
    try:
        labels = mask.read()
        with Image.open(mask.path) as image:
            palette = bytes(image.getpalette() or ()) if image.mode == "P" and not mask.colors else b""
    except UserError as error:
        return json.dumps([0, 0, [], f"has a bad mask: {str(error).rstrip('.')}"])
    found = np.flatnonzero(np.bincount(labels.ravel(), minlength=IGNORE + 1)).tolist()
    colors = [(label, palette[3 * label : 3 * label + 3].hex()) for label in found]
    return json.dumps([*labels.shape, colors, ""])
