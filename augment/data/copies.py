"""Images with the same bytes: group them, and describe those that mislead a model or its scores."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from augment.data.dataset import Dataset, ImageRef, Split
from augment.data.images import name_of
from augment.data.targets.kind import Target
from augment.support.text import amount, plural


def group_copies(images: Sequence[ImageRef], digests: Mapping[ImageRef, str]) -> dict[ImageRef, int]:
    """Return the number of its group for each image that has the same digest as another, or is listed twice."""
    counts = Counter(digests.values())
    if len(images) > len(digests):  # hashing a million paths takes seconds
        counts.update(digests[image] for image, times in Counter(images).items() if times > 1 and image in digests)
    several = (digest for digest, count in counts.items() if count > 1)
    numbers = {digest: number for number, digest in enumerate(several)}
    return {image: numbers[digest] for image, digest in digests.items() if digest in numbers}


def describe_copies(dataset: Dataset) -> str:
    """Describe copies across the splits and copies with different targets in one line; empty if there are none."""
    if not dataset.copies:
        return ""
    train, val = (_copied(dataset, split) for split in (dataset.train, dataset.val))
    targets: dict[int, dict[Target, ImageRef]] = defaultdict(dict)
    for group, image, target in train + val:
        targets[group].setdefault(target, image)
    learned = {group for group, _, _ in train}
    scored = [image for group, image, _ in val if group in learned]
    found = []
    if scored:
        are = plural(len(scored), "is a copy of a train image", "are copies of train images")
        found.append(f"{len(scored):,} of {amount(len(dataset.val), 'val image')} {are}, such as {name_of(scored[0])}")
    if clashing := [images for images in targets.values() if len(images) > 1]:
        (one, first), (other, second), *_ = clashing[0].items()
        pairs = ((one, first), (other, second))
        shown = [f"{name_of(image)} ({dataset.kind.caption(target, dataset.classes)})" for target, image in pairs]
        found.append(
            f"{amount(len(clashing), 'image')} with copies of other {dataset.kind.units}, such as {' and '.join(shown)}"
        )
    return f"data: {'; '.join(found)}; python -m augment info lists them" if found else ""


def _copied(dataset: Dataset, split: Split) -> list[tuple[int, ImageRef, Target]]:
    """Return group, image and target of each image that has copies."""
    return [
        (dataset.copies[image], image, target)
        for image, target in zip(split.files, split.targets, strict=True)
        if image in dataset.copies
    ]
