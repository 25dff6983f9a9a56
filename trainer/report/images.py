"""Images in the page: figures of the run, and thumbnails of the samples that the model gets most wrong."""

from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from augment.data.dataset import ImageRef, same_outputs
from augment.support.background import in_threads
from trainer.figures.images import data_uri, read_png, thumbnail
from trainer.report.record import Record
from trainer.tasks.display import WrongSample

_THREADS = 4
_MOST_PIXELS = 2**26  # of a figure; those of a run have a tenth
_WIDEST = 1600

# Full color resolution keeps lettering sharp.
_jpeg = partial(data_uri, form="JPEG", subsampling=0, optimize=True)


class Mistake(NamedTuple):
    """A sample that the model gets wrong, with its image.

    Attributes:
        file: the image.
        sample: what is true and what was predicted.
        uri: the thumbnail, as a data URI; empty if the file cannot be read.
    """

    file: ImageRef
    sample: WrongSample
    uri: str


def mistakes(record: Record, count: int) -> tuple[list[Mistake], str]:
    """Return the validation images that the model gets most wrong, the worst first; or none, and why they are unknown.

    They are unknown if the run did not keep its predictions, or if its images are gone.
    """
    samples, dataset = record.samples, record.dataset
    if samples is None:
        return [], "best.pt has no predictions of single images."
    if dataset is None:
        why = record.notes.get("data", "no configuration")
        return [], f"The validation images are not available: {why}"
    files, targets = dataset.val.files, np.array(dataset.val.targets)
    index, target = np.asarray(samples.index), np.asarray(samples.target)
    if index.min(initial=0) < 0:
        return [], "The run did not keep which prediction belongs to which image."
    same = same_outputs(dataset.classes, record.classes) and dataset.task == record.task.name
    same = same and index.max(initial=-1) < len(files)
    if not same or (targets[index].astype(target.dtype) != target).any():
        return [], "The validation images are no longer those of this run."
    wrong = list(islice(record.task.mistakes(samples, record.classes), count))
    chosen = [files[index[sample.position]] for sample in wrong]
    with in_threads(_thumbnail, chosen, _THREADS) as uris:
        return [Mistake(*found) for found in zip(chosen, wrong, uris, strict=True)], ""


def _thumbnail(file: ImageRef) -> str:
    image = thumbnail(file)
    return "" if image is None else _jpeg(image, quality=82)


def inline_image(file: Path) -> str:
    """Return an image in the run's folder as a data URI; empty if there is none. The last few are remembered."""
    try:
        found = file.stat()
    except OSError:
        return ""
    return _inline(file, found.st_mtime_ns, found.st_size, found.st_ino)


@lru_cache(maxsize=2)
def _inline(file: Path, *_: int) -> str:
    if (colors := read_png(file, _MOST_PIXELS)) is None:
        return ""
    if colors.width > _WIDEST:
        colors = colors.resize((_WIDEST, round(colors.height * _WIDEST / colors.width)), Image.Resampling.LANCZOS)
    return _jpeg(colors, quality=85)
