"""Draw the images of a batch, with their targets."""

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from augment.data.targets.kind import Kind
from augment.data.targets.spatial import SpatialKind
from augment.drawing.contact_sheet import MAX_IMAGES, draw_batch
from augment.drawing.figure_style import DPI
from augment.drawing.target_overlays import Drawing, Pixels
from augment.pipeline.batch import Batch, as_pixels
from augment.recipe.plan import Plan

# Limits of the longest side of an image with targets drawn on it, in pixels.
MIN_SIDE, MAX_SIDE = 256, 512


def with_target(image: Pixels, kind: SpatialKind, target: Any, names: Sequence[str]) -> Pixels:
    """Draw a target on an image, after resizing the image so that names can be read."""
    longest = max(image.shape[:2])
    drawing = Drawing(image, MAX_SIDE / longest if longest > MAX_SIDE else -(-MIN_SIDE // longest))
    kind.draw(drawing, target, names)
    return drawing.pixels


def batch_image(batch: Batch, count: int, plan: Plan, kind: Kind, names: Sequence[str], title: str) -> Image.Image:
    """Draw the first `count` images of a batch, at most 32. Show targets in captions, and on the image if possible."""
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
