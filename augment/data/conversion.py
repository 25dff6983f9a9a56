"""Conversion of datasets to class folders or tar shards.

Images that Pillow can open and DALI cannot decode are converted to JPEG.
"""

import json
import re
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from hashlib import blake2b
from importlib import import_module
from io import BytesIO
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from augment.data.check import examine_files, group_copies, leave_out
from augment.data.dataset import CLASSES_FILE, DATA_DIR, Dataset, ImageRef, Split, Target
from augment.data.image_faults import DECODER_ERRORS, DIFFERS, SLOW, strict_pillow
from augment.data.images import (
    as_jpeg,
    encoded_ref,
    has_range,
    is_decoded,
    name_of,
    open_image,
    open_with_pillow,
    read_encoded,
    to_rgb,
)
from augment.data.selection import take
from augment.data.sources import parse_data
from augment.support.background import in_threads
from augment.support.console import progress_bar
from augment.support.errors import UserError, first_line
from augment.support.files import atomic_path, digest
from augment.support.process import cores

FORMATS = {
    "folder": "one image per file, <split>/<class>/*",
    "webdataset": "tar shards, also for multi-label classification and regression",
}
# The tasks that each format supports.
_TASKS = {"folder": ("classify",), "webdataset": ("classify", "multilabel", "regress")}

_SHARD_BYTES = 2**27  # approximate size in bytes

# File name extensions by the first bytes of a file.
_EXTENSIONS = {
    b"\xff\xd8": ".jpg", b"\x89PNG": ".png", b"RIFF": ".webp", b"BM": ".bmp", b"II*\0": ".tif", b"MM\0*": ".tif",
    b"II+\0": ".tif", b"MM\0+": ".tif", b"\0\0\0\x0cjP": ".jp2", b"\xff\x4f\xff\x51": ".jp2",
    b"\x93NUMPY": ".npy", b"PK\x03\x04": ".npz", b"P": ".pnm",
}  # fmt: skip

R = TypeVar("R")

Sample = tuple[str, bytes, Target]  # file name, encoded image and target


def convert(dataset: Dataset, out: Path, to: str, *, size: int = 0, quality: int = 90) -> None:
    """Write both splits, load them as training does, and compare all images and targets.

    The training images are shuffled once, so that sequential readers see all classes early. After an error, the folder
    is unchanged.

    Args:
        dataset: the dataset.
        out: the folder to write, which is new or empty.
        to: a format in `FORMATS`.
        size: maximum length of an image's shorter side in pixels. 0 for no limit. Larger images are encoded again.
        quality: JPEG quality of images that are encoded again.

    Raises:
        UserError: the folder is not empty, the format does not support the targets, or an image cannot be read.
        OSError: the folder cannot be written.
    """
    _check(dataset, out, to)
    order = np.random.default_rng(0).permutation(len(dataset.train))
    with atomic_path(out) as part:
        part.mkdir()
        if dataset.task != "regress":
            (part / CLASSES_FILE).write_text("".join(f"{name}\n" for name in dataset.classes), encoding="utf-8")
        splits = {"train": take(dataset.train, order), "val": dataset.val}
        encode = partial(_load, size=size, quality=quality)
        written = {name: _write(part / name, split, dataset, to, encode) for name, split in splits.items()}
        index = {"dir": str(part / ".index")} if to == "webdataset" else {}
        found = parse_data(reading_settings(dataset, to, part) | index).load()

        def load(_: int, ref: ImageRef, target: Target) -> bytes:
            return _digest(read_encoded(ref), _plain(found, target))

        for name, digests in written.items():
            with _each(f"Reading {name}", getattr(found, name), load) as read:
                if sorted(read) != sorted(digests):
                    raise UserError(f"{name}: the written files differ from the dataset. Check the disk.")
        shutil.rmtree(part / ".index", ignore_errors=True)


def reading_settings(dataset: Dataset, to: str, out: Path) -> dict[str, Any]:
    """Return the settings, `{source: name, ...}`, that read a dataset from the folder `out`."""
    if to == "folder":
        return {"source": to, "root": str(out)}
    settings = {"source": to, "train": f"{out}/train-*.tar", "val": f"{out}/val-*.tar", "task": dataset.task}
    if dataset.task == "regress":
        return settings | {"targets": list(dataset.classes)}
    return settings | {"classes": f"{out}/{CLASSES_FILE}"}


def _check(dataset: Dataset, out: Path, to: str) -> None:
    if dataset.task not in (tasks := _TASKS[to]):
        raise UserError(f"data: --to {to} does not support the task {dataset.task}. Allowed: {', '.join(tasks)}.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {out} exists and is not empty. Use a new or empty folder.")
    for name in dataset.classes:
        if not name.isprintable() or name != name.strip() or (to == "folder" and re.search(r"^\.|/", name)):
            raise UserError(f"the {dataset.kind.noun} {name!a} cannot be written with --to {to}. Rename it.")


def _write(path: Path, split: Split, dataset: Dataset, to: str, encode: Callable[[ImageRef], bytes]) -> list[bytes]:
    """Write a split to the folder `path`, or to shards whose names begin with it, and return the images' digests."""
    digests: list[bytes] = []

    def load(number: int, ref: ImageRef, target: Target) -> Sample:
        image = encode(ref)
        digests.append(_digest(image, _plain(dataset, target)))
        return _file_name(number, ref, image), image, target

    with _each(f"Writing {path.name}", split, load) as samples:
        (_write_folder if to == "folder" else _write_shards)(path, iter(samples), dataset)
    return digests


def _file_name(number: int, ref: ImageRef, image: bytes) -> str:
    """Return a unique file name that contains part of the image's original name."""
    default = ".dcm" if image[128:132] == b"DICM" else ".jpg"
    ending = next((ending for head, ending in _EXTENSIONS.items() if image.startswith(head)), default)
    # The oldest tar format allows names of 100 characters.
    key = re.sub("[^A-Za-z0-9_-]+", "_", name_of(ref).rpartition("/")[2].partition(".")[0])[:60]
    return f"{number:08}_{key}{ending}"


def _write_folder(path: Path, samples: Iterator[Sample], dataset: Dataset) -> None:
    for name, image, target in samples:
        folder = path / dataset.classes[target]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(image)


def _write_shards(path: Path, samples: Iterator[Sample], dataset: Dataset) -> None:
    for shard, first in enumerate(samples):
        with tarfile.open(f"{path}-{shard:05}.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
            room = _SHARD_BYTES
            for name, image, target in chain([first], samples):
                _add(archive, name, image)
                _add(archive, *_label(dataset, name.partition(".")[0], target))
                room -= len(image)
                if room <= 0:
                    break


def _label(dataset: Dataset, key: str, target: Target) -> tuple[str, bytes]:
    if dataset.task == "classify":
        return f"{key}.cls", str(target).encode()
    plain = _plain(dataset, target)
    fields = dict(zip(dataset.classes, plain, strict=True)) if dataset.task == "regress" else {"label": plain}
    return f"{key}.json", json.dumps(fields).encode()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o644
    archive.addfile(member, BytesIO(content))


@contextmanager
def _each(what: str, split: Split, load: Callable[[int, ImageRef, Target], R]) -> Iterator[Iterable[R]]:
    """Call a function in threads with the index, image and target of each sample, and show a progress bar."""
    items = zip(count(), split.files, split.targets)
    with progress_bar() as progress, in_threads(lambda item: load(*item), items, cores(), 2 * cores()) as results:
        yield progress.track(results, len(split), description=what)


def _plain(dataset: Dataset, target: Target) -> list[Any]:
    """Return the names of an image's class or labels, or its numbers, rounded to float32 as in training."""
    if dataset.task == "regress":
        return list(np.array(target, np.float32).reshape(-1).tolist())
    return [dataset.classes[index] for index in dataset.kind.present(target)]


def _digest(image: bytes | memoryview, target: list[Any]) -> bytes:
    return blake2b(f"{target}\0".encode(errors="surrogateescape") + image, digest_size=16).digest()


def _load(ref: ImageRef, *, size: int, quality: int) -> bytes:
    """Return the encoded image. Encode it again as a smaller JPEG if it is too large."""
    try:
        if size:
            with open_image(ref) as image:
                if min(image.size) > size:
                    upright = to_rgb(image)  # the new file has no orientation tag
                    scale = size / min(upright.size)
                    width, height = (max(size, round(side * scale)) for side in upright.size)
                    return as_jpeg(upright.resize((width, height), Image.Resampling.LANCZOS), quality)
        stored = encoded_ref(ref)
        return bytes(read_encoded(ref if is_decoded(stored) else stored))
    except OSError as error:
        raise UserError(f"{name_of(ref)} cannot be read: {error.strerror or first_line(error)}.") from None


@dataclass(frozen=True, slots=True)
class AsJpeg:
    """A JPEG version of an image that DALI does not decode. For an animation, it shows the first frame."""

    image: ImageRef
    quality: int

    @property
    def name(self) -> str:
        return name_of(self.image)

    def read(self) -> bytes:
        """Return the JPEG.

        Raises:
            OSError: Pillow cannot open the image.
        """
        _register_heif()
        try:
            with open_with_pillow(BytesIO(read_encoded(self.image))) as image:
                if not has_range(image):
                    raise OSError(f"its range of levels is unknown (mode {image.mode})")
                return as_jpeg(to_rgb(image), self.quality)
        except DECODER_ERRORS as error:
            raise OSError(str(error)) from error


def convert_foreign(dataset: Dataset, settings: object, *, quality: int, skip_bad: bool) -> tuple[Dataset, int]:
    """Check a dataset as training does. Images that only Pillow can decode are converted to JPEG.

    Args:
        dataset: the dataset.
        settings: the settings of the source, which identify the cache of the check.
        quality: JPEG quality.
        skip_bad: whether to leave out images that neither DALI nor Pillow can decode.

    Returns:
        The dataset with `Dataset.copies`, and the number of images that are converted.

    Raises:
        UserError: an image cannot be used and skip_bad is false.
    """
    images = dataset.train.files + dataset.val.files
    faults, digests = examine_files(images, cache=Path(DATA_DIR) / f"checked-{digest(settings)}.txt")
    opened: dict[ImageRef, AsJpeg] = {}
    for file, fault in faults.items():
        if DIFFERS in fault or SLOW in fault:  # if the decoders disagree, the correct pixels are unknown
            continue
        image = AsJpeg(file, quality)
        with suppress(OSError, ValueError, MemoryError, UserError), strict_pillow():
            image.read()
            opened[file] = image
    bad = {file: fault for file, fault in faults.items() if file not in opened}
    splits = []
    for name, split in (("train", dataset.train), ("val", dataset.val)):
        kept = leave_out(split, name, bad, skip_bad=skip_bad)
        splits.append(replace(kept, files=tuple(opened.get(file, file) for file in kept.files)))
    return replace(dataset, train=splits[0], val=splits[1], copies=group_copies(images, digests)), len(opened)


@cache
def _register_heif() -> None:
    with suppress(ImportError):
        import_module("pillow_heif").register_heif_opener()
