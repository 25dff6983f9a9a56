"""Thumbnails of images of a data set."""

from PIL import Image, ImageOps, UnidentifiedImageError

from augment.data.dataset import ImageRef
from augment.data.images import open_image

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
