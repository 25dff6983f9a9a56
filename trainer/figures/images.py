"""Images for pages and trackers: thumbnails of a data set's images, and figures of runs."""

from base64 import b64encode
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps, UnidentifiedImageError

from augment.data.dataset import ImageRef
from augment.data.images import open_image
from augment.support.reading import UnreadableError, regular

SIDE = 160  # of a thumbnail, in pixels


def thumbnail(file: ImageRef) -> Image.Image | None:
    """Return an image in RGB, upright, with a longer side of at most 160 px; None if it cannot be read."""
    try:
        with open_image(file) as image:
            image.draft("RGB", (2 * SIDE, 2 * SIDE))
            small = ImageOps.exif_transpose(image).convert("RGB")
            small.thumbnail((SIDE, SIDE))
            return small
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError):
        return None


def read_png(file: Path, most_pixels: int) -> Image.Image | None:
    """Return a PNG in RGB; None if there is none, or if a stranger has made it too large or unreadable."""
    try:
        with Image.open(regular(file), formats=["PNG"]) as image:
            return image.convert("RGB") if image.width * image.height <= most_pixels else None
    except (OSError, UnreadableError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def data_uri(image: Image.Image, form: str, **options: Any) -> str:
    """Return an image as a data URI, in one of Pillow's formats with its options."""
    data = BytesIO()
    image.save(data, form, **options)
    return f"data:image/{form.lower()};base64,{b64encode(data.getvalue()).decode()}"
