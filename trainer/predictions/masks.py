"""Write predicted masks at the size of their images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from augment.data.dataset import ImageRef
from augment.data.images import open_image, orientation_of, to_rgb, upright_size
from augment.data.targets.spatial import IGNORE
from augment.support.errors import UserError
from augment.support.files import write_atomically
from augment.support.lazy_torch import F, Tensor, torch
from trainer.loop.callback import Callback

if TYPE_CHECKING:
    from trainer.loop.learner import Learner

_MOST = 2**25  # maximum number of values to sample at once
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
        folder: the folder that contains all files of masks, if there are any.
        overlay: whether to also write the images with their masks drawn on them.
    """

    def __init__(
        self,
        files: Sequence[ImageRef],
        masks: Sequence[Path | None],
        names: Sequence[str],
        folder: Path | None,
        *,
        overlay: bool,
    ) -> None:
        self._files, self._masks, self._names, self._folder, self._overlay = files, masks, names, folder, overlay
        self.shares: dict[int, NDArray[np.float64]] = {}
        self.unseen: dict[int, float] = {}
        self.labels: dict[int, NDArray[np.uint8]] = {}

    def after_batch(self, learner: Learner) -> None:
        frames = learner.batch.frames
        assert frames is not None
        for number, output, frame in zip(learner.batch.indices.tolist(), learner.output, frames, strict=True):
            with open_image(self._files[number]) as image:
                turn, size = upright(image)
                labels = whole_mask(output, frame @ turn.to(frame.device), size[::-1])
                counts = np.bincount(labels.ravel(), minlength=IGNORE + 1)
                self.unseen[number] = counts[IGNORE] / labels.size
                counts = counts[: len(self._names)]
                self.shares[number] = counts / max(counts.sum(), 1)
                if (file := self._masks[number]) is None:
                    self.labels[number] = labels
                else:
                    self._write(file, image, labels)

    def _write(self, file: Path, image: Image.Image, labels: NDArray[np.uint8]) -> None:
        mask, content = Image.fromarray(labels), BytesIO()
        mask.putpalette(palette(self._names))
        mask.save(content, "PNG", optimize=True)
        write_atomically(file, content.getvalue(), folder=self._folder)
        if self._overlay:
            from augment.drawing.target_overlays import Drawing  # with Matplotlib

            content = BytesIO()
            drawn = Drawing(np.asarray(to_rgb(image))).mask(labels, self._names, ignore=IGNORE).pixels
            Image.fromarray(drawn).save(content, "JPEG", quality=90)
            overlay = file.with_name(f"{file.stem}_overlay.jpg")
            write_atomically(overlay, content.getvalue(), folder=self._folder)


def upright(image: Image.Image) -> tuple[Tensor, tuple[int, int]]:
    """Return the matrix from pixels of the upright image to stored pixels, (3, 3), and the upright width and height."""
    from augment.pipeline.geometry.frames import turns  # imports PyTorch

    size = upright_size(image)
    turn = turns(np.array([orientation_of(image)]), np.array([size[::-1]]))[0]
    return torch.from_numpy(np.linalg.inv(turn)), size


def whole_mask(output: Tensor, frame: Tensor, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the mask of an image. Logits are interpolated linearly at its pixels.

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
    parts, rows = [], max(1, _MOST // (size[1] * len(output)))
    for start in range(0, size[0], rows):
        y = torch.arange(start, min(start + rows, size[0]), dtype=torch.float64, device=output.device)[:, None]
        across, down, w = (row[0] * x + row[1] * y + row[2] for row in matrix)
        across, down = across / w, down / w
        grid = torch.stack([(2 * across + 1) / width - 1, (2 * down + 1) / height - 1], dim=-1)
        sampled = F.grid_sample(output[None].float(), grid[None].float(), padding_mode="border", align_corners=False)
        inside = (across >= -0.5) & (across <= width - 0.5) & (down >= -0.5) & (down <= height - 0.5)
        parts.append(sampled[0].argmax(dim=0).where(inside, IGNORE).byte())
    return torch.cat(parts).cpu().numpy()


def palette(names: Sequence[str]) -> list[int]:
    """Return the red, green and blue values of all labels' colors. The background is black, unseen pixels are gray."""
    from augment.drawing.target_overlays import color_of

    colors = [color_of(label) for label in range(IGNORE)] + [_UNKNOWN]
    if [*names[:1]] == ["background"]:
        colors[0] = (0, 0, 0)
    return [value for color in colors for value in color]


def mask_files(
    images: Sequence[Path], folders: Sequence[Path], folder: Path, flag: str = "--out"
) -> Mapping[Path, Path]:
    """Return the file of each image's mask in `folder`, at the path that the image has in one of `folders`."""
    taken: dict[Path, Path] = {}
    for image in dict.fromkeys(images):
        above = next((path for path in folders if image.is_relative_to(path)), image.parent)
        file = (folder / image.relative_to(above)).with_suffix(".png")
        if (other := taken.setdefault(file, image)) != image:
            raise UserError(f"{flag} {folder}: {other} and {image} would both become {file}. Predict one at a time.")
    return {image: file for file, image in taken.items()}
