"""Show images as a loader hands them out."""

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from augment.data.targets.spatial import SpatialKind
from augment.drawing.contact_sheet import MAX_IMAGES, draw_batch
from augment.drawing.figure_style import DPI
from augment.drawing.target_overlays import Drawing, Pixels
from augment.pipeline.batch import as_pixels

if TYPE_CHECKING:
    from augment.pipeline.loader import Loader

LARGEST = 512  # the longest side of images with targets drawn on them, in pixels; at least 256 of them


def with_target(image: Pixels, kind: SpatialKind, target: Any, names: Sequence[str]) -> Pixels:
    """Return an image with its target drawn on it, enlarged or reduced so that names can be read."""
    longest = max(image.shape[:2])
    drawing = Drawing(image, LARGEST / longest if longest > LARGEST else -(-256 // longest))
    kind.draw(drawing, target, names)
    return drawing.pixels


def batch_image(loader: "Loader", count: int, start: int | dict[str, Any]) -> Image.Image:
    """Draw the first images of a batch, at most 32, with their targets on them and in words below.

    Args:
        loader: a loader of its own.
        count: number of images.
        start: the epoch whose first batch is drawn; or the state of a loader whose next batch is.
    """
    plan, kind, names = loader.plan, loader.split.kind, loader.classes
    if isinstance(start, int):
        loader.start_at(start)
    else:
        loader.load_state_dict(start)
    title = f"{plan.split}, epoch {loader.epoch + 1}, batch {loader.batch + 1}, as fed"
    batch = next(iter(loader))
    count = max(1, min(count, MAX_IMAGES, len(batch)))
    images = list(as_pixels(batch.images[:count], plan))
    if isinstance(kind, SpatialKind):
        targets = list(batch.view_targets[0][:count])
        images = [with_target(image, kind, target, names) for image, target in zip(images, targets, strict=True)]
    else:
        targets = batch.targets[:count].tolist()
    figure, data = Figure(dpi=DPI), BytesIO()
    draw_batch(figure, np.stack(images), [kind.caption(target, names) for target in targets], title)
    figure.savefig(data, format="png", dpi=DPI)
    return Image.open(data)
