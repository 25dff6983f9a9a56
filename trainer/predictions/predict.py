"""Run a trained model on images."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from augment.cli.parser import writing
from augment.data.check import check_files
from augment.data.dataset import ImageRef, Split
from augment.data.formats.folder import find_images
from augment.data.images import name_of
from augment.data.rasters import in_format
from augment.support.errors import UserError, missing_package
from augment.support.files import near_file
from augment.support.lazy_torch import Tensor, torch
from trainer.loop.callback import Callback
from trainer.loop.lazy_learner import Learner
from trainer.predictions.masks import MaskWriter, output_files, upright, write_overlays
from trainer.run.best_model import KeptOutputs, LoadedModel
from trainer.tasks.classify import Classify
from trainer.tasks.detect import Detect
from trainer.tasks.display import FoundObjects, Prediction
from trainer.tasks.segment import Segment
from trainer.tasks.task import Task


def predict(
    trained: LoadedModel,
    given: Sequence[ImageRef],
    *,
    top: int | None = None,
    threshold: float | None = None,
    out: Path | None = None,
    overlay: bool = False,
    explain: Path | None = None,
) -> list[Prediction]:
    """Predict with the best model of a run. Images are prepared as in validation.

    Args:
        trained: the model.
        given: images, and folders to search for images at any depth.
        top: number of classes or labels per image. Default: 3 classes, or the labels above the threshold.
        threshold: lowest probability of a label or object. Default: the thresholds of the run, otherwise 0.5.
        out: folder for masks and overlays, see `trainer.predictions.masks`. Default: masks stay in memory.
        overlay: whether to also write the images with their predictions drawn on them.
        explain: folder for images with a map of what the model looks at. Default: no maps.

    Returns:
        A prediction for each image in the order of `given`. A folder's images are sorted by path.

    Raises:
        UserError: a missing file, a folder without images, no usable image, or an option that does not suit the task.
    """
    task, images = trained.task, list_images(given)
    _check_options(task, top, threshold, None if overlay else out, explain)
    masks = _output_files(images, given, out if isinstance(task, Segment) else None)
    overlays = _output_files(images, given, out if overlay else None, ending="_overlay.jpg")
    maps = _output_files(images, given, explain, "--explain")
    # The loader needs targets, but nothing reads them.
    blanks = (task.kind.blank(len(trained.classes)),) * len(images)
    split = in_format(Split(tuple(images), blanks, task.kind), trained.config.aug.pixels)
    problems = check_files(split.files)
    usable = tuple(image for image in split.files if image not in problems)
    if not usable:
        raise _none_usable(problems, len(images))
    if overlays and out is not None:
        with writing(f"--out {out}"):  # fail before the work instead of after it
            out.mkdir(parents=True, exist_ok=True)
    images, split = list(split.files), replace(split, files=usable, targets=blanks[: len(usable)])
    if isinstance(task, Segment):
        predicted = _predict_masks(trained, split, masks, out, top)
    elif isinstance(task, Detect):
        predicted = _predict_objects(trained, task, split, _lowest(trained, top, threshold), top)
    else:
        predicted = _predict_vectors(trained, split, _lowest(trained, top, threshold), top, maps)
    predictions = [
        Prediction(_path_of(image), error=problems[image]) if image in problems else next(predicted) for image in images
    ]
    if overlays and out is not None:
        with writing(f"--out {out}"):
            write_overlays(images, predictions, overlays, out, task, trained.classes)
    return predictions


def _lowest(trained: LoadedModel, top: int | None, threshold: float | None) -> Sequence[float]:
    """Return the lowest probability of each class or label. With `top`, the run's thresholds do not apply."""
    if top is None and threshold is None:
        return trained.used_thresholds
    return (threshold or 0.0,) * len(trained.classes)


def _check_options(
    task: Task[Any], top: int | None, threshold: float | None, masks: Path | None, explain: Path | None
) -> None:
    """Check that the options of `predict` fit the task, and that captum is installed if it is needed."""
    for option, used, fits, allowed, remedy in (
        ("--threshold", threshold is not None, task.threshold is not None, "labels or boxes", ""),
        ("--top", top is not None, task.ranked, "classes, labels, masks or boxes", ""),
        ("--out", masks is not None, isinstance(task, Segment), "masks", ", or add --overlay"),
        ("--explain", explain is not None, isinstance(task, Classify), "classes", ", or use --overlay instead"),
    ):
        if used and not fits:
            raise UserError(
                f"{option}: works only with models that predict {allowed}, but this model predicts {task.kind.units}. "
                f"Remove {option}{remedy}."
            )
    if explain is not None and not find_spec("captum"):
        raise missing_package("--explain", "captum", "explain")


def _output_files(
    images: Sequence[ImageRef],
    given: Sequence[ImageRef],
    folder: Path | None,
    flag: str = "--out",
    ending: str = ".png",
) -> Mapping[Path, Path]:
    """Return the file to write for each image. Images in memory have no path, so nothing is written for them."""
    paths = [image for image in images if isinstance(image, Path)]
    folders = [path for path in given if isinstance(path, Path) and path.is_dir()]
    return {} if folder is None else output_files(paths, folders, folder, flag, ending)


def _none_usable(problems: Mapping[ImageRef, str], count: int) -> UserError:
    file, reason = next(iter(problems.items()))
    problem = "the image cannot be used" if count == 1 else f"none of {count} images can be used. The first problem"
    return UserError(f"{problem}: {name_of(file)} {reason}")


def list_images(given: Sequence[ImageRef]) -> list[ImageRef]:
    """Return the given images in order. Each folder is replaced by its images, sorted by path.

    Raises:
        UserError: a path does not exist, a folder has no images, or nothing is given.
    """
    images: list[ImageRef] = []
    for path in given:
        if not isinstance(path, Path):
            images.append(path)
            continue
        if not path.exists():
            hint = " Remove the quotes, or pass the folder." if {*"*?"} & {*str(path)} else near_file(path)
            raise UserError(f"{path}: no such file or folder.{hint}")
        # Images of unsupported formats are listed to report why they have no prediction.
        files = find_images(path, with_foreign=True) if path.is_dir() else [path]
        if not files:
            raise UserError(f"{path}: the folder has no images. Pass a folder with images, or image files.")
        images += files
    if not images:
        raise UserError("no images are given. Pass files, or folders with images.")
    return images


def _path_of(image: ImageRef) -> Path:
    return image if isinstance(image, Path) else Path(name_of(image))


def _predict_objects(
    trained: LoadedModel, task: Detect, split: Split, lowest: Sequence[float], top: int | None
) -> Iterator[Prediction]:
    finder = _ObjectFinder(task, split.files, trained.classes, torch.tensor(lowest, dtype=torch.float64), top)
    trained.run_over(split, finder, description="predicting")
    for number, file in enumerate(split.files):
        objects = finder.found[number]
        classes = tuple((found.name, found.score) for found in objects.found)
        yield Prediction(_path_of(file), classes, objects=objects)


def _predict_vectors(
    trained: LoadedModel, split: Split, lowest: Sequence[float], top: int | None, maps: Mapping[Path, Path]
) -> Iterator[Prediction]:
    """Predict with a model that returns a vector for each image, and write maps of what the model looks at."""
    names, task = trained.classes, trained.task
    recorder = KeptOutputs()
    callbacks: list[Callback] = [recorder]
    if maps:
        from trainer.predictions.activation_maps import MapWriter  # imports PyTorch

        callbacks.append(MapWriter(split.files, [maps[_path_of(file)] for file in split.files], names))
    with writing("--explain"):
        trained.run_over(split, *callbacks, description="predicting", frames=bool(maps))
    outputs, *frames = recorder.in_order()
    outputs = outputs.float()
    if task.ranked:
        values, units = task.activate(outputs).topk(min(top or task.top or len(names), len(names)), dim=1)
        for file, *ranks in zip(split.files, units.tolist(), values.tolist(), strict=True):
            classes = tuple((names[unit], share) for unit, share in zip(*ranks, strict=True) if share >= lowest[unit])
            yield Prediction(_path_of(file), classes, unit=task.unit)
        return
    if frames:
        for file, frame in zip(split.files, frames[0], strict=True):
            frame.copy_(frame @ upright(file)[0])
    columns, values = task.numbers(outputs, frames[0] if frames else None, names)
    for file, numbers in zip(split.files, values.tolist(), strict=True):
        yield Prediction(_path_of(file), numbers=tuple(zip(columns, numbers, strict=True)))


class _ObjectFinder(Callback):
    """Collects at most `top` objects of each image, by index. `lowest` has the lowest score of each class."""

    def __init__(
        self, task: Detect, files: Sequence[ImageRef], names: tuple[str, ...], lowest: Tensor, top: int | None
    ) -> None:
        self._task, self._files, self._names, self._lowest, self._top = task, files, names, lowest, top
        self.found: dict[int, FoundObjects] = {}

    def after_batch(self, learner: Learner) -> None:
        frames = learner.batch.frames
        assert frames is not None
        batch = zip(learner.batch.indices.tolist(), learner.output.float().cpu(), frames.cpu(), strict=True)
        for number, output, frame in batch:
            turn, size = upright(self._files[number])
            certain = output[output[:, 5].double() >= self._lowest[output[:, 4].long()]]
            objects = self._task.objects(certain, frame @ turn, size, self._names)
            self.found[number] = FoundObjects(tuple(objects[: self._top]), size, self._names)


def _predict_masks(
    trained: LoadedModel,
    split: Split,
    masks: Mapping[Path, Path],
    folder: Path | None,
    top: int | None,
) -> Iterator[Prediction]:
    names, task = trained.classes, trained.task
    files = [masks.get(_path_of(image)) for image in split.files]
    writer = MaskWriter(split.files, files, names, folder)
    with writing(f"--out {folder}"):
        trained.run_over(split, writer, description="predicting")
    if most := max(writer.unseen.values()):
        sys.stderr.write(
            f"warning: aug.val crops images. Up to {most:.0%} of an image has no prediction and is 255 in the mask.\n"
        )
    for number, (image, file) in enumerate(zip(split.files, files, strict=True)):
        shares = writer.shares[number]
        largest = (-shares).argsort(kind="stable")[: top or task.top].tolist()
        classes = tuple((names[unit], float(shares[unit])) for unit in largest if shares[unit])
        yield Prediction(_path_of(image), classes, unit=task.unit, mask=file, labels=writer.labels.get(number))
