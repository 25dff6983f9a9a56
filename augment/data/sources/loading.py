"""Load the dataset of a source: list its images, check them once, select some of them, and log notices."""

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path

from augment.data.check import check_cache_of, examine_files, group_copies, leave_out
from augment.data.dataset import Dataset, Split, check_dataset
from augment.data.format_detection import find_format
from augment.data.formats.raster_files import RASTER_EXTENSIONS
from augment.data.image_faults import CONVERT
from augment.data.images import known_of, name_of
from augment.data.selection import balanced, cut_val, take_fraction
from augment.data.sources.registry import SOURCES, ListedSource, Source, without_selection
from augment.data.targets.boxes import BACKGROUND
from augment.data.targets.class_names import describe_alike, suggest_spelling
from augment.support.errors import UserError, first_line
from augment.support.formatting import amount, list_some, plural

_SHOWN = 50  # maximum number of skipped images in a notice


def log_notices(notices: Iterable[str]) -> None:
    """Log sentences as warnings, except for empty ones."""
    for notice in filter(None, notices):
        logging.getLogger(__name__).warning("%s", notice)


def describe_missing(dataset: Dataset, names: tuple[str, str] = ("train", "val")) -> list[str]:
    """Describe the classes or labels that no image of a split has.

    Args:
        dataset: the dataset.
        names: the names of its two splits, for messages.

    Raises:
        UserError: both splits have classes, but they share none.
    """
    present = {names[0]: _present(dataset, dataset.train)}
    if len(dataset.val):
        present[names[1]] = _present(dataset, dataset.val)
    if not any(present.values()):
        return []
    if all(present.values()) and not set.intersection(*present.values()):
        train, val = (list_some([dataset.classes[index] for index in sorted(some)]) for some in present.values())
        raise UserError(
            f"data: the splits share no class. Training images have {train}, but "
            f"{'test' if names[1] == 'test' else 'validation'} images have {val}. Use the same classes in both."
        )
    first = int(dataset.classes[0] == BACKGROUND)
    all_of_them = amount(len(dataset.classes) - first, dataset.kind.noun)
    notices = []
    for name, some in present.items():
        absent = [dataset.classes[index] for index in range(first, len(dataset.classes)) if index not in some]
        if not absent:
            continue
        have = plural(len(absent), "has", "have")
        notice = f"{len(absent)} of {all_of_them} {have} no image in {name}: {list_some(absent)}."
        if absent == ["0"] and name == names[0] and not dataset.kind.follows:
            notice += " If labels begin at 1, set data.label_offset=1."
        notices.append(notice + suggest_spelling(absent, _images_of_classes(dataset)))
    return notices


def _present(dataset: Dataset, split: Split) -> set[int]:
    return {index for target in set(split.targets) for index in dataset.kind.present(target)}


def _images_of_classes(dataset: Dataset) -> Counter[str]:
    """Return the number of images of each class."""
    count = Counter[str]()
    for target, images in Counter(chain(dataset.train.targets, dataset.val.targets)).items():
        count.update({dataset.classes[index]: images for index in dataset.kind.present(target)})
    return count


def describe_left_out(split: Split, name: str) -> str:
    """Describe the images that the check left out of a split, or return an empty string."""
    if not split.left_out:
        return ""
    count = f"{len(split.left_out):,} of {amount(len(split) + len(split.left_out), f'{name} image')}"
    images = (f"{name_of(image.file)} {image.reason}" for image in split.left_out)
    return f"data.skip_bad=true: left out {count}: {list_some(images, _SHOWN, separator='; ')}"


def describe_foreign(dataset: Dataset) -> str:
    """Describe the images in formats that are left out, or return an empty string."""
    splits = (dataset.train, dataset.val)
    files = [file for split in splits for file in split.foreign]
    if not files:
        return ""
    extensions = Counter(file.suffix.lower() for file in files).most_common()
    kinds = ", ".join(f"{count:,} {extension}" for extension, count in extensions)
    share = f"{len(files):,} of {amount(len(files) + sum(map(len, splits)), 'image')}"
    if all(extension in RASTER_EXTENSIONS for extension, _ in extensions):
        return (
            f"left out {share}, because their folder also has other images: {kinds}, such as {files[0]}. To use them, "
            "move the other images away"
        )
    return f"left out {share}, which DALI does not decode: {kinds}, such as {files[0]}. {CONVERT}"


def describe_copies(dataset: Dataset, scored: str = "val") -> str:
    """Describe the images of val or test that are copies of training images, or return an empty string."""
    train = set(known_of(dataset.train.files, dataset.copies).values())
    val = known_of(dataset.val.files, dataset.copies).items()
    copies = [dataset.val.files[index] for index, group in val if group in train]
    if not copies:
        return ""
    count = f"{len(copies):,} of {amount(len(dataset.val), f'{scored} image')}"
    are = plural(len(copies), "is a copy of a train image", "are copies of train images")
    return f"data: {count} {are}, such as {name_of(copies[0])}. python -m augment info lists them"


# The datasets that this process has loaded, and selections from them. The jobs of a sweep share both. Call
# `LOADED.clear()` in a notebook after files or code have changed.
LOADED: dict[tuple[object, ...], Dataset] = {}


def load_dataset(source: Source, *, needs_val: bool = True) -> Dataset:
    """Load a source's dataset once per process and current folder, and log its notices the first time.

    The validation split is cut first, then the fraction is taken, and classes are balanced last.

    Args:
        source: the source.
        needs_val: whether a missing validation split is an error, instead of an empty split.

    Raises:
        UserError: the dataset cannot be used or obtained, an image cannot be decoded and `skip_bad` is false, or the
            classes cannot be split or balanced as requested.
    """
    unselected, folder = without_selection(source), Path.cwd()
    if (key := (unselected, folder, needs_val)) not in LOADED:
        LOADED[key] = _load(unselected, needs_val=needs_val)
        log_notices(LOADED[key].notices)
    dataset = LOADED[key]
    if (selection := ("selection", source, folder, needs_val)) not in LOADED:
        LOADED[selection] = _select_and_balance(source, dataset)
        log_notices(LOADED[selection].notices[len(dataset.notices) :])
    return LOADED[selection]


def select(source: Source, dataset: Dataset) -> Dataset:
    """Return the images that the settings of a source select, with notices about the selection.

    Raises:
        UserError: there are too few images, or the splits share no class.
    """
    dataset = cut_val(source, dataset)
    notices = describe_missing(dataset, source.split_names)
    if source.fraction < 1:
        dataset = take_fraction(dataset, fraction=source.fraction, seed=source.split_seed)
    return dataset.noting(*notices, describe_copies(dataset, source.split_names[1]))


def _load(source: Source, *, needs_val: bool) -> Dataset:
    lists_val = needs_val and not source.cuts_val
    if lists_val and isinstance(source, ListedSource) and source.val is None:
        raise UserError(source.val_missing)
    name = next((name for name, cls in SOURCES.items() if cls is type(source)), type(source).__name__)
    try:
        loaded = source.load() if needs_val else source.load_train()
    except (OverflowError, UnicodeError) as error:
        raise UserError(f"data: a name or a number cannot be stored: {first_line(error)}. Change it.") from error
    dataset = check_dataset(loaded, f"data.source={name}")
    if dataset.problems:
        raise UserError(dataset.problems[0])
    if lists_val and not len(dataset.val):
        raise UserError(source.val_missing)
    dataset = find_format(source, dataset)
    return _checked(source, dataset).noting(describe_foreign(dataset), describe_alike(dataset.classes))


def _checked(source: Source, dataset: Dataset) -> Dataset:
    """Leave out the images that cannot be decoded, and find copies, in the splits that `Source.must_check` returns."""
    skip_bad, names = getattr(source, "skip_bad", False), source.must_check(dataset)
    images = (dataset.train.files if "train" in names else ()) + (dataset.val.files if "val" in names else ())
    found, digests = examine_files(images, cache=check_cache_of(source))
    reasons = {**dataset.faults, **found}
    split_names = zip((dataset.train, dataset.val), source.split_names, strict=True)
    train, val = (leave_out(split, name, reasons, skip_bad=skip_bad) for split, name in split_names)
    checked = replace(dataset, train=train, val=val, copies=group_copies(images, digests))
    return checked.noting(*map(describe_left_out, (train, val), source.split_names))


def _select_and_balance(source: Source, dataset: Dataset) -> Dataset:
    if source.balance not in (allowed := dataset.kind.balances):
        raise UserError(
            f"data.balance={source.balance} does not support {dataset.kind.units}. Allowed: {', '.join(allowed)}."
        )
    return balanced(select(source, dataset), source.balance, source.split_seed)
