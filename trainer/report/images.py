"""Pictures in the page: what of the run's own is shown, and thumbnails of what the model gets most wrong."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from augment.dataset import Picture
from augment.stored import file_name, name_of, open_picture
from trainer.outputs import Outputs
from trainer.report.record import Record

SIDE = 160  # of a thumbnail, in pixels


class UnfitError(Exception):
    """There is nothing to show, and the message says why."""


@dataclass(frozen=True)
class Mistake:
    """A picture that the model is sure of and wrong about, or whose numbers are far off.

    Attributes:
        uri: the thumbnail, as a data URI; empty if the file cannot be read.
        file: the picture.
        true: its class, labels or numbers.
        predicted: the class it was taken for, the label that is wrong, or numbers.
        confidence: how sure the model was; None of numbers.
    """

    uri: str
    file: Picture
    true: str
    predicted: str
    confidence: float | None

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
    samples, dataset = record.outputs or record.samples, record.dataset
    if samples is None:
        raise UnfitError("best.pt has no predictions of single pictures.")
    if dataset is None:
        raise UnfitError(f"The validation pictures cannot be had: {record.notes.get('data', 'no configuration')}")
    files, targets = dataset.val.files, np.array(dataset.val.targets)
    index, target = np.asarray(samples.index), np.asarray(samples.target)
    if index.min(initial=0) < 0:
        raise UnfitError("The run did not keep which prediction is of which picture.")
    same = (dataset.classes, dataset.task) == (record.classes, record.task) and index.max(initial=-1) < len(files)
    if not same or (targets[index].astype(target.dtype) != target).any():
        raise UnfitError("The validation pictures are not those of this run any more.")
    if isinstance(samples, Outputs):
        worst = _wrong_labels if record.task == "multilabel" else _far_off
        return [
            Mistake(_thumbnail(files[index[i]]), files[index[i]], *words) for i, *words in worst(samples, record, count)
        ]
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


def _wrong_labels(outputs: Outputs, record: Record, count: int) -> Iterator[tuple[int, str, str, float]]:
    """Yield the pictures with the label that the model is most wrong about: place, labels, that one, its confidence."""
    shares, having = outputs.output.sigmoid().numpy(), outputs.target.numpy() > 0.5
    wrong = np.abs(shares - having)
    places = wrong.argmax(axis=1)
    sure = wrong[np.arange(len(wrong)), places]
    for i in np.argsort(-sure, kind="stable")[:count]:
        if sure[i] <= 0.5:
            return
        name = record.classes[places[i]]
        true = ", ".join(name for name, has in zip(record.classes, having[i], strict=True) if has) or "none"
        yield int(i), true, f"no {name}" if having[i, places[i]] else name, float(sure[i])


def _far_off(outputs: Outputs, record: Record, count: int) -> Iterator[tuple[int, str, str, None]]:
    """Yield the pictures with the largest error, over the spread of each number: place, numbers, predicted ones."""
    target, output = outputs.target.numpy(), outputs.output.numpy()
    error = (np.abs(output - target) / np.maximum(target.std(axis=0), 1e-12)).max(axis=1)
    for i in np.argsort(-error, kind="stable")[:count]:
        true, predicted = (", ".join(f"{number:.4g}" for number in row[i]) for row in (target, output))
        yield int(i), true, predicted, None


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
