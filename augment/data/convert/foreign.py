"""Read images that Pillow opens and DALI does not, as JPEG."""

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from io import BytesIO
from pathlib import Path

from PIL import Image

from augment.data.check import Problem, examine_files, leave_out
from augment.data.copies import group_copies
from augment.data.dataset import Dataset, ImageRef, Split
from augment.data.faults import DECODER_ERRORS, MAX_PIXELS, strict_pillow
from augment.data.images import name_of, read_encoded, to_rgb
from augment.support.errors import UserError
from augment.support.text import amount

# Not all that Pillow opens: for EPS, for one, it starts another program.
_FORMATS = (
    "AVIF", "BMP", "DDS", "DIB", "GIF", "HEIF", "ICNS", "ICO", "JPEG", "JPEG2000", "MPO", "PCX", "PNG", "PPM", "PSD",
    "QOI", "SGI", "TGA", "TIFF", "WEBP",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AsJpeg:
    """An image that DALI does not decode, as a JPEG; of an animation, the first frame.

    Attributes:
        image: the image.
        quality: quality of the JPEG.
    """

    image: ImageRef
    quality: int

    @property
    def name(self) -> str:
        """The name of the image."""
        return name_of(self.image)

    def read(self) -> bytes:
        """Return the JPEG.

        Raises:
            OSError: Pillow cannot open the image.
        """
        _register_heif()
        stream = BytesIO()
        try:
            with Image.open(BytesIO(read_encoded(self.image)), formats=_allowed()) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise OSError(f"it has {image.width} x {image.height} pixels; allowed are {MAX_PIXELS:,}")
                to_rgb(image).save(stream, "JPEG", quality=self.quality)
        except DECODER_ERRORS as error:
            raise OSError(str(error)) from error
        return stream.getvalue()


def take_foreign(dataset: Dataset, *, quality: int, skip_bad: bool, cache: Path) -> tuple[Dataset, str]:
    """Check a dataset as before training, but keep the images that Pillow can open, as JPEG.

    Args:
        dataset: the images.
        quality: quality of the JPEGs.
        skip_bad: leave out all others that DALI cannot decode, instead of raising.
        cache: see `augment.data.check.examine_files`.

    Returns:
        The images with `Dataset.copies`, and a sentence about those that become JPEG, empty if there are none.

    Raises:
        UserError: an image cannot be used, or no class of val is left in train.
    """
    digests: dict[ImageRef, str] = {}
    opened: list[ImageRef] = []
    splits: dict[str, Split] = {}
    for name, split in (("train", dataset.train), ("val", dataset.val)):
        examined = examine_files(split.files, cache=cache)
        digests |= examined.digests
        found = {problem.file: AsJpeg(problem.file, quality) for problem in _openable(examined.problems)}
        bad = [problem for problem in examined.problems if problem.file not in found]
        kept = leave_out(split, name, bad, skip_bad=skip_bad)
        splits[name] = replace(kept, files=tuple(found.get(file, file) for file in kept.files))
        opened += found
    copies = group_copies([file for split in splits.values() for file in split.files], digests)
    rest = replace(dataset, train=splits["train"], val=splits["val"], copies=copies)
    return rest, _describe(opened)


def _openable(problems: Iterable[Problem]) -> list[Problem]:
    found = []
    for problem in problems:
        try:
            with strict_pillow():
                AsJpeg(problem.file, 1).read()
        except (OSError, ValueError, MemoryError, UserError):
            continue
        found.append(problem)
    return found


def _describe(images: list[ImageRef]) -> str:
    if not images:
        return ""
    kinds = Counter(Path(name_of(image)).suffix.lower() or "without an ending" for image in images).most_common()
    become = amount(len(images), "image becomes", "images become")
    return f"{become} JPEG: {', '.join(f'{count:,} {ending}' for ending, count in kinds)}"


@cache
def _register_heif() -> None:
    with suppress(ImportError):
        import_module("pillow_heif").register_heif_opener()


def _allowed() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)
