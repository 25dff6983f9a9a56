"""Read images that Pillow opens and DALI does not, as JPEG."""

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from io import BytesIO
from pathlib import Path

from PIL import Image

from augment.data.check import examine_files, group_copies, leave_out
from augment.data.dataset import DATA_DIR, Dataset, ImageRef, Split
from augment.data.faults import DECODER_ERRORS, MAX_PIXELS, strict_pillow
from augment.data.images import as_jpeg, name_of, read_encoded, to_rgb
from augment.support.errors import UserError
from augment.support.files import digest

# Not all that Pillow opens: for EPS, for one, it starts another program.
_FORMATS = (
    "AVIF", "BMP", "DDS", "DIB", "GIF", "HEIF", "ICNS", "ICO", "JPEG", "JPEG2000", "MPO", "PCX", "PNG", "PPM", "PSD",
    "QOI", "SGI", "TGA", "TIFF", "WEBP",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AsJpeg:
    """An image that DALI does not decode, as a JPEG of some quality; of an animation, the first frame."""

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
        try:
            with Image.open(BytesIO(read_encoded(self.image)), formats=_allowed()) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise OSError(f"it has {image.width} x {image.height} pixels; allowed are {MAX_PIXELS:,}")
                return as_jpeg(to_rgb(image), self.quality)
        except DECODER_ERRORS as error:
            raise OSError(str(error)) from error


def take_foreign(dataset: Dataset, about: object, *, quality: int, skip_bad: bool) -> tuple[Dataset, int]:
    """Check a dataset as before training, but keep the images that Pillow can open, as JPEG.

    The cache of verdicts is that of `about`; with `skip_bad`, all others that DALI cannot decode are left out.

    Returns:
        The images with `Dataset.copies`, and how many become JPEG.

    Raises:
        UserError: an image cannot be used, or no class of val is left in train.
    """
    cache = Path(DATA_DIR) / f"checked-{digest(about)}.txt"
    opened: dict[ImageRef, AsJpeg] = {}
    digests: list[str] = []
    splits: dict[str, Split] = {}
    for name, split in (("train", dataset.train), ("val", dataset.val)):
        examined = examine_files(split.files, cache=cache)
        for problem in examined.problems:
            image = AsJpeg(problem.file, quality)
            with suppress(OSError, ValueError, MemoryError, UserError), strict_pillow():
                image.read()
                opened[problem.file] = image
        bad = [problem for problem in examined.problems if problem.file not in opened]
        kept = leave_out(split, name, bad, skip_bad=skip_bad)
        splits[name] = replace(kept, files=tuple(opened.get(file, file) for file in kept.files))
        digests += examined.digests
    train, val = splits["train"], splits["val"]
    copies = group_copies(dataset.train.files + dataset.val.files, digests)
    return replace(dataset, train=train, val=val, copies=copies), len(opened)


@cache
def _allowed() -> tuple[str, ...]:
    with suppress(ImportError):
        import_module("pillow_heif").register_heif_opener()
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)
