"""Pictures in the page: what of the run's own is shown, and thumbnails of what the model gets most wrong."""

import base64
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from augment.dataset import Picture
from augment.stored import file_name, name_of, open_picture
from trainer.report.record import Record

SIDE = 160  # of a thumbnail, in pixels


class UnfitError(Exception):
    """There is nothing to show, and the message says why."""


@dataclass(frozen=True)
class Mistake:
    """A picture that the model is sure of and wrong about.

    Attributes:
        uri: the thumbnail, as a data URI; empty if the file cannot be read.
        file: the picture.
        true: its class.
        predicted: the class it was taken for.
        confidence: how sure the model was.
    """

    uri: str
    file: Picture
    true: str
    predicted: str
    confidence: float

    @property
    def name(self) -> str:
        """What people call the picture."""
        return name_of(self.file)

    @property
    def short_name(self) -> str:
        """The last part of its name."""
        return file_name(self.file)


def mistakes(record: Record, count: int) -> list[Mistake]:
    """Return the validation pictures that are wrong with the highest confidence, that first.

    Raises:
        UnfitError: the run did not keep its predictions, or its pictures are not there any more.
    """
    samples, dataset = record.samples, record.dataset
    if samples is None:
        raise UnfitError("best.pt has no predictions of single pictures.")
    if dataset is None:
        raise UnfitError(f"The validation pictures cannot be had: {record.notes.get('data', 'no configuration')}")
    files, targets = dataset.val.files, np.array(dataset.val.targets)
    if samples.index.min(initial=0) < 0:
        raise UnfitError("The run did not keep which prediction is of which picture.")
    same = dataset.classes == record.classes and samples.index.max(initial=-1) < len(files)
    if not same or (targets[samples.index] != samples.target).any():
        raise UnfitError("The validation pictures are not those of this run any more.")
    wrong = np.flatnonzero(samples.prediction != samples.target)
    wrong = wrong[np.argsort(-samples.confidence[wrong], kind="stable")][:count]
    return [
        Mistake(
            _thumbnail(file := files[samples.index[i]]),
            file,
            record.classes[samples.target[i]],
            record.classes[samples.prediction[i]],
            float(samples.confidence[i]),
        )
        for i in wrong
    ]


def _thumbnail(file: Picture) -> str:
    try:
        with open_picture(file) as image:
            image.draft("RGB", (2 * SIDE, 2 * SIDE))
            small = ImageOps.exif_transpose(image).convert("RGB")
            small.thumbnail((SIDE, SIDE))
            return _jpeg(small, quality=82)
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError):
        return ""


def inline_picture(file: Path, widest: int = 1600) -> str:
    """Return a picture of the run's folder as a data URI; empty if there is none."""
    try:
        with Image.open(file) as image:
            picture = image.convert("RGB")
    except OSError:
        return ""
    if picture.width > widest:
        picture = picture.resize((widest, round(picture.height * widest / picture.width)), Image.Resampling.LANCZOS)
    return _jpeg(picture, quality=85)


def _jpeg(image: Image.Image, quality: int) -> str:
    data = BytesIO()
    # Full color resolution keeps lettering sharp.
    image.save(data, "JPEG", quality=quality, subsampling=0, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}"
