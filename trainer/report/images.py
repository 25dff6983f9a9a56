"""Images in the page: figures of the run, and thumbnails of the samples that the model gets most wrong."""

from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

from augment.data.dataset import ImageRef
from augment.data.images import name_of
from augment.support.background import in_threads
from trainer.figures.images import data_uri, read_png, thumbnail
from trainer.report.record import Mistake, RunRecord

_THREADS = 4
_MOST_PIXELS = 2**26  # of a figure; those of a run have a tenth
_WIDEST = 1600

# Full color resolution keeps lettering sharp.
_jpeg = partial(data_uri, form="JPEG", subsampling=0, optimize=True)


def mistakes(record: RunRecord, files: Sequence[ImageRef], count: int) -> list[Mistake] | None:
    """Return the images that the model gets most wrong, the worst first; None if nobody knows which they are.

    Args:
        record: a run with the predictions of its best epoch.
        files: the validation images in the order of their indices.
        count: the most to return.
    """
    samples = record.samples
    assert samples is not None
    index = np.asarray(samples.index)
    if index.min(initial=0) < 0 or index.max(initial=-1) >= len(files):
        return None
    wrong = list(islice(record.task.mistakes(samples, record.classes), count))
    chosen = [files[index[sample.position]] for sample in wrong]
    with in_threads(_thumbnail, chosen, _THREADS) as uris:
        return [
            Mistake(name_of(file), sample.true, sample.predicted, sample.confidence, uri)
            for file, sample, uri in zip(chosen, wrong, uris, strict=True)
        ]


def _thumbnail(file: ImageRef) -> str:
    image = thumbnail(file)
    return "" if image is None else _jpeg(image, quality=82)


def inline_image(file: Path) -> str:
    """Return a figure of the run as a data URI; empty if there is none."""
    if (colors := read_png(file, _MOST_PIXELS)) is None:
        return ""
    if colors.width > _WIDEST:
        colors = colors.resize((_WIDEST, round(colors.height * _WIDEST / colors.width)), Image.Resampling.LANCZOS)
    return _jpeg(colors, quality=85)
