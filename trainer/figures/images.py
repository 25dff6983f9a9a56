"""Images for pages and trackers: images that a model gets wrong, and figures of runs."""

import json
from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageChops, ImageOps, UnidentifiedImageError

from augment.data.dataset import ImageRef
from augment.data.formats.raster_files import stored_orientation
from augment.data.images import open_image, to_rgb, upright_size
from augment.support.background import in_threads
from augment.support.untrusted_files import UnreadableError, read_bytes
from trainer.tasks.display import WrongSample
from trainer.tasks.metric import Samples
from trainer.tasks.task import Task

SIDE = 160  # longer side of a usual thumbnail, in pixels
_UNREADABLE = (OSError, UnidentifiedImageError, Image.DecompressionBombError)  # errors of files that are not images
_MAX_BYTES = 2**23  # of a PNG. Real files are smaller, and Pillow takes a second for 2 MB of empty chunks
THREADS = 4  # threads that read images


def worst_images(
    task: Task[Any], samples: Samples, names: Sequence[str], files: Sequence[ImageRef], most: int
) -> list[tuple[WrongSample, ImageRef, Image.Image | None]] | None:
    """Return the samples with the worst predictions, the worst first.

    `Task.mistakes` selects the samples, and `Task.draw` may draw on their thumbnails.

    Args:
        task: the task.
        samples: the predictions of a pass.
        names: the names of the classes, or of other targets.
        files: the images of the pass by index.
        most: the largest number of samples.

    Returns:
        Each sample with its file, and its thumbnail or None if the file cannot be read. If the files are unknown, the
        result is None.
    """
    from augment.pipeline.geometry.frames import turns  # imports PyTorch

    index = np.asarray(samples.index)
    if index.min(initial=0) < 0 or index.max(initial=-1) >= len(files):
        return None

    def draw(sample: WrongSample) -> tuple[WrongSample, ImageRef, Image.Image | None]:
        file = files[index[sample.position]]
        try:
            with open_image(file) as image:
                upright = np.array(upright_size(image))
                image.draft("RGB", (2 * task.thumbnail, 2 * task.thumbnail))
                small = to_rgb(image)
        except _UNREADABLE:
            return sample, file, None
        small.thumbnail((task.thumbnail, task.thumbnail))
        scale = small.size / upright
        to_small = np.diag([*scale, 1.0])
        to_small[:2, 2] = (scale - 1) / 2  # pixel centers are at integers
        matrix = to_small @ turns(np.array([stored_orientation(file)]), upright[None, ::-1])[0]
        return sample, file, task.draw(small, matrix, samples, sample.position, names)

    with in_threads(draw, islice(task.mistakes(samples, names), most), THREADS) as drawn:
        return list(drawn)


def read_png(file: Path, most_pixels: int, within: tuple[int, int]) -> Image.Image | None:
    """Return a PNG in RGB, scaled down to fit into the size `within`. None: the file is too large or unreadable."""
    try:
        with Image.open(BytesIO(read_bytes(file, most=_MAX_BYTES)), formats=["PNG"]) as image:
            if image.width * image.height > most_pixels:
                return None
            colors = image.convert("RGB")
    except (OSError, UnreadableError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    colors.thumbnail(within, Image.Resampling.LANCZOS)
    return colors


def without_background(figure: Image.Image) -> Image.Image:
    """Make the background of a figure transparent and its text gray, for light and dark pages.

    The images in the figure stay as they are. A figure that does not record their positions stays unchanged.
    """
    from augment.drawing.figure_style import IMAGES  # imports Matplotlib

    mask = Image.new("L", figure.size, 0)
    try:
        width, height, *corners = json.loads(str(figure.info[IMAGES]))
        for x, y in corners[:64]:
            mask.paste(255, (int(x), int(y), int(x + width), int(y + height)))
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return figure
    gray = Image.new("RGB", figure.size, (128, 128, 128))
    ink = ImageOps.invert(figure.convert("L")).point(lambda level: min(255, level * 5 // 4))
    opacity = ImageChops.lighter(ink, mask)
    return Image.merge("RGBA", (*Image.composite(figure, gray, mask).split(), opacity))


def thumbnail(file: ImageRef) -> str:
    """Return a thumbnail as a data URI. Empty: the file cannot be read."""
    try:
        with open_image(file) as image:
            image.draft("RGB", (2 * SIDE, 2 * SIDE))
            small = to_rgb(image)
    except _UNREADABLE:
        return ""
    small.thumbnail((SIDE, SIDE))
    return data_uri(small, "JPEG", 82)


def data_uri(image: Image.Image, file_format: str, quality: int) -> str:
    """Encode an image as a data URI, in JPEG or WEBP."""
    data = BytesIO()
    # Without subsampling of colors, text in a JPEG stays sharp. `method` is an option of WEBP.
    image.save(data, file_format, quality=quality, subsampling=0, optimize=True, method=4)
    return f"data:image/{file_format.lower()};base64,{b64encode(data.getvalue()).decode()}"
