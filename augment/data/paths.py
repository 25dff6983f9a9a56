"""Paths of many files in one array: a million take 0.1 GB, as objects 0.8 GB."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
V = TypeVar("V")


class Paths(Sequence[Path]):
    """Paths of files; a `Path` is made when one is asked for.

    Attributes:
        names: (N,) the paths as the system has them, in bytes.
    """

    def __init__(self, files: Iterable[str | Path] | NDArray[np.bytes_]) -> None:
        self.names = files if isinstance(files, np.ndarray) else np.array(_encoded(list(files)), np.bytes_)

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> Path: ...
    @overload
    def __getitem__(self, index: slice | NDArray[Any]) -> Paths: ...
    def __getitem__(self, index: Any) -> Path | Paths:
        found = self.names[index]
        return Paths(found) if isinstance(found, np.ndarray) else Path(os.fsdecode(found))

    def __iter__(self) -> Iterator[Path]:
        return map(Path, self.texts())

    def __add__(self, others: Any) -> Any:
        paths = as_paths(others)
        return (*self, *others) if paths is None else Paths(np.concatenate([self.names, paths.names]))

    def __radd__(self, others: Any) -> Any:
        paths = as_paths(others)
        return (*others, *self) if paths is None else paths + self

    def __eq__(self, others: object) -> bool:
        if isinstance(others, Paths):
            return np.array_equal(self.names, others.names)
        return isinstance(others, Sequence) and list(self) == list(others)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Paths({', '.join(map(str, self[:3]))}{', ...' if len(self) > 3 else ''})"

    def texts(self) -> list[str]:
        """Return the paths as text."""
        texts = os.fsdecode(b"\0".join(self.names.tolist())).split("\0")  # several times as fast as one by one
        return texts if len(texts) == len(self) else list(map(os.fsdecode, self.names.tolist()))


def _encoded(files: list[str | Path]) -> list[bytes]:
    names = os.fsencode("\0".join(map(str, files))).split(b"\0")
    return names if len(names) == len(files) else list(map(os.fsencode, files))  # one has a NUL, or there is none


def as_paths(images: Sequence[Any]) -> Paths | None:
    """Return images as paths; None: not all are files of their own."""
    if isinstance(images, Paths):
        return images
    return Paths(images) if all(issubclass(kind, Path) for kind in kinds_of(images)) else None


def kinds_of(images: Sequence[Any]) -> set[type]:
    """Return the types of images."""
    return {Path} if isinstance(images, Paths) else set(map(type, images))


def keys_of(images: Sequence[Any]) -> list[Any]:
    """Return what is equal for equal images: themselves, or names of files, which are lighter than paths."""
    return images.names.tolist() if isinstance(images, Paths) else list(images)


def take_images(images: Sequence[T], indices: NDArray[np.int64]) -> Any:
    """Return the images at some indices."""
    return images[indices] if isinstance(images, Paths) else tuple(images[index] for index in indices.tolist())


def known_of(images: Sequence[Any], known: Mapping[Any, V]) -> dict[int, V]:
    """Return what is known of some images by their index."""
    if not known:
        return {}
    if isinstance(images, Paths):
        names = {os.fsencode(image): value for image, value in known.items() if isinstance(image, Path)}
        return {index: names[name] for index, name in enumerate(images.names.tolist()) if name in names}
    return {index: known[image] for index, image in enumerate(images) if image in known}
