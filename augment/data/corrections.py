"""Corrections of training labels: a CSV file that changes the labels of some images and drops others."""

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from augment.data.dataset import Dataset
from augment.data.formats.text_files import read_table, read_text
from augment.data.images import name_of, portable_name, take_images
from augment.support.errors import UserError, for_each
from augment.support.files import digest, expanded
from augment.support.formatting import amount, from_table_cell
from augment.support.nested import grouped

_ALLOWED = "a CSV file with the columns path, label and optionally action"
ACTIONS = ("keep", "change", "drop")

_PINNED = re.compile(r"#[0-9a-f]{10}$")


def pinned(file: str) -> str:
    """Append a hash of the file's content to the value of data.labels, such as `corrections.csv#0123456789`.

    The hash gives runs with different corrections different configurations.

    Raises:
        UserError: the file cannot be read.
    """
    if _PINNED.search(file):
        return file
    return f"{file}#{digest(read_text('data.labels', expanded(file), _ALLOWED))[:10]}"


def corrected(dataset: Dataset, given: str | None, whole: Dataset) -> Dataset:
    """Apply the corrections in the data.labels file to the train split. Return the dataset, with a notice.

    Validation and test images do not change, so scores stay comparable. A path matches the image with this path. If the
    dataset has moved, it matches the image with the same folder and file name, and with the most parent folders in
    common.

    Args:
        dataset: the dataset.
        given: the value of data.labels.
        whole: the dataset before val or test was cut from train. Lines about images that were cut have no effect, so
            that all folds can use one file.

    Raises:
        UserError: the file has an unknown path, class or action, or lists an image twice.
    """
    if given is None:
        return dataset
    file = _PINNED.sub("", given)
    if given not in (file, pinned(file)):
        raise UserError(f"data.labels={file}: its content has changed since the run started. Restore the file.")
    train, kind, changed, dropped = dataset.train, dataset.kind, 0, list[int]()
    targets, seen, find = list(train.targets), set[int](), _Finder(dataset, whole)

    def apply(row: tuple[str, str, str, str]) -> None:
        nonlocal changed
        where, path, action, label = row
        if action not in ACTIONS:
            raise UserError(f"{where}: unknown action '{action}'. Allowed: {', '.join(ACTIONS)}.")
        positions = find.positions(path, where)
        if not seen.isdisjoint(positions):
            raise UserError(f"{where}: {path} is also in a line above. Keep one line for each image.")
        seen.update(positions)
        if action == "drop":
            dropped.extend(positions)
        elif action == "change":
            target = kind.target_of(label, dataset.classes, where)
            for position in positions:
                changed += targets[position] != target
                targets[position] = target

    for_each(apply, _rows(file))
    if len(dropped) == len(train) > 0:
        raise UserError(f"data.labels={file} drops all training images. Remove some of its lines.")
    notice = f"data.labels: changed the {kind.noun} of {amount(changed, 'image')} and dropped {len(dropped):,}"
    kept = np.delete(np.arange(len(train)), dropped)
    files = take_images(train.files, kept) if dropped else train.files
    train = replace(train, files=files, targets=tuple(targets[position] for position in kept.tolist()))
    return replace(dataset, train=train).noting(notice)


def _rows(file: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield the location of each row for messages, its path, its action and its label."""
    header, rows = read_table("data.labels", expanded(file), _ALLOWED)
    key = f"data.labels={file}"
    if missing := [name for name in ("path", "label") if header.count(name) != 1]:
        raise UserError(
            f"{key}: its columns are {', '.join(header)}, but it needs one column '{missing[0]}'. Use {_ALLOWED}. "
            "RUN/labels.html saves such a file."
        )
    if not rows:
        raise UserError(f"{key} has no rows. Add corrections, or remove data.labels.")
    for number, cells in rows:
        row = {name: from_table_cell(cell) for name, cell in zip(header, cells, strict=True)}
        yield f"{key}: line {number}", row["path"], row.get("action") or "change", row["label"]


class _Finder:
    """Finds training images by path."""

    def __init__(self, dataset: Dataset, whole: Dataset) -> None:
        # For each folder and file name, the full names with their positions in train. Other images have no positions.
        self._known: dict[str, dict[str, list[int]]] = {}
        self._by_end: dict[str, dict[str, list[str]]] = {}  # the same full names by their ends
        # With data=own, images of both splits may have the same name. Corrections then refer to the training image.
        self._val = set(map(name_of, whole.val.files)).difference(map(name_of, whole.train.files))
        left_out = [image.file for split in (whole.train, whole.val) for image in split.left_out]
        others = (*whole.train.files, *whole.val.files, *left_out)
        for position, image in enumerate((*dataset.train.files, *others)):
            short = portable_name(image).lstrip("/")  # the name of a file in the current folder starts with a slash
            positions = self._known.setdefault(short, {}).setdefault(name_of(image), [])
            positions += [position] if position < len(dataset.train) else []

    def positions(self, path: str, where: str) -> list[int]:
        """Return the positions of an image in train. An image that the check left out has none."""
        ends = _ends(path.replace("\\", "/"))
        short = ends[-2:][0].lstrip("/")
        known = self._known.get(short, {})
        best = [path] if path in known else [*known]
        if len(best) > 1:  # a moved dataset
            if short not in self._by_end:
                self._by_end[short] = grouped((end, name) for name in known for end in _ends(name))
            best = next((self._by_end[short][end] for end in ends if end in self._by_end[short]), best)
        if not best:
            raise UserError(f"{where}: no training image is named {path}. Use the paths in a run's labels.csv.")
        if len(best) > 1:
            raise UserError(f"{where}: {path} matches {len(best)} images, such as {best[0]}. Write the full path.")
        if best[0] in self._val:
            raise UserError(f"{where}: {path} is a validation image, which corrections do not change. Remove the line.")
        return known[best[0]]


def _ends(path: str) -> list[str]:
    """Return the path and its ends of up to 100 parts, the longest first."""
    parts = path.rsplit("/", 100)
    return ["/".join(parts[start:]) for start in range(len(parts))]
