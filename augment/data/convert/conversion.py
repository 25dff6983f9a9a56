"""Write a data set in another format into a temporary folder, read it back, and move it to its place."""

import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import numpy as np
from PIL import Image

from augment.data.convert.writers import FORMATS, EncodedSample, Schema, check_names, settings_of
from augment.data.dataset import CLASSES_FILE, Dataset, ImageRef, Split
from augment.data.formats.shards import is_pattern
from augment.data.images import as_jpeg, file_name, name_of, open_image, read_encoded, to_rgb
from augment.data.selection import take
from augment.data.sources import parse_data
from augment.data.targets.kind import Target
from augment.support.background import in_threads
from augment.support.console import progress_bar
from augment.support.errors import UserError, first_line
from augment.support.files import remove_parts

_SEED = 0  # of the order of train
_KEY = re.compile(r"[^A-Za-z0-9_-]+")
_KEY_LENGTH = 60  # tar's oldest form has room for names of 100

R = TypeVar("R")


@dataclass(frozen=True)
class Options:
    """The options of a conversion."""

    to: str  # name of the format
    size: int = 0  # short side in px to which larger images are reduced; 0 keeps all sizes
    quality: int = 90  # of re-encoded JPEGs
    shard_mb: float = 128  # approximate size of a shard in MiB


def convert(dataset: Dataset, out: Path, options: Options, *, jobs: int = 1) -> str:
    """Write both splits, load them as training does, and compare the counts, targets and bytes of images.

    The images of train are shuffled once, so that sequential readers meet all classes early. The folder is new or
    empty, and empty again after an error; `jobs` threads read and re-encode images.

    Returns:
        A checksum of all targets and encoded images, whatever their order and format: hexadecimal.

    Raises:
        UserError: the folder has other content, the format cannot hold the names, or an image cannot be read.
        OSError: the folder cannot be written.
    """
    schema = Schema(dataset.task, dataset.classes)
    check_names(schema, options.to)
    if FORMATS[options.to].ending and is_pattern(str(out)):
        raise UserError(f"--out {out}: would be a pattern. Allowed: a name without any of * ? [ ] {{ }}.")
    order = np.random.default_rng(_SEED).permutation(len(dataset.train))
    splits = {"train": take(dataset.train, order), "val": dataset.val}
    with _new_folder(out) as part:
        if schema.task != "regress":
            (part / CLASSES_FILE).write_text("".join(f"{name}\n" for name in schema.names), encoding="utf-8")
        written = {name: _write(part / name, split, schema, options, jobs) for name, split in splits.items()}
        _compare(part, written, schema, options, jobs)
    return f"{sum(map(sum, written.values())) % 2**128:032x}"


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary folder in `out`, which may be a mount point; its visible content is moved up at the end."""
    out.mkdir(parents=True, exist_ok=True)
    if any(file.suffix != ".part" for file in out.iterdir()):
        raise UserError(f"--out {out}: exists and is not empty. Allowed: a new or empty folder.")
    remove_parts(out)  # of a conversion that was killed
    part = out / f".{uuid4().hex}.part"
    moved: list[Path] = []
    try:
        part.mkdir()
        yield part
        for file in part.glob("[!.]*"):
            moved.append(file.rename(out / file.name))
    except BaseException:  # even a new name may need room
        for file in moved:
            shutil.rmtree(file) if file.is_dir() else file.unlink()
        raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write(path: Path, split: Split, schema: Schema, options: Options, jobs: int) -> list[int]:
    """Write a split into shards whose names begin with `path`, or into this folder; return the images' digests."""
    digests: list[int] = []

    def load(number: int, ref: ImageRef, target: Target) -> EncodedSample:
        image = _load(ref, options)
        digests.append(_digest(image, schema.exact(target)))
        return EncodedSample(_key(number, ref), image, target)

    form = FORMATS[options.to]
    with _each(f"Writing {path.name}", split, load, jobs) as loaded:
        samples = iter(loaded)
        if not form.ending:
            form.write(path, samples, schema)
        for shard, first in enumerate(samples):
            form.write(path.with_name(f"{path.name}-{shard:05}"), _of_shard(first, samples, options.shard_mb), schema)
    return digests


def _of_shard(first: EncodedSample, rest: Iterator[EncodedSample], size_mb: float) -> Iterator[EncodedSample]:
    """Yield the first sample of a shard, and others until it is large enough."""
    yield first
    size = len(first.image)
    while size < size_mb * 2**20 and (sample := next(rest, None)):
        yield sample
        size += len(sample.image)


def _compare(part: Path, written: Mapping[str, list[int]], schema: Schema, options: Options, jobs: int) -> None:
    """Load what was written, and refuse it if it differs from the digests of each split."""
    index = {"dir": str(part / ".index")} if FORMATS[options.to].ending else {}
    try:
        found = parse_data(settings_of(options.to, part, schema) | index).load()
    except UserError as error:
        raise UserError(f"what was written differs when read back: {error}") from None
    read = Schema(found.task, found.classes)
    # A class without images has no folder.
    same = found.task == schema.task and (found.task == "classify" or found.classes == schema.names)

    def load(_: int, ref: ImageRef, target: Target) -> int:
        return _digest(read_encoded(ref), read.exact(target))

    for name, split in (("train", found.train), ("val", found.val)):
        with _each(f"Reading {name}", split, load, jobs) as digests:
            if sorted(digests) != sorted(written[name]) or not same:
                raise UserError(f"what was written differs when read back: {name}, of {len(split):,} images.")


@contextmanager
def _each(what: str, split: Split, load: Callable[[int, ImageRef, Target], R], jobs: int) -> Iterator[Iterable[R]]:
    """Call a function in threads with the number, image and target of each sample, with a progress bar."""
    items = zip(count(), split.files, split.targets)
    with progress_bar() as progress, in_threads(lambda item: load(*item), items, jobs, 2 * jobs) as results:
        yield progress.track(results, len(split), description=what)


def _digest(image: bytes | memoryview, target: bytes) -> int:
    digest = blake2b(target + b"\0", digest_size=16)
    digest.update(image)
    return int.from_bytes(digest.digest())


def _key(number: int, image: ImageRef) -> str:
    return f"{number:08}_{_KEY.sub('_', file_name(image).partition('.')[0])[:_KEY_LENGTH]}"


def _load(ref: ImageRef, options: Options) -> bytes:
    """Return the encoded image, re-encoded as a smaller JPEG if it is too large."""
    try:
        if options.size:
            with open_image(ref) as image:
                if min(image.size) > options.size:
                    upright = to_rgb(image)  # the new file has no orientation tag
                    scale = options.size / min(upright.size)
                    width, height = (max(options.size, round(side * scale)) for side in upright.size)
                    return as_jpeg(upright.resize((width, height), Image.Resampling.LANCZOS), options.quality)
        return bytes(read_encoded(ref))
    except OSError as error:
        raise UserError(f"{name_of(ref)}: cannot be read: {error.strerror or first_line(error)}.") from None
