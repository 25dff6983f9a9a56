"""Find the files that cannot be decoded before training starts.

DALI has no option to skip a bad file: its CPU decoder raises and loses the batch, often without naming the file, while
the GPU decoder silently turns a truncated JPEG or a header that claims gigapixels into pixels. So each file is judged
twice: by its header, which is cheap, gives the better reasons and keeps memory bombs away from DALI; then by DALI's CPU
decoder, the strictest one, on every machine. The verdicts are cached.

JPEG, PNG and WebP are decoded by nvImageCodec, the library behind `fn.decoders.image`, one by one: a pipeline can crash
if several JPEGs of a batch are damaged. The rarer formats have layouts that it decodes and the operator does not, or
that the operator decodes otherwise than Pillow: they are decoded by the operator and by Pillow, and compared. Outside
`augment.pipeline`, only this module imports a part of DALI, and only when an image has to be judged.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from errno import EFBIG
from hashlib import sha1
from io import BytesIO
from pathlib import Path
from threading import Lock, local
from typing import Any

import numpy as np

from augment.data.cache import remember
from augment.data.dataset import DATA_DIR, BadImage, Split
from augment.data.image_faults import (
    CONVERT,
    NOT_DECODED,
    describe_damage,
    describe_failure,
    find_difference,
    find_fault_of_header,
    is_rare,
)
from augment.data.image_refs import ImageRef, known_of
from augment.data.images import is_decoded, name_of
from augment.data.selection import take
from augment.support.errors import UserError
from augment.support.files import digest, expanded, open_file
from augment.support.formatting import amount, list_some, plural


class Decoder:
    """Finds the images that DALI refuses; each thread that calls it gets a decoder of its own."""

    def __init__(self) -> None:
        self._own = local()
        self._large = Lock()

    def find_fault(self, image: bytes | memoryview) -> str | None:
        """Return why an encoded image cannot be decoded, None if it can be.

        A large image waits for another one to be decoded.
        """
        fault, pixels = find_fault_of_header(image)
        if fault:
            return fault
        with self._large if pixels > 2**25 else nullcontext():  # 0.1 GB as RGB
            return self.find_difference(image) if is_rare(image) else self._find_damage(image)

    def find_difference(self, image: bytes | memoryview) -> str | None:
        """Return why an image of a rare format cannot be used, decoded as in training and compared with Pillow."""
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
            del self._own.pipeline  # which has failed for good
        return find_difference(image, decoded)

    def _find_damage(self, image: bytes | memoryview) -> str | None:
        os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "1")  # no warning for each bad image
        from nvidia import nvimgcodec as codec

        if not hasattr(self._own, "decoder"):
            backends = [codec.Backend(codec.CPU_ONLY)]
            self._own.decoder = codec.Decoder(codec.NVIMGCODEC_DEVICE_CPU_ONLY, 1, backends)
            # The parameters that `fn.decoders.image` uses.
            self._own.params = codec.DecodeParams(color_spec=codec.ColorSpec.SRGB, apply_exif_orientation=True)
        with suppress(RuntimeError):  # its header cannot be read
            (decoded,) = self._own.decoder.decode([codec.CodeStream(image)], params=self._own.params)
            if decoded is not None:
                return None
        return describe_damage(BytesIO(image))


_SHOWN = 50  # bad files in a message

_MAX_BYTES = 2**31 - 2**12  # size of the largest file that is read


def check_files(files: Sequence[ImageRef], *, cache: Path | None = None) -> dict[ImageRef, str]:
    """Return the faults that `examine_files` finds."""
    return examine_files(files, cache=cache)[0]


def verdicts_of(source: Any) -> Path:
    """Return where a source's verdicts are cached."""
    named = getattr(source, "train", "") or getattr(source, "root", "")
    return Path(getattr(source, "dir", DATA_DIR)) / f"checked-{digest(expanded(named).resolve())}.txt"


def examine_files(
    files: Sequence[ImageRef], *, cache: Path | None = None, quiet: bool = False
) -> tuple[dict[ImageRef, str], list[str]]:
    """Find the files that are missing, broken, too large (`MAX_PIXELS`) or of a format that DALI does not decode.

    Args:
        files: the files to check. Decoded images are only read.
        cache: see `remember`.
        quiet: without a progress bar.

    Returns:
        The images that cannot be used, in their order, with their faults as predicates: "is empty (0 bytes)"; and a
        digest of the bytes, or of the pixels, and a blank of each image, empty if it cannot be used.
    """
    decoder = Decoder()
    lines = remember(files, lambda image: _judge(image, decoder), cache, "" if quiet else "Checking files")
    bad = {index: end for index, line in enumerate(lines) if (end := line.find(" ") + 1) < len(line)}
    faults = {files[index]: lines[index][end:] for index, end in bad.items()}
    for index in bad:
        lines[index] = ""
    return faults, lines


def leave_out(split: Split, name: str, reasons: Mapping[ImageRef, str], *, skip_bad: bool) -> Split:
    """Return the part of a split, train or val by `name`, without bad images, which become `Split.left_out`.

    Raises:
        UserError: an image is bad, for one of the reasons, and skip_bad is false, or no image is good.
    """
    bad = known_of(split.files, reasons)
    if not bad:
        return split
    described = (f"{name_of(split.files[index])} {reason}" for index, reason in bad.items())
    shown = list_some(described, _SHOWN, separator="\n  ")
    count = f"{len(bad):,} of {amount(len(split), f'{name} image')}"
    if len(bad) == len(split):
        raise UserError(f"data: {count} cannot be used, so none is left:\n  {shown}")
    if not skip_bad:
        them = plural(len(bad), "it", "them")
        advice = f"Repair or remove {them}, or set data.skip_bad=true to leave {them} out."
        if any(NOT_DECODED in reason for reason in bad.values()):
            advice += f" Of other formats, {CONVERT}."
        raise UserError(f"data: {count} cannot be used:\n  {shown}\n{advice}")
    left_out = tuple(BadImage(n, split.files[n], split.targets[n], reason) for n, reason in bad.items())
    return replace(take(split, np.delete(np.arange(len(split)), list(bad))), left_out=left_out)


def group_copies(images: Sequence[ImageRef], digests: Sequence[str]) -> dict[ImageRef, int]:
    """Return the number of its group for each image that has the same digest, unless empty, as another or is twice."""
    if len(set(digests)) == len(digests):
        return {}
    counts = Counter(filter(None, digests))
    numbers = {digest: number for number, digest in enumerate(d for d, count in counts.items() if count > 1)}
    return {images[index]: numbers[digest] for index, digest in enumerate(digests) if digest in numbers}


def _judge(image: ImageRef, decoder: Decoder) -> str:
    """Return a digest of an image, a blank, and the fault that its header or DALI shows; no digest: not read."""
    try:
        if is_decoded(image):
            return f"{_digest(np.ascontiguousarray(image.read_pixels()).data)} "
        content = _read(image) if isinstance(image, Path) else image.read()
        return f"{_digest(content)} {decoder.find_fault(content) or ''}"
    except (OSError, ValueError, UserError, MemoryError) as error:  # a ValueError: the path has a NUL
        return f" {describe_failure(error)}"


def _digest(content: bytes | memoryview) -> str:
    # SHA-1 is the fastest of the long ones where the processor has instructions for it: 56 us for 110 kB, BLAKE2b 116.
    return sha1(content, usedforsecurity=False).hexdigest()[:16]


def _read(file: Path) -> bytes:
    """Return a file's content, unless it has no end, such as a named pipe or a device, or is too large."""
    with open_file(file) as stream:
        if (size := os.fstat(stream.fileno()).st_size) > _MAX_BYTES:
            raise OSError(EFBIG, f"it has {size:,} bytes; allowed are {_MAX_BYTES:,}")
        return stream.read()
