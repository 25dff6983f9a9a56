"""Report bad images, images in both splits and missing classes while loading, and replay these reports later."""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from augment.data.check import examine_files, leave_out
from augment.data.copies import group_copies
from augment.data.dataset import CLASSES_FILE, DATA_DIR, Dataset, ImageRef, Split
from augment.data.faults import CONVERT
from augment.data.formats.shards import find_shards
from augment.params import Count, Flag
from augment.support.errors import UserError
from augment.support.files import digest
from augment.support.text import amount, list_some, plural

logger = logging.getLogger(__name__)

_PACKAGE = __name__.partition(".")[0]

_RECORDING = RLock()  # the package has one level and one `propagate` for all threads

# Settings of the sources whose images are checked.
SKIP_BAD = Flag(default=False, doc="leave out images that cannot be decoded, instead of an error")
MAX_BAD = Count(
    default=100,
    within=(0, 10**9),
    doc=(
        "with skip_bad: maximum number of images that may turn bad during training and are replaced by others of "
        "their classes"
    ),
)


def check_images(
    dataset: Dataset,
    about: object,
    *,
    skip_bad: bool,
    max_bad: int,
    folder: str = DATA_DIR,
    only: Collection[str] = ("train", "val"),
    only_val: bool = False,
) -> Dataset:
    """Return the images of a dataset that can be decoded, with `Dataset.copies`; warn of classes that lost all images.

    Args:
        dataset: the images to check.
        about: identifies the cache of verdicts.
        skip_bad: leave out bad images instead of raising; while they are read, let others stand in for them.
        max_bad: number of images that may turn out bad while they are read.
        folder: folder of the cache.
        only: the splits to check.
        only_val: whether train is val, read alone, for messages.

    Raises:
        UserError: an image cannot be decoded and skip_bad is false, or the remaining splits share no class.
    """
    cache = Path(folder) / f"checked-{digest(about)}.json"
    good: dict[str, Any] = {}
    digests: dict[ImageRef, str] = {}
    for name in only:
        split: Split = getattr(dataset, name)
        examined = examine_files(split.files, cache=cache)
        called = "val" if only_val else name
        good[name] = leave_out(split, called, examined.problems, skip_bad=skip_bad, cache=cache)
        digests |= examined.digests
    rest = replace(dataset, **good)
    rest = replace(rest, copies=group_copies(rest.train.files + rest.val.files, digests))
    if skip_bad:
        train, val = (replace(split, max_bad=max_bad) for split in (rest.train, rest.val))
        rest = replace(rest, train=train, val=val)
    check_remaining(dataset, rest, only_val=only_val)
    return rest


def check_remaining(before: Dataset, after: Dataset, *, only_val: bool = False) -> None:
    """Warn of classes or labels that have no image left in a split.

    Args:
        before: the dataset with all images.
        after: the dataset without bad images.
        only_val: see `check_images`.

    Raises:
        UserError: no class of val is left in train.
    """
    if after.task == "regress":
        return
    noun = "class" if after.task == "classify" else "label"
    first = "val" if only_val else "train"
    for name, whole, rest in ((first, before.train, after.train), ("val", before.val, after.val)):
        missing = sorted(_present(whole) - _present(rest)) if len(rest) < len(whole) else []
        if missing:
            logger.warning(
                "data.skip_bad=true: %d of %s %s no image left in %s: %s.",
                len(missing), amount(len(after.classes), noun), plural(len(missing), "has", "have"), name,
                list_some([after.classes[index] for index in missing]),
            )  # fmt: skip
    if after.task == "classify" and len(after.val) and not _present(after.train) & _present(after.val):
        raise UserError("data.skip_bad=true: no class of val is left in train. Repair the images.")


def _present(split: Split) -> set[int]:
    """Return the classes or labels that images have."""
    present: set[int] = set()
    for target in set(split.targets):
        present.update([target] if isinstance(target, int) else np.flatnonzero(target).tolist())
    return present


def warn_of_missing(dataset: Dataset) -> None:
    """Warn of classes that have images in train, but none in the val that was cut from it."""
    missing = sorted(_present(dataset.train) - _present(dataset.val))
    if missing:
        logger.warning(
            "%d of %s %s too few images for one in val: %s",
            len(missing), amount(len(dataset.classes), "class"), plural(len(missing), "has", "have"),
            list_some([dataset.classes[index] for index in missing]),
        )  # fmt: skip


def warn_of_foreign(dataset: Dataset) -> None:
    """Warn of images in formats that DALI does not decode, which are left out."""
    if text := describe_foreign(dataset):
        logger.warning("data: %s", text)


def describe_foreign(dataset: Dataset) -> str:
    """Describe the images in formats that DALI does not decode in a sentence; empty if there are none."""
    splits = (dataset.train, dataset.val)
    files = [file for split in splits for file, _ in split.foreign]
    if not files:
        return ""
    endings = Counter(file.suffix.lower() for file in files).most_common()
    kinds = ", ".join(f"{count:,} {ending}" for ending, count in endings)
    part = f"{len(files):,} of {amount(len(files) + sum(map(len, splits)), 'image')}"
    are, formats = plural(len(files), "is", "are"), plural(len(files), "its format", "their formats")
    return f"{part} {are} left out, because DALI does not decode {formats}: {kinds}, such as {files[0]}; {CONVERT}"


def warn_of_unused_names(source: object, dataset: Dataset) -> None:
    """Warn if classes are numbered although a file next to the data names them.

    Args:
        source: only sources with the settings `classes` and `train`, a pattern of files, are examined.
        dataset: the dataset of the source.
    """
    pattern = getattr(source, "train", None)
    numbered = any(dataset.classes == tuple(map(str, range(i, len(dataset.classes) + i))) for i in (0, 1))
    if getattr(source, "classes", "") is not None or not isinstance(pattern, str) or not numbered:
        return
    try:
        file = find_shards(pattern, "data.train")[0].parent / CLASSES_FILE
    except UserError:  # a folder, or code
        return
    if file.is_file() and tuple(file.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]) != dataset.classes:
        logger.warning("%s may hold the names of the classes; data.classes=%s reads them", file, file)


@contextmanager
def recorded_notices() -> Iterator[list[logging.LogRecord]]:
    """Record the package's log entries from INFO on, even those that the log level hides."""
    with _RECORDING:
        package = logging.getLogger(_PACKAGE)
        level, shown, propagate = package.level, package.getEffectiveLevel(), package.propagate
        notices: list[logging.LogRecord] = []

        def record(notice: logging.LogRecord) -> bool:
            notices.append(notice)
            if notice.levelno >= shown:
                logging.getLogger().handle(notice)
            return False

        recorder = logging.Handler()
        recorder.addFilter(record)
        package.addHandler(recorder)
        package.setLevel(min(shown, logging.INFO))
        package.propagate = False  # the recorder forwards entries that are shown
        try:
            yield notices
        finally:
            package.removeHandler(recorder)
            package.setLevel(level)
            package.propagate = propagate


def replay_notices(notices: Iterable[logging.LogRecord], before: float) -> None:
    """Log recorded entries again, with their own times, if they are older than `before` (see `time.time`)."""
    for notice in notices:
        if notice.created < before:
            logging.getLogger(notice.name).handle(notice)
