"""Write predicted masks at the size of their images, and draw predictions on images."""

from collections import Counter
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from augment.data.dataset import ImageRef
from augment.data.formats.raster_files import stored_orientation
from augment.data.images import open_image, to_rgb, upright_size
from augment.data.targets.boxes import BACKGROUND
from augment.data.targets.spatial import IGNORE
from augment.support.console import progress_bar
from augment.support.errors import UserError
from augment.support.files import write_atomically
from augment.support.formatting import percent
from augment.support.lazy_torch import F, Tensor, torch
from trainer.loop.callback import Callback
from trainer.loop.lazy_learner import Learner
from trainer.tasks.display import NOTHING, Prediction
from trainer.tasks.keypoints import KeypointTask
from trainer.tasks.task import Task

_MAX_SAMPLED = 2**25  # maximum number of values to sample at once
_UNKNOWN = (224, 224, 224)  # color of pixels without a prediction


class MaskWriter(Callback):
    """Writes a mask for each image of a pass, as a PNG file with a palette. Pixels of a mask are labels.

    Masks have the size of the upright images, like masks for training. Pixels that validation crops away are 255.

    Attributes:
        shares: the share of each class in the pixels with a prediction, (classes,), by image.
        unseen: the share of pixels without a prediction by image.
        labels: masks without a file, (height, width), by image.

    Args:
        files: the images.
        masks: the file of each mask. A mask without a file stays in memory.
        names: names of the classes.
        folder: the folder that contains all mask files. None if all masks stay in memory.
    """

    def __init__(
        self, files: Sequence[ImageRef], masks: Sequence[Path | None], names: Sequence[str], folder: Path | None
    ) -> None:
        self._files, self._masks, self._names, self._folder = files, masks, names, folder
        self.shares: dict[int, NDArray[np.float64]] = {}
        self.unseen: dict[int, float] = {}
        self.labels: dict[int, NDArray[np.uint8]] = {}

    def after_batch(self, learner: Learner) -> None:
        frames = learner.batch.frames
        assert frames is not None
        for number, output, frame in zip(learner.batch.indices.tolist(), learner.output, frames, strict=True):
            turn, size = upright(self._files[number])
            labels = whole_mask(output, frame @ turn.to(frame.device), size[::-1])
            counts = np.bincount(labels.ravel(), minlength=IGNORE + 1)
            self.unseen[number] = counts[IGNORE] / labels.size
            counts = counts[: len(self._names)]
            self.shares[number] = counts / max(counts.sum(), 1)
            if (file := self._masks[number]) is None:
                self.labels[number] = labels
            else:
                self._write(file, labels)

    def _write(self, file: Path, labels: NDArray[np.uint8]) -> None:
        mask, content = Image.fromarray(labels), BytesIO()
        mask.putpalette(palette(self._names))
        mask.save(content, "PNG", optimize=True)
        write_atomically(file, content.getvalue(), folder=self._folder)


def upright(image: ImageRef) -> tuple[Tensor, tuple[int, int]]:
    """Return the matrix from pixels of the upright image to stored pixels, (3, 3), and the upright width and height."""
    from augment.pipeline.geometry.frames import turns  # imports PyTorch

    with open_image(image) as opened:
        size = upright_size(opened)
    turn = turns(np.array([stored_orientation(image)]), np.array([size[::-1]]))[0]
    return torch.from_numpy(np.linalg.inv(turn)), size


def whole_mask(output: Tensor, frame: Tensor, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the mask of an image. The logits are interpolated bilinearly at its pixels.

    Args:
        output: (classes, height, width) logits.
        frame: (3, 3) matrix from pixels of the image to pixels of the output.
        size: height and width of the image.

    Returns:
        (height, width) labels. They are 255 outside of the output.
    """
    height, width = output.shape[1:]
    matrix = frame.to(device=output.device, dtype=torch.float64)
    x = torch.arange(size[1], dtype=torch.float64, device=output.device)
    bands, rows = [], max(1, _MAX_SAMPLED // (size[1] * len(output)))
    for start in range(0, size[0], rows):
        y = torch.arange(start, min(start + rows, size[0]), dtype=torch.float64, device=output.device)[:, None]
        across, down, w = (row[0] * x + row[1] * y + row[2] for row in matrix)
        across, down = across / w, down / w
        grid = torch.stack([(2 * across + 1) / width - 1, (2 * down + 1) / height - 1], dim=-1)
        sampled = F.grid_sample(output[None].float(), grid[None].float(), padding_mode="border", align_corners=False)
        inside = (across >= -0.5) & (across <= width - 0.5) & (down >= -0.5) & (down <= height - 0.5)
        bands.append(sampled[0].argmax(dim=0).where(inside, IGNORE).byte())
    return torch.cat(bands).cpu().numpy()


def palette(names: Sequence[str]) -> list[int]:
    """Return the red, green and blue values of all labels' colors. The background is black, unseen pixels are gray."""
    from augment.drawing.target_overlays import color_of

    colors = [color_of(label) for label in range(IGNORE)] + [_UNKNOWN]
    if [*names[:1]] == ["background"]:
        colors[0] = (0, 0, 0)
    return [value for color in colors for value in color]


def output_files(
    images: Sequence[Path], folders: Sequence[Path], folder: Path, flag: str = "--out", ending: str = ".png"
) -> Mapping[Path, Path]:
    """Return the file to write for each image, such as its mask.

    The file's path in `folder` is the image's path in one of `folders`, with another ending.

    Raises:
        UserError: two images would have the same file, or a file would replace an image.
    """
    image_of_file: dict[Path, Path] = {}
    sources = {image.resolve() for image in images}
    for image in dict.fromkeys(images):
        base = next((path for path in folders if image.is_relative_to(path)), image.parent)
        file = folder / image.relative_to(base).with_name(f"{image.stem}{ending}")
        if file.resolve() in sources:
            raise UserError(f"{flag} {folder}: would replace the image {file}. Use another folder.")
        if (other := image_of_file.setdefault(file, image)) != image:
            raise UserError(
                f"{flag} {folder}: {other} and {image} would both become {file}. Predict each of them "
                "with another folder."
            )
    return {image: file for file, image in image_of_file.items()}


def write_overlays(
    images: Sequence[ImageRef],
    predictions: Sequence[Prediction],
    files: Mapping[Path, Path],
    folder: Path,
    task: Task[Any],
    names: Sequence[str],
) -> None:
    """Draw each prediction on its image, with a legend below it.

    The `files` to write are all in `folder`. `names` are the names of the model's outputs.
    """
    with progress_bar() as bar:
        row = bar.add_task("drawing", total=len(predictions))
        for image, prediction in zip(images, predictions, strict=True):
            if not prediction.error:
                with open_image(image) as opened:
                    pixels = np.asarray(to_rgb(opened))
                drawn, content = draw_prediction(pixels, prediction, task, names), BytesIO()
                Image.fromarray(drawn).save(content, "JPEG", quality=90)
                write_atomically(files[prediction.file], content.getvalue(), folder=folder)
            bar.advance(row)


def draw_prediction(
    pixels: NDArray[np.uint8], prediction: Prediction, task: Task[Any], names: Sequence[str]
) -> NDArray[np.uint8]:
    """Draw a prediction on an image, (height, width, 3), with a legend below it. See `write_overlays`."""
    from augment.drawing.target_overlays import Drawing, with_legend  # with Matplotlib

    drawing = Drawing.readable(pixels)
    legend: list[tuple[int | None, str]] = [(None, f"{name} {percent(share, 1)}") for name, share in prediction.classes]
    if prediction.objects is not None:
        objects = prediction.objects.found
        labels = [found.label for found in objects]
        boxes = np.array([found.box for found in objects]).reshape(-1, 4)
        for found in objects[::-1]:  # the highest score on top
            if found.mask is not None:
                drawing.masks([found.mask], [found.label])
        drawing.boxes(boxes[::-1], labels[::-1])
        drawing.texts(boxes, labels, [f"{found.name} {found.score:.0%}" for found in objects])
        legend = [(label, f"{names[label]} ({count})") for label, count in Counter(labels).most_common()]
    elif prediction.mask is not None:
        with Image.open(prediction.mask) as mask:
            mask_labels = np.asarray(mask)
        drawing.mask(mask_labels, names, ignore=IGNORE)
        legend = [(i, name) for i, name in enumerate(names) if name != BACKGROUND and (mask_labels == i).any()]
    elif isinstance(task, KeypointTask):
        points = np.array([value for _, value in prediction.numbers]).reshape(-1, 2)
        drawing.points(np.pad(points, ((0, 0), (0, 1)), constant_values=2), names=names)  # 2: all are visible
        legend = [(None, f"{len(names)} keypoints")]
    elif prediction.numbers:
        legend = [(None, f"{name} {value:.4g}") for name, value in prediction.numbers]
    return with_legend(drawing.pixels, legend or [(None, NOTHING)], drawing.weight)
