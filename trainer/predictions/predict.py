"""Predict with a trained model: images in, a prediction for each image out."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from augment.cli.parser import writing
from augment.data.check import check_files
from augment.data.dataset import ImageRef, Split
from augment.data.formats.folder import find_images
from augment.data.images import name_of, open_image
from augment.support.errors import UserError, missing_package
from augment.support.files import near_file
from trainer.loop.callback import Callback
from trainer.predictions.masks import MaskWriter, mask_files, upright
from trainer.predictions.objects import FoundObjects
from trainer.run.best_model import KeptOutputs, Trained
from trainer.tasks.classify import Classify
from trainer.tasks.detect import Detect
from trainer.tasks.segment import Segment


@dataclass(frozen=True)
class Prediction:
    """A model's prediction for an image."""

    file: Path  # of an image in memory, its name
    # The most probable classes, or the labels, with their probabilities, in [0, 1], the highest first
    classes: tuple[tuple[str, float], ...] = ()
    error: str = ""  # why the image cannot be used; then there is no prediction
    numbers: tuple[tuple[str, float], ...] = ()  # a value for each name, where the task predicts numbers
    unit: str = "class"  # what the classes are, "class" or "label"
    # The objects that were found, where the task is to find some; then `classes` has the class of each
    objects: FoundObjects | None = None
    # The file with the label of each pixel, if these are predicted; then `classes` have their shares of the pixels
    mask: Path | None = None
    labels: NDArray[np.uint8] | None = None  # the mask itself, (height, width), if it is not written


def predict(
    trained: Trained,
    given: Sequence[ImageRef],
    *,
    top: int | None = None,
    threshold: float | None = None,
    out: Path | None = None,
    overlay: bool = False,
    explain: Path | None = None,
) -> list[Prediction]:
    """Predict with the best model of a run; images are prepared exactly as in validation.

    Args:
        trained: the model.
        given: images, and folders that are searched for images at any depth.
        top: number of classes or labels to name for each image; None: 3 classes, or the labels above the threshold.
        threshold: probability from which a label is predicted; None: 0.5.
        out: where masks are written, see `trainer.predictions.masks`; None: they are kept in memory.
        overlay: whether to write images with their masks drawn on them, too.
        explain: where to write images with what the model looks at drawn on them; None: nowhere.

    Returns:
        A prediction for each image in the order of `given`, those of a folder sorted by path.

    Raises:
        UserError: no such file, a folder without images, or no image that can be used.
    """
    task, images = trained.task, list_images(given)
    for flag, used, fits, allowed in (
        ("--threshold", threshold is not None, task.threshold is not None, "labels or boxes"),
        ("--top", top is not None, task.ranked, "classes, labels, masks or boxes"),
        ("--out, --overlay", out is not None or overlay, isinstance(task, Segment), "masks"),
        ("--explain", explain is not None, isinstance(task, Classify), "classes"),
    ):
        if used and not fits:
            raise UserError(f"{flag}: this model predicts {task.kind.units}. Allowed: with models of {allowed}.")
    if explain is not None and not find_spec("captum"):
        raise missing_package("--explain", "captum", "explain")
    # Only images with a path have files for their masks and explanations.
    paths, roots = ([image for image in some if isinstance(image, Path)] for some in (images, given))
    masks = {} if out is None else mask_files(paths, roots, out)
    maps = {} if explain is None else mask_files(paths, roots, explain, "--explain")
    problems = check_files(images)
    good = tuple(image for image in images if image not in problems)
    if not good:
        file, reason = next(iter(problems.items()))
        none = (
            "the image cannot be used" if len(images) == 1 else f"none of {len(images)} images can be used; the first"
        )
        raise UserError(f"{none}: {name_of(file)} {reason}")
    # The loader needs targets, but nothing reads them.
    split = Split(good, (task.kind.blank(len(trained.classes)),) * len(good), task.kind)
    if not isinstance(task, Segment):
        from trainer.predictions.activation_maps import MapWriter  # imports PyTorch

        writers = [MapWriter([maps[_path_of(file)] for file in good])] if maps else []
        predicted = iter(_predict(trained, good, split, top, threshold, *writers))
    else:
        predicted = iter(_predict_masks(trained, good, split, masks, out, top, overlay=overlay))
    return [
        Prediction(_path_of(image), error=problems[image]) if image in problems else next(predicted) for image in images
    ]


def _file_of(image: ImageRef, files: Mapping[Path, Path]) -> Path | None:
    return files.get(image) if isinstance(image, Path) else None


def _path_of(image: ImageRef) -> Path:
    return image if isinstance(image, Path) else Path(name_of(image))


def list_images(given: Sequence[ImageRef]) -> list[ImageRef]:
    """Return the given files, and in place of each folder the images in it, in order.

    Raises:
        UserError: a path does not exist, or is a folder without images; or there are none at all.
    """
    images: list[ImageRef] = []
    for path in given:
        if not isinstance(path, Path):
            images.append(path)
            continue
        # Images of other formats are listed, too, with the reason why they have no prediction.
        found = find_images(path, with_foreign=True) if path.is_dir() else [path]
        if not found:
            raise UserError(f"{path}: holds no images.")
        if not path.exists():
            raise UserError(f"{path}: there is no such file or folder.{near_file(path)}")
        images += found
    if not images:
        raise UserError("no images are given. Allowed: files, and folders that hold images.")
    return images


def _predict(
    trained: Trained,
    files: Sequence[ImageRef],
    split: Split,
    top: int | None,
    threshold: float | None,
    *writers: Callback,
) -> list[Prediction]:
    names, task, kept = trained.classes, trained.task, KeptOutputs()
    with writing("--explain"):
        trained.run_over(split, kept, *writers, description="predicting")
    outputs, *frames = kept.in_order()
    outputs, sizes = outputs.float(), []
    lowest = threshold if threshold is not None else (task.threshold if top is None else None) or 0.0
    for number, file in enumerate(files if frames else ()):
        with open_image(file) as image:
            turn, size = upright(image)
        frames[0][number] @= turn
        sizes.append(size)
    if isinstance(task, Detect):
        found = []
        for file, output, frame, size in zip(files, outputs, *frames, sizes, strict=True):
            objects = tuple(of for of in task.objects(output, frame, size, names) if of.score >= lowest)[:top]
            classes = tuple((of.name, of.score) for of in objects)
            found.append(Prediction(_path_of(file), classes, objects=FoundObjects(objects, size, names)))
        return found
    if not task.ranked:
        columns, values = task.numbers(outputs, frames[0] if frames else None, names)
        return [
            Prediction(_path_of(file), numbers=tuple(zip(columns, numbers, strict=True)))
            for file, numbers in zip(files, values.tolist(), strict=True)
        ]
    values = task.activate(outputs)
    highest = values.topk(min(top or task.top or len(names), len(names)), dim=1)
    return [
        Prediction(
            _path_of(file), tuple((names[unit], share) for unit, share in pairs if share >= lowest), unit=task.unit
        )
        for file, pairs in zip(files, map(zip, highest.indices.tolist(), highest.values.tolist()), strict=True)
    ]


def _predict_masks(
    trained: Trained,
    files: Sequence[ImageRef],
    split: Split,
    masks: Mapping[Path, Path],
    folder: Path | None,
    top: int | None,
    *,
    overlay: bool,
) -> list[Prediction]:
    names, task, found = trained.classes, trained.task, []
    writer = MaskWriter(files, [_file_of(file, masks) for file in files], names, folder, overlay=overlay)
    with writing("--out"):
        trained.run_over(split, writer, description="predicting")
    for number, file in enumerate(files):
        shares = writer.shares[number]
        largest = (-shares).argsort(kind="stable")[: top or task.top].tolist()
        classes = tuple((names[unit], float(shares[unit])) for unit in largest if shares[unit])
        mask, labels = _file_of(file, masks), writer.labels.get(number)
        found.append(Prediction(_path_of(file), classes, unit=task.unit, mask=mask, labels=labels))
    if most := max(writer.unseen.values()):
        sys.stderr.write(f"warning: aug.val crops: up to {most:.0%} of an image have no prediction, 255 in its mask.\n")
    return found
