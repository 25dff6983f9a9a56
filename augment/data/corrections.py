"""Corrections of training labels: a CSV file that changes the label of some images, and drops others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile

import numpy as np

from augment.data.dataset import Dataset
from augment.data.formats.text_files import read_table, read_text
from augment.data.image_refs import take_images
from augment.data.images import name_of, portable_name
from augment.support.errors import UserError, nearest
from augment.support.files import digest, expanded
from augment.support.formatting import amount, from_table_cell

_ALLOWED = "a CSV file with the columns path, label and optionally action"
ACTIONS = ("keep", "change", "drop")

_PINNED = re.compile(r"#[0-9a-f]{10}$")


def pinned(file: str) -> str:
    """Return the value of data.labels with a hash of the file's content, such as `corrections.csv#0123456789`.

    So runs with different corrections have different configurations.

    Raises:
        UserError: the file cannot be read.
    """
    return file if _PINNED.search(file) else f"{file}#{_hash_of(file)}"


def _hash_of(file: str) -> str:
    return digest(read_text("data.labels", expanded(file), _ALLOWED))[:10]


def corrected(dataset: Dataset, given: str | None) -> Dataset:
    """Return a dataset with the corrections that data.labels names applied to train, with a notice.

    Validation images do not change, so scores stay comparable. A path matches an image if it is its name, or if at
    least the folder and the file name agree, so that the dataset may move.

    Raises:
        UserError: the file has an unknown path, class or action, or lists an image twice.
    """
    if given is None:
        return dataset
    file = _PINNED.sub("", given)
    if given not in (file, pinned(file)):
        raise UserError(f"data.labels={file}: its content has changed since the run began. Restore it.")
    train, kind, changed, dropped = dataset.train, dataset.kind, 0, list[int]()
    targets, seen, find = list(train.targets), set[int](), _Finder(dataset)
    for where, path, action, label in _rows(file):
        positions = find.positions(path, where)
        if not seen.isdisjoint(positions):
            raise UserError(f"{where}: {path} is also in a line above. Write one line for each image.")
        seen.update(positions)
        if action == "drop":
            dropped += positions
        elif action == "change":
            try:
                target = kind.target_of(label, dataset.classes)
            except ValueError as error:
                raise UserError(f"{where}: {error}") from None
            changed += sum(targets[position] != target for position in positions)
            for position in positions:
                targets[position] = target
    if len(dropped) == len(train) > 0:
        raise UserError(f"data.labels={file} drops all training images. Keep some.")
    notice = f"data.labels: changed the {kind.noun} of {amount(changed, 'image')} and dropped {len(dropped):,}"
    train = replace(train, targets=tuple(targets))
    if dropped:
        kept = np.delete(np.arange(len(train)), dropped)
        train = replace(
            train, files=take_images(train.files, kept), targets=tuple(targets[position] for position in kept.tolist())
        )
    return replace(dataset, train=train).noting(notice)


def _rows(file: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield the rows of a file: where the row is, for messages, its path, its action and its label."""
    header, rows = read_table("data.labels", expanded(file), _ALLOWED)
    key = f"data.labels={file}"
    for name in ("path", "label"):
        if header.count(name) != 1:
            found = ", ".join(header) or "none"
            raise UserError(f"{key}: its columns are {found}, but it needs one column '{name}'. Use {_ALLOWED}.")
    if not rows:
        raise UserError(f"{key} has no rows. Add corrections, or remove data.labels.")
    for number, cells in rows:
        row = {name: from_table_cell(cell) for name, cell in zip(header, cells, strict=True)}
        where, action = f"{key}: line {number}", row.get("action") or "change"
        if action not in ACTIONS:
            raise UserError(f"{where}: unknown action '{action}'. Allowed: {', '.join(ACTIONS)}.")
        yield where, row["path"], action, row["label"]


class _Finder:
    """Finds images by their paths."""

    def __init__(self, dataset: Dataset) -> None:
        self._by_name: dict[str, list[int]] = {}
        self._names: dict[str, set[str]] = {}  # full names by portable name
        for position, image in enumerate(dataset.train.files):
            self._by_name.setdefault(name_of(image), []).append(position)
            self._names.setdefault(portable_name(image), set()).add(name_of(image))
        # Images that are listed, but cannot be corrected.
        self._others = {
            name_of(image): "is a validation image, which corrections do not change" for image in dataset.val.files
        }
        self._others |= {name_of(bad.file): "" for bad in (*dataset.train.left_out, *dataset.val.left_out)}
        for name in self._others:
            self._names.setdefault("/".join(name.split("/")[-2:]), set()).add(name)

    def positions(self, path: str, where: str) -> list[int]:
        """Return the positions of an image in train. Images that the check left out have none."""
        name = path
        if name not in self._by_name and name not in self._others:
            name = self._moved(path, where)
        if why := self._others.get(name):
            raise UserError(f"{where}: {path} {why}. Remove the line.")
        return self._by_name.get(name, [])

    def _moved(self, path: str, where: str) -> str:
        """Return the name whose last folders agree with most of the last folders of a path."""
        parts = path.replace("\\", "/").split("/")[::-1]
        known = {name: _agreeing(parts, name) for name in self._names.get("/".join(parts[1::-1]), ())}
        best = [name for name, count in known.items() if count == max(known.values())]
        if not best:
            near = nearest(path, list(self._by_name)) if len(self._by_name) < 10_000 else ""
            raise UserError(f"{where}: no training image is named {path}.{near} Use the paths in a run's labels.csv.")
        if len(best) > 1:
            raise UserError(f"{where}: {path} matches {len(best)} images, such as {best[0]}. Write the whole path.")
        return best[0]


def _agreeing(parts: list[str], name: str) -> int:
    """Return how many of the last folders of a path, in reverse order, agree with those of a name."""
    pairs = zip(parts, name.split("/")[::-1], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
