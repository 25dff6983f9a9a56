"""References to images: paths of files, or images stored in larger files.

`Paths` stores the paths of many files in one array: a million paths need 0.1 GB instead of 0.8 GB.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from augment.support.errors import UserError

V = TypeVar("V")


class Paths(Sequence[Path]):
    """Paths of files in one array. Indexing creates a `Path`.

    Attributes:
        names: (N,) the paths in bytes, in the encoding of the file system.
    """

    def __init__(self, files: Iterable[str | Path] | NDArray[np.bytes_]) -> None:
        self.names = files if isinstance(files, np.ndarray) else np.array(list(map(os.fsencode, files)), np.bytes_)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: Any) -> Any:
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

    def texts(self) -> Iterator[str]:
        for start in range(0, len(self), 65536):
            some = self.names[start : start + 65536].tolist()
            yield from os.fsdecode(b"\0\n".join(some)).split("\0\n")  # decoding them one by one is several times slower


def as_paths(images: Sequence[Any]) -> Paths | None:
    """Return images as paths, or None if some are stored in larger files."""
    if isinstance(images, Paths):
        return images
    return Paths(images) if all(issubclass(kind, Path) for kind in kinds_of(images)) else None


def kinds_of(images: Sequence[Any]) -> set[type]:
    return {Path} if isinstance(images, Paths) else set(map(type, images))


def keys_of(images: Sequence[Any]) -> list[Any]:
    """Return keys that are equal for equal images. The keys of `Paths` are bytes, because `Path` objects are larger."""
    return images.names.tolist() if isinstance(images, Paths) else list(images)


def take_images(images: Sequence[Any], indices: NDArray[np.int64]) -> Any:
    return images[indices] if isinstance(images, Paths) else tuple(images[index] for index in indices.tolist())


def known_of(images: Sequence[Any], known: Mapping[Any, V]) -> dict[int, V]:
    """Look up images in a mapping, and return the values found, keyed by image index."""
    if not known:
        return {}
    if isinstance(images, Paths):
        names = {os.fsencode(image): value for image, value in known.items() if isinstance(image, Path)}
        return {index: names[name] for index, name in enumerate(images.names.tolist()) if name in names}
    return {index: known[image] for index, image in enumerate(images) if image in known}


class ImageError(UserError):
    """The error of one of several images that are read together. `key` identifies the image."""

    def __init__(self, key: int, text: str) -> None:
        super().__init__(key, text)  # pickle creates the copy from both arguments
        self.key = key

    def __str__(self) -> str:
        return str(self.args[1])


class StoredImage(Protocol):
    """An encoded image in a larger file. It can be hashed, and pickled without its content.

    Optional methods:

    - `expect() -> None` is called some time before `read`, to prefetch the bytes.
    - The class method `begin(images: Mapping[int, Self]) -> list[Future[dict[int, ...]]]` reads images in the
      background. Each future holds the results of `read` or `read_pixels` by the images' keys, or raises an
      `ImageError`.
    - `read_together(images: Sequence[Self]) -> list[NDArray]` reads decoded images faster than one by one.

    Optional attributes `file` (a `RecordFile`) and `slot` (a str) together identify the bytes. With them, the check of
    the image is cached. The name cannot identify the bytes, because the next run may give it to another image.
    """

    @property
    def name(self) -> str:
        """The name for messages, unique in the split: "train-000.tar/cat_0001.jpg"."""

    def read(self) -> bytes | memoryview:
        """Return the encoded image."""


class DecodedImage(StoredImage, Protocol):
    """An image that is stored decoded. `read` encodes it without losses."""

    def read_pixels(self) -> NDArray[Any]:
        """Return (height, width, channels) in an array that does not change later."""


ImageRef = Path | StoredImage
Images = Paths | tuple[ImageRef, ...]
