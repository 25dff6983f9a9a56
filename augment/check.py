"""Find the files that cannot be decoded before training starts.

DALI has no option to skip a bad file: its CPU decoder raises and loses the batch, often without naming the file, while
the GPU decoder turns a cut JPEG or a header that claims gigapixels into pixels in silence. So the verdict here depends
on the file alone, never on the device, and costs far less than decoding: most files are judged by their header and end.
"""

import json
import logging
import os
import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from PIL import Image, ImageFile, UnidentifiedImageError
from PIL.TiffImagePlugin import BITSPERSAMPLE, TiffImageFile

from augment.dataset import Picture, Split
from augment.errors import UserError
from augment.files import write_whole
from augment.progress import progress_bar
from augment.stored import is_raw, name_of

logger = logging.getLogger(__name__)

# Width times height. The size at which Pillow, too, refuses an image as a decompression bomb: 537 MB as RGB.
MAX_PIXELS = 178_956_970

# The formats that DALI decodes, as Pillow names them; a file's content decides, not its name.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "JPEG2000", "PPM")

# Kinds of these formats that Pillow reads and DALI 2.4 does not: (format, mode).
_UNDECODABLE = {("JPEG2000", "LA"): "gray with alpha", ("PPM", "F"): "float", ("TIFF", "I"): "32 bit a channel"}
_UNDECODABLE_TIFF = {"lzma", "webp"}

_JPEG_END = b"\xff\xd9"
_JPEG_MAX_SIDE = 65_500  # libjpeg's limit; the header has room for 65,535
_PNG_END = b"IEND\xae\x42\x60\x82"

# What Pillow's parsers raise on files that are cut or garbled.
DECODER_ERRORS = (
    OSError, SyntaxError, ValueError, ArithmeticError, LookupError, EOFError, TypeError, AttributeError, AssertionError,
    RuntimeError, struct.error, zlib.error,
)  # fmt: skip

CACHE_VERSION = 2  # raise it when a verdict changes
_THREADS = 8  # the work is waiting for the disk and, outside the interpreter lock, decoding
_CHUNK = 64
_PROGRESS_FROM = 1000  # files


@dataclass(frozen=True)
class Problem:
    """A picture that cannot be used.

    Attributes:
        file: the picture, as given.
        reason: what is wrong with it, to be read after its name: "is empty (0 bytes)".
    """

    file: Picture
    reason: str


def check_files(files: Sequence[Picture], *, cache: Path | None = None) -> list[Problem]:
    """Return the files that are missing, broken, too large (`MAX_PIXELS`) or of a format that DALI does not decode.

    JPEG is judged by its header and its end marker, and decoded where that is missing; PNG by its checksums; WebP by
    its container; the rarer formats are decoded. Damage inside an otherwise whole JPEG or WebP goes unnoticed.

    Args:
        files: the files to look at; one that occurs twice is reported twice. What is stored decoded is good.
        cache: a JSON file in which verdicts are kept by path, size and modification time. It is made when missing,
            ignored when unreadable, and may be shared between data sets and processes. Verdicts on pictures in larger
            files are not kept.

    Returns:
        The problems in the order of `files`.
    """
    known = _read_cache(cache) if cache else {}
    reasons: dict[Picture, str | None] = {}
    unknown: list[Picture] = []
    for file in dict.fromkeys(files):
        if not isinstance(file, Path):
            unknown.append(file)
            continue
        verdict = known.get(os.path.abspath(file), "")
        state = _state_of(file) if verdict else ""
        if state and verdict.startswith(state):
            reasons[file] = verdict.removeprefix(state) or None
        else:
            unknown.append(file)

    fresh: dict[str, str] = {}
    for file, (state, reason) in _judge_all(unknown):
        reasons[file] = reason
        if state and isinstance(file, Path):
            fresh[os.path.abspath(file)] = f"{state}{reason or ''}"
    if cache and fresh:
        _write_cache(cache, known | fresh)
    return [Problem(file, reason) for file in files if (reason := reasons[file])]


def require_readable(split: Split, name: str, *, skip_bad: bool, cache: Path | None = None) -> Split:
    """Return the part of a split that can be decoded.

    Args:
        split: the pictures to check.
        name: the split's name in messages, "train" or "val".
        skip_bad: the value of the key data.skip_bad: drop bad files with a notice in the log, instead of raising.
        cache: see `check_files`.

    Raises:
        UserError: a file is bad and skip_bad is false, or none is good.
    """
    problems = check_files(split.files, cache=cache)
    if not problems:
        return split
    shown = "".join(f"\n  {name_of(problem.file)} {problem.reason}" for problem in problems[:5])
    more = f"\n  and {len(problems) - 5:,} more" if len(problems) > 5 else ""
    count = f"{len(problems):,} of {len(split):,} {name} pictures"
    if len(problems) == len(split):
        raise UserError(f"data: {count} cannot be used, so none is left:{shown}{more}")
    if not skip_bad:
        raise UserError(
            f"data: {count} cannot be used:{shown}{more}\n"
            "Repair or remove them, or set data.skip_bad=true to leave them out."
        )
    first = problems[0]
    logger.warning("data.skip_bad=true: left out %s; the first: %s %s", count, name_of(first.file), first.reason)
    bad = {problem.file for problem in problems}
    kept = [(file, target) for file, target in zip(split.files, split.targets, strict=True) if file not in bad]
    return replace(split, files=tuple(file for file, _ in kept), targets=tuple(target for _, target in kept))


def _judge_all(files: Sequence[Picture]) -> Iterator[tuple[Picture, tuple[str, str | None]]]:
    """Yield each file with what `_judge` says of it."""
    if not files:
        return
    chunks = [files[start : start + _CHUNK] for start in range(0, len(files), _CHUNK)]
    pool = ThreadPoolExecutor(_THREADS)
    with strict_pillow(), progress_bar(quiet=len(files) <= _PROGRESS_FROM) as progress:
        task = progress.add_task("Checking files", total=len(files))
        try:
            for chunk, results in zip(chunks, pool.map(_judge_chunk, chunks), strict=True):
                yield from zip(chunk, results, strict=True)
                progress.advance(task, len(chunk))
        finally:
            pool.shutdown(cancel_futures=True)


def _judge_chunk(files: Sequence[Picture]) -> list[tuple[str, str | None]]:
    return [_judge(file) for file in files]


def _judge(file: Picture) -> tuple[str, str | None]:
    """Return the file's state and what is wrong with it; the state is "" if the system did not hand the file out."""
    try:
        if is_raw(file):
            if prove := getattr(file, "prove", None):
                prove()
            return "", None
        if not isinstance(file, Path):
            return "", find_fault(BytesIO(file.read()))
        with file.open("rb") as stream:
            return _state(os.fstat(stream.fileno())), find_fault(stream)
    except OSError as error:
        return "", f"cannot be read: {error.strerror or error}"
    except UserError as error:  # of a user's own code
        return "", f"fails: {error}"
    except MemoryError:
        return "", "needs more memory to decode than there is"


def find_fault(stream: BinaryIO) -> str | None:
    """Return what is wrong with an encoded picture, None if nothing is; see `check_files`.

    Raises:
        OSError: the file could not be read; says nothing about its content.
    """
    head = stream.read(16)
    if not head:
        return "is empty (0 bytes)"
    try:
        image = Image.open(stream, formats=FORMATS)
        return _refuse(image) or _prove_whole(image, stream)
    except UnidentifiedImageError:
        return _describe(head)
    except Image.DecompressionBombError:  # Pillow's own limit, where it was not taken away
        return f"claims more than {MAX_PIXELS:,} pixels"
    except DECODER_ERRORS as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        return f"is broken: {error or type(error).__name__}"


def _refuse(image: ImageFile.ImageFile) -> str | None:
    """Return why a picture is refused for what its header says."""
    width, height = image.size
    if width * height > MAX_PIXELS:
        return f"claims {width} x {height} pixels; allowed are {MAX_PIXELS:,}"
    kind = _UNDECODABLE.get((image.format or "", image.mode))
    if isinstance(image, TiffImageFile):
        compression = image.info.get("compression")
        if compression in _UNDECODABLE_TIFF:
            kind = f"{compression} compressed"
        elif BITSPERSAMPLE not in image.tag_v2:
            kind = "without bits per sample"
    if image.format == "PPM" and image.tile:
        args = image.tile[0][3]
        levels = args[-1] if isinstance(args, tuple) and isinstance(args[-1], int) else 255
        # DALI knows two numbers of levels, and makes 1,023 of 65,535 next to black.
        if 0 < levels < (128 if levels < 256 else 2**15):
            kind = f"levels from 0 to {levels}"
    return _of_a_kind(image, kind) if kind else None


def _of_a_kind(image: ImageFile.ImageFile, kind: str) -> str:
    return f"is a {image.format} of a kind that DALI does not decode ({kind})"


def _prove_whole(image: ImageFile.ImageFile, stream: BinaryIO) -> str | None:
    """Return, or raise as Pillow does, what is wrong with a picture whose header is right; the cheapest proof goes."""
    if image.format == "PNG":
        image.verify()  # the checksums; it stops before the one of the end chunk
        stream.seek(0)
        return None if _PNG_END in stream.read() else "is broken: it ends early"
    if image.format == "WEBP":  # opening it has compared the container with the file
        why = "its EXIF block is missing or lies behind a part of odd length"
        return None if _leads_to_exif(stream) else _of_a_kind(image, why)
    if image.format in ("JPEG", "MPO") and image.tile and max(image.size) <= _JPEG_MAX_SIDE:
        stream.seek(-len(_JPEG_END), os.SEEK_END)
        if stream.read() == _JPEG_END:
            return None
    image.load()
    return None


def _leads_to_exif(stream: BinaryIO) -> bool:
    """Whether DALI finds the EXIF block that a WebP announces, if it does: it passes over parts without their padding.

    Source of the format: developers.google.com/speed/webp/docs/riff_container.
    """
    stream.seek(12)
    part, flags = stream.read(4), stream.read(5)[4:]
    if part != b"VP8X" or not flags[0] & 8:
        return True
    stream.seek(30)
    while len(head := stream.read(8)) == 8:
        if head[:4] == b"EXIF":
            return True
        stream.seek(int.from_bytes(head[4:], "little"), os.SEEK_CUR)
    return False


def _describe(head: bytes) -> str:
    """Return what a file is that is none of `FORMATS`."""
    allowed = f"allowed: {', '.join(FORMATS)}"
    if head.startswith(b"GIF8"):
        return f"is a GIF, which DALI does not decode; {allowed}"
    if head[4:8] == b"ftyp":
        return f"is an AVIF, HEIF or film, which DALI does not decode; {allowed}"
    if head.startswith((b"\xff\xd8\xff", b"\x89PNG")):
        return "has a broken header, or is of a kind that is not decoded (a JPEG with 12 bits a channel, for one)"
    return f"is no picture that DALI decodes; {allowed}"


@contextmanager
def strict_pillow() -> Iterator[None]:
    """Make Pillow's verdict independent of settings made elsewhere, and silent; its size limit is replaced by ours."""
    max_pixels, truncated = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = None, False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = max_pixels, truncated


def _state_of(file: Path) -> str:
    try:
        return _state(os.stat(file))
    except OSError:
        return ""


def _state(stat: os.stat_result) -> str:
    return f"{stat.st_size} {stat.st_mtime_ns} "


def _read_cache(cache: Path) -> dict[str, str]:
    """Return "<size> <mtime_ns> <reason>" by absolute path, a form that is read fast also for a million files.

    A cache that is missing, damaged or of another version counts as empty.
    """
    try:
        content: object = json.loads(cache.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    match content:
        case {"version": int(version), "files": dict(files)} if version == CACHE_VERSION:
            return {path: verdict for path, verdict in files.items() if isinstance(verdict, str)}
    return {}


def _write_cache(cache: Path, verdicts: dict[str, str]) -> None:
    """Replace the cache in one step; a folder that cannot be written costs the next start its speed, nothing else."""
    try:
        write_whole(cache, json.dumps({"version": CACHE_VERSION, "files": verdicts}))
    except OSError as error:
        logger.info("%s: not written (%s), so that the files are checked again next time", cache, error.strerror)
