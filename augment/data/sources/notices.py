"""What is strange about a data set, in sentences: images left out, missing classes, foreign formats, copies."""

import logging
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable

from augment.data.dataset import Dataset, ImageRef, Split
from augment.data.faults import CONVERT
from augment.data.images import name_of
from augment.data.paths import known_of
from augment.data.targets.boxes import BACKGROUND
from augment.data.targets.kind import Target
from augment.support.errors import UserError
from augment.support.text import amount, list_some, plural

logger = logging.getLogger(__name__)

_SHOWN = 50  # images that were left out


def log_notices(notices: Iterable[str]) -> None:
    """Log sentences as warnings, except for empty ones."""
    for notice in filter(None, notices):
        logger.warning("%s", notice)


def describe_missing(dataset: Dataset, *, only_val: bool = False) -> list[str]:
    """Describe the classes or labels that no image of a split has; with `only_val`, train is val, read alone.

    Raises:
        UserError: both splits have classes, but they share none.
    """
    splits = {"val" if only_val else "train": dataset.train} | ({"val": dataset.val} if len(dataset.val) else {})
    present = {
        name: {index for target in set(split.targets) for index in dataset.kind.present(target)}
        for name, split in splits.items()
    }
    if not any(present.values()):
        return []
    if all(present.values()) and not set.intersection(*present.values()):
        of_train, of_val = (list_some([dataset.classes[index] for index in sorted(some)]) for some in present.values())
        raise UserError(f"data: no class of val is in train; train has {of_train}, val {of_val}.")
    notices = []
    for name, some in present.items():
        background = (0,) if dataset.classes[0] == BACKGROUND else ()
        absent = [known for index, known in enumerate(dataset.classes) if index not in (*some, *background)]
        if absent:
            of, have = amount(len(dataset.classes) - len(background), dataset.noun), plural(len(absent), "has", "have")
            notices.append(f"{len(absent)} of {of} {have} no image in {name}: {list_some(absent)}.")
            if absent == ["0"] and name == "train":
                notices[-1] += " Do labels begin at 1? Then set data.label_offset=1."
    return notices


def describe_left_out(split: Split, name: str) -> str:
    """Describe the images that the check left out of a split; empty if there are none."""
    if not split.left_out:
        return ""
    count = f"{len(split.left_out):,} of {amount(len(split) + len(split.left_out), f'{name} image')}"
    images = (f"{name_of(image.file)} {image.reason}" for image in split.left_out)
    return f"data.skip_bad=true: left out {count}: {list_some(images, _SHOWN, separator='; ')}"


def describe_foreign(dataset: Dataset) -> str:
    """Describe the images in formats that DALI does not decode, which are left out; empty if there are none."""
    splits = (dataset.train, dataset.val)
    files = [file for split in splits for file, _ in split.foreign]
    if not files:
        return ""
    endings = Counter(file.suffix.lower() for file in files).most_common()
    kinds = ", ".join(f"{count:,} {ending}" for ending, count in endings)
    part = f"{len(files):,} of {amount(len(files) + sum(map(len, splits)), 'image')}"
    are, formats = plural(len(files), "is", "are"), plural(len(files), "its format", "their formats")
    return f"{part} {are} left out, because DALI does not decode {formats}: {kinds}, such as {files[0]}; {CONVERT}"


def describe_copies(dataset: Dataset) -> str:
    """Describe copies across the splits and copies with different targets in one line; empty if there are none."""
    if not dataset.copies:
        return ""
    train, val = (
        [(group, split.files[n], split.targets[n]) for n, group in known_of(split.files, dataset.copies).items()]
        for split in (dataset.train, dataset.val)
    )
    targets: dict[int, dict[Hashable, tuple[Target, ImageRef]]] = defaultdict(dict)
    for group, image, target in train + val:
        targets[group].setdefault(dataset.kind.content(target), (target, image))
    learned, found = {group for group, _, _ in train}, []
    scored = [image for group, image, _ in val if group in learned]
    if scored:
        are = plural(len(scored), "is a copy of a train image", "are copies of train images")
        found.append(f"{len(scored):,} of {amount(len(dataset.val), 'val image')} {are}, such as {name_of(scored[0])}")
    if clashing := [images for images in targets.values() if len(images) > 1]:
        pairs = list(clashing[0].values())[:2]
        shown = [f"{name_of(image)} ({dataset.kind.caption(target, dataset.classes)})" for target, image in pairs]
        found.append(
            f"{amount(len(clashing), 'image')} with copies of other {dataset.kind.units}, such as {' and '.join(shown)}"
        )
    return f"data: {'; '.join(found)}; python -m augment info lists them" if found else ""
