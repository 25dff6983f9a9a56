"""The check of all images before training starts.

DALI cannot skip a bad file. Its CPU decoder raises an error and loses the batch, often without naming the file. Its GPU
decoder silently decodes truncated JPEGs and headers that claim gigapixels. Therefore each file is checked twice. The
header check is cheap, explains faults better, and keeps decompression bombs away from DALI. Then DALI's CPU decoder,
which is the strictest, decodes the image on every machine. The results are cached.

nvImageCodec, the library behind `fn.decoders.image`, decodes JPEG, PNG and WebP one by one, because a pipeline can
crash if several JPEGs of a batch are damaged. nvImageCodec alone is not enough for rarer formats. `fn.decoders.image`
rejects some of their variants, and decodes others differently from Pillow. Therefore the operator and Pillow decode
these images, and the results are compared. In `augment.data`, only this module imports DALI, and only to check images
in rare formats.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from hashlib import sha1
from io import BytesIO
from pathlib import Path
from threading import Lock, local
from typing import Any

import numpy as np

from augment.data.cache import cached_lines
from augment.data.dataset import DATA_DIR, BadImage, Split
from augment.data.formats.raster_files import decode_on_cpu
from augment.data.image_faults import (
    CONVERT,
    NOT_DECODED,
    describe_damage,
    describe_failure,
    find_difference,
    find_fault_of_header,
    is_rare,
)
from augment.data.images import ImageRef, is_decoded, known_of, name_of, read_encoded
from augment.data.selection import take
from augment.support.errors import UserError
from augment.support.files import digest, expanded
from augment.support.formatting import amount, list_some, plural


class Decoder:
    """Finds the images that DALI cannot decode. Each calling thread gets its own decoder."""

    def __init__(self) -> None:
        self._own = local()
        self._large = Lock()

    def find_fault(self, image: bytes | memoryview) -> str | None:
        """Return the fault of an encoded image, or None.

        Large images are decoded one at a time, to limit memory.
        """
        fault, pixels = find_fault_of_header(image)
        if fault:
            return fault
        with self._large if pixels > 2**25 else nullcontext():  # 0.1 GB as RGB
            return self.find_difference(image) if is_rare(image) else self._find_damage(image)

    def find_difference(self, image: bytes | memoryview) -> str | None:
        """Decode an image in a rare format as in training, compare it with Pillow, and return its fault or None."""
        from nvidia.dali import fn, types
        from nvidia.dali.pipeline import Pipeline

        if not hasattr(self._own, "pipeline"):
            self._own.pipeline = Pipeline(1, 1, None, prefetch_queue_depth=1, exec_dynamic=True)
            with self._own.pipeline as pipeline:
                encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
                pipeline.set_outputs(fn.decoders.image(encoded))
        decoded = None
        try:
            self._own.pipeline.feed_input("encoded", [np.frombuffer(image, np.uint8)])
            decoded = np.array(self._own.pipeline.run()[0].at(0))
        except RuntimeError:
            del self._own.pipeline  # a pipeline cannot be used again after an error
        return find_difference(image, decoded)

    def _find_damage(self, image: bytes | memoryview) -> str | None:
        with suppress(RuntimeError):  # the header cannot be read
            if decode_on_cpu(image, unchanged=False) is not None:
                return None
        return describe_damage(BytesIO(image))


_SHOWN = 50  # maximum number of bad files in a message


def check_files(files: Sequence[ImageRef], *, cache: Path | None = None) -> dict[ImageRef, str]:
    """Return the faults that `examine_files` finds."""
    return examine_files(files, cache=cache)[0]


def check_cache_of(source: Any) -> Path:
    """Return the file that caches the check of a source's images."""
    named = getattr(source, "train", "") or getattr(source, "root", "")
    return Path(getattr(source, "dir", DATA_DIR)) / f"checked-{digest(expanded(named).resolve())}.txt"


def examine_files(
    files: Sequence[ImageRef], *, cache: Path | None = None, quiet: bool = False
) -> tuple[dict[ImageRef, str], list[str]]:
    """Find files that are missing, broken, too large (`MAX_PIXELS`), or in a format that DALI does not decode.

    Args:
        files: the files to check. Images that are stored decoded are only read.
        cache: see `cached_lines`.
        quiet: whether to show no progress bar.

    Returns:
        Two values. First, the unusable images in order, with their faults as predicates, such as "is empty (0 bytes)".
        Second, for each image, a digest of its bytes or pixels, followed by a space, or "" for an unusable image.
    """
    decoder = Decoder()
    lines = cached_lines(files, lambda image: _examine(image, decoder), cache, "" if quiet else "Checking files")
    faults: dict[ImageRef, str] = {}
    for index, line in enumerate(lines):
        _, _, fault = line.partition(" ")
        if fault:
            faults[files[index]], lines[index] = fault, ""
    return faults, lines


def leave_out(split: Split, name: str, reasons: Mapping[ImageRef, str], *, skip_bad: bool) -> Split:
    """Return a split without its bad images, which become `Split.left_out`.

    Args:
        split: the split.
        name: train or val.
        reasons: the bad images with their faults.
        skip_bad: whether bad images are allowed.

    Raises:
        UserError: an image is bad and skip_bad is false, or all images are bad.
    """
    bad = known_of(split.files, reasons)
    if not bad:
        return split
    described = (f"{name_of(split.files[index])} {reason}" for index, reason in bad.items())
    shown = list_some(described, _SHOWN, separator="\n  ")
    count = f"{len(bad):,} of {amount(len(split), f'{name} image')}"
    if len(bad) == len(split):
        raise UserError(f"data: {count} cannot be used, so no image is left:\n  {shown}")
    if not skip_bad:
        them = plural(len(bad), "it", "them")
        advice = f"Repair or remove {them}, or set data.skip_bad=true to leave {them} out."
        if any(NOT_DECODED in reason for reason in bad.values()):
            advice += f" For other formats: {CONVERT}."
        raise UserError(f"data: {count} cannot be used:\n  {shown}\n{advice}")
    left_out = tuple(BadImage(split.files[n], reason) for n, reason in bad.items())
    return replace(take(split, np.delete(np.arange(len(split)), list(bad))), left_out=left_out)


def group_copies(images: Sequence[ImageRef], digests: Sequence[str]) -> dict[ImageRef, int]:
    """Return a group number for each image that has copies. Copies have the same digest and the same number.

    Images with an empty digest have no copies.
    """
    if len(set(digests)) == len(digests):
        return {}
    counts = Counter(filter(None, digests))
    repeated = [digest for digest, count in counts.items() if count > 1]
    numbers = {digest: number for number, digest in enumerate(repeated)}
    return {images[index]: numbers[digest] for index, digest in enumerate(digests) if digest in numbers}


def _examine(image: ImageRef, decoder: Decoder) -> str:
    """Return the digest of an image, a space, and its fault, if any. An image that cannot be read has no digest."""
    try:
        if is_decoded(image):
            return f"{_digest(np.ascontiguousarray(image.read_pixels()).data)} "
        content = read_encoded(image)
        return f"{_digest(content)} {decoder.find_fault(content) or ''}"
    except (OSError, ValueError, UserError, MemoryError) as error:  # a ValueError: the path has a NUL
        return f" {describe_failure(error)}"


def _digest(content: bytes | memoryview) -> str:
    # SHA-1 is the fastest long digest on processors with SHA instructions: 56 us for 110 kB. BLAKE2b needs 116 us.
    return sha1(content, usedforsecurity=False).hexdigest()[:16]
