"""Find the files that cannot be decoded before training starts.

DALI has no option to skip a bad file: its CPU decoder raises and loses the batch, often without naming the file, while
the GPU decoder silently turns a truncated JPEG or a header that claims gigapixels into pixels. So each file is judged
twice: by its header, which is cheap, gives the better reasons and keeps memory bombs away from DALI; then by DALI's CPU
decoder, on every machine. The verdicts are cached.
"""

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha1
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import numpy as np

from augment.data.dataset import BadImage, ImageRef, Split
from augment.data.decoding import Decoder
from augment.data.faults import CONVERT, NOT_DECODED, find_fault_of_header, strict_pillow
from augment.data.images import is_decoded, name_of
from augment.support.background import in_threads
from augment.support.console import progress_bar
from augment.support.errors import UserError
from augment.support.files import special_kind, write_atomically
from augment.support.process import cores
from augment.support.text import amount, plural

logger = logging.getLogger(__name__)

Image = TypeVar("Image", bound=ImageRef)

_CACHE_VERSION = 5  # increase it when a verdict changes
_CACHE_SECONDS = 60.0  # between two writes of the cache: an interrupted check loses no more
_CHUNK = 64  # files that a thread judges in a row
_PROGRESS_FROM = 1000  # files
_SHOWN = 50  # bad files in a message

_MAX_BYTES = 2**31 - 2**12  # size of the largest file that is read

# Hexadecimal characters of the digest of an image.
_DIGEST = 16


@dataclass(frozen=True)
class Problem:
    """An image that cannot be used, and its fault as a predicate: "is empty (0 bytes)"."""

    file: ImageRef
    reason: str


@dataclass(frozen=True)
class Examined:
    """The result of a check."""

    problems: list[Problem]  # the images that cannot be used, in the order of the images
    digests: Mapping[ImageRef, str]  # a digest of the bytes, or of the pixels, of each image that can be used


def check_files(files: Sequence[ImageRef], *, cache: Path | None = None) -> list[Problem]:
    """Return the problems that `examine_files` finds."""
    return examine_files(files, cache=cache).problems


def examine_files(files: Sequence[ImageRef], *, cache: Path | None = None) -> Examined:
    """Find the files that are missing, broken, too large (`MAX_PIXELS`) or of a format that DALI does not decode.

    Args:
        files: the files to check; one that occurs twice is reported twice. Decoded images are only read.
        cache: see `remember`.
    """
    decoder = Decoder()
    lines = remember(files, lambda image: _judge(image, decoder), cache, "Checking files")
    found = {image: line.partition(" ") for image, line in lines.items()}
    problems = [Problem(file, found[file][2]) for file in files if found[file][2]]
    return Examined(problems, {image: digest for image, (digest, _, reason) in found.items() if digest and not reason})


def remember(
    images: Sequence[Image], judge: Callable[[Image], str], cache: Path | None, what: str = "Reading"
) -> dict[Image, str]:
    """Return the line that a function says of each image; of images as they were, from a cache.

    Several threads call the function, each with one image at a time.

    Args:
        images: the images.
        judge: returns the line; one that begins with a blank is not cached.
        cache: a JSON file of lines by path, size and modification time. It is created if missing, ignored if
            unreadable, written every minute, and may be shared between data sets and processes. Images that are
            neither files nor in one are judged each time.
        what: what is done, for the progress bar.
    """
    known = _read_cache(cache) if cache else {}
    states = {image: _state_of(image) for image in images}
    lines = {image: known.get(_key(image), "") if state else "" for image, state in states.items()}
    unknown = [image for image, line in lines.items() if not line or not line.startswith(states[image])]
    chunks = [unknown[start : start + _CHUNK] for start in range(0, len(unknown), _CHUNK)]
    fresh: dict[str, str] = {}
    written = monotonic()
    try:
        with (
            strict_pillow(),
            progress_bar(quiet=len(unknown) <= _PROGRESS_FROM) as progress,
            in_threads(lambda some: list(map(judge, some)), chunks, cores()) as judged,
        ):
            task = progress.add_task(what, total=len(unknown))
            for some, said in zip(chunks, judged, strict=True):
                for image, line in zip(some, said, strict=True):
                    lines[image] = states[image] + line
                    if states[image] and not line.startswith(" ") and (key := _key(image)):
                        fresh[key] = lines[image]
                progress.advance(task, len(some))
                if cache and monotonic() > written + _CACHE_SECONDS:
                    _write_cache(cache, known | fresh)
                    written = monotonic()
    finally:  # also after Ctrl-C
        if cache and fresh:
            _write_cache(cache, known | fresh)
    return {image: line.removeprefix(states[image]) for image, line in lines.items()}


def _key(image: Any) -> str:
    """Return the key of an image in the cache: its path, or its slot in a larger file; empty if it is not cached."""
    if isinstance(image, Path):
        return os.path.abspath(image)
    return f"{os.path.abspath(image.file.path)} {image.slot}" if hasattr(image, "slot") else ""


def leave_out(split: Split, name: str, problems: Sequence[Problem], *, skip_bad: bool) -> Split:
    """Return the part of a split, train or val by `name`, that can be decoded; the rest becomes `Split.left_out`.

    Raises:
        UserError: an image is bad and skip_bad is false, or no image is good.
    """
    if not problems:
        return split
    shown = [f"  {name_of(problem.file)} {problem.reason}" for problem in problems[:_SHOWN]]
    if len(problems) > _SHOWN:
        shown.append(f"  and {len(problems) - _SHOWN:,} more")
    count = f"{len(problems):,} of {amount(len(split), f'{name} image')}"
    if len(problems) == len(split):
        raise UserError("\n".join([f"data: {count} cannot be used, so none is left:", *shown]))
    if not skip_bad:
        them = plural(len(problems), "it", "them")
        advice = f"Repair or remove {them}, or set data.skip_bad=true to leave {them} out."
        if any(NOT_DECODED in problem.reason for problem in problems):
            advice += f" Of other formats, {CONVERT}."
        raise UserError("\n".join([f"data: {count} cannot be used:", *shown, advice]))
    reasons = {problem.file: problem.reason for problem in problems}
    pairs = list(zip(split.files, split.targets, strict=True))
    files, targets = zip(*(pair for pair in pairs if pair[0] not in reasons), strict=True)
    left_out = (BadImage(n, *pair, reasons[pair[0]]) for n, pair in enumerate(pairs) if pair[0] in reasons)
    return replace(split, files=files, targets=targets, left_out=tuple(left_out))


def group_copies(images: Sequence[ImageRef], digests: Mapping[ImageRef, str]) -> dict[ImageRef, int]:
    """Return the number of its group for each image that has the same digest as another, or is listed twice."""
    counts = Counter(digests.values())
    if len(images) > len(digests):  # hashing a million paths takes seconds
        counts.update(digests[image] for image, times in Counter(images).items() if times > 1 and image in digests)
    numbers = {digest: number for number, digest in enumerate(d for d, count in counts.items() if count > 1)}
    return {image: numbers[digest] for image, digest in digests.items() if digest in numbers}


def _judge(image: ImageRef, decoder: Decoder) -> str:
    """Return a digest of an image, a blank, and the fault that its header or DALI shows; no digest: not read."""
    try:
        if is_decoded(image):
            return f"{_digest(np.ascontiguousarray(image.read_pixels()).data)} "
        content = _read(image) if isinstance(image, Path) else image.read()
        fault, pixels = find_fault_of_header(content)
        return f"{_digest(content)} {fault or decoder.find_fault(content, pixels) or ''}"
    except (OSError, ValueError) as error:  # a ValueError: the path has a NUL
        return f" cannot be read: {getattr(error, 'strerror', None) or error}"
    except UserError as error:  # from a user's own code
        return f" fails: {error}"
    except MemoryError:
        return " needs more memory to decode than there is"


def _digest(content: bytes | memoryview) -> str:
    # SHA-1 is the fastest of the long ones where the processor has instructions for it: 56 us for 110 kB, BLAKE2b 116.
    return sha1(content, usedforsecurity=False).hexdigest()[:_DIGEST]


def _read(file: Path) -> bytes:
    """Return a file's content, unless it has no end, such as a named pipe or a device."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a pipe could wait forever
    try:
        status = os.fstat(descriptor)
        if kind := special_kind(status.st_mode):
            raise OSError(f"it is a {kind}")
        if status.st_size > _MAX_BYTES:
            raise OSError(f"it has {status.st_size:,} bytes; allowed are {_MAX_BYTES:,}")
        return os.read(descriptor, status.st_size)
    finally:
        os.close(descriptor)


def _state_of(image: Any) -> str:
    """Return the present state of a file, or that of the larger file when it was indexed; empty if it has none."""
    if not isinstance(image, Path):
        return f"{image.file.size} {image.file.mtime_ns} " if hasattr(image, "slot") else ""
    with suppress(OSError, ValueError):
        stat = os.stat(image)
        return f"{stat.st_size} {stat.st_mtime_ns} "
    return ""


def _read_cache(cache: Path) -> dict[str, str]:
    """Return "<size> <mtime_ns> <line>" by absolute path, fast to read even for a million files.

    A missing or damaged cache, or one of another version, counts as empty.
    """
    with suppress(OSError, ValueError, RecursionError, LookupError, TypeError):
        content = json.loads(cache.read_bytes())
        if content["version"] == _CACHE_VERSION:
            return dict(content["files"])
    return {}


def _write_cache(cache: Path, verdicts: dict[str, str]) -> None:
    """Replace the cache atomically; if the folder is not writable, only log that: the next start is slower."""
    try:
        write_atomically(cache, json.dumps({"version": _CACHE_VERSION, "files": verdicts}), durable=False)
    except OSError as error:
        logger.info("%s: not written (%s), so the files are checked again next time", cache, error.strerror)
