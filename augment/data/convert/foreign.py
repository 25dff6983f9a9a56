"""Read images that Pillow opens and DALI does not, as JPEG."""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from io import BytesIO
from pathlib import Path

from PIL import Image

from augment.data.check import check_files
from augment.data.dataset import DATA_DIR, Dataset, ImageRef
from augment.data.faults import DECODER_ERRORS, MAX_PIXELS, strict_pillow
from augment.data.images import name_of, read_encoded, to_rgb
from augment.data.sources.notices import check_images
from augment.support.errors import UserError
from augment.support.files import digest
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
        stream = BytesIO()
        try:
            with Image.open(BytesIO(read_encoded(self.image)), formats=_allowed()) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise OSError(f"it has {image.width} x {image.height} pixels; allowed are {MAX_PIXELS:,}")
                to_rgb(image).save(stream, "JPEG", quality=self.quality)
        except DECODER_ERRORS as error:
            raise OSError(str(error)) from error
        return stream.getvalue()


def take_foreign(dataset: Dataset, about: object, *, quality: int, skip_bad: bool) -> tuple[Dataset, str]:
    """Check a dataset as before training, but keep the images that Pillow can open, as JPEG.

    Args:
        dataset: the images.
        about: identifies the cache of verdicts.
        quality: quality of the JPEGs.
        skip_bad: leave out all others that DALI cannot decode, instead of raising.

    Returns:
        The images with `Dataset.copies`, and a sentence about those that become JPEG, empty if there are none.

    Raises:
        UserError: an image cannot be used, or no class of val is left in train.
    """
    cache = Path(DATA_DIR) / f"checked-{digest(about)}.json"  # that of `check_images`
    problems = check_files(dataset.train.files + dataset.val.files, cache=cache)
    opened: dict[ImageRef, AsJpeg] = {}
    for problem in problems:
        image = AsJpeg(problem.file, quality)
        with suppress(OSError, ValueError, MemoryError, UserError), strict_pillow():
            image.read()
            opened[problem.file] = image
    train, val = (
        replace(split, files=tuple(opened.get(file, file) for file in split.files))
        for split in (dataset.train, dataset.val)
    )
    checked = check_images(replace(dataset, train=train, val=val), about, skip_bad=skip_bad, max_bad=0)
    endings = Counter(Path(name_of(image)).suffix.lower() or "without an ending" for image in opened).most_common()
    note = f"{amount(len(opened), 'image becomes', 'images become')} JPEG: "
    return checked, note + ", ".join(f"{count:,} {ending}" for ending, count in endings) if opened else ""


@cache
def _allowed() -> tuple[str, ...]:
    with suppress(ImportError):
        import_module("pillow_heif").register_heif_opener()
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)
