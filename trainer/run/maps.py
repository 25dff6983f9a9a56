"""Where models look, in images of a pass and in those of a run's report."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, cast

from PIL import Image

from augment.pipeline.batch import Batch, as_pixels
from augment.pipeline.loader import Loader
from augment.pipeline.reading import Order, Shard
from augment.support.errors import first_line
from augment.support.files import write_atomically
from augment.support.lazy import Tensor, nn
from trainer.figures.attention import class_maps, installed, overlay, with_weights
from trainer.loop.callback import Callback, Learner
from trainer.loop.checkpoint import BEST, BestModel, load
from trainer.tasks.classify import ClassSamples
from trainer.tasks.meter import Samples

if TYPE_CHECKING:
    from augment.recipe.plan import Plan

log = logging.getLogger(__name__)


class MapWriter(Callback):
    """Writes each image of a pass as it was fed, and on it where the model finds the class that it predicts, as PNG.

    Args:
        files: the file for each image.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files

    def after_batch(self, learner: Learner) -> None:
        """Write those of the batch."""
        plan = cast(Loader, learner.train_loader).plan
        for number, image in _overlays(learner.model, learner.batch, learner.output.argmax(dim=1), plan):
            content = BytesIO()
            image.save(content, "PNG")
            write_atomically(self._files[number], content.getvalue())


def maps_of(learner: Learner, samples: Samples, positions: Sequence[int]) -> list[Image.Image]:
    """Return where the best model finds what it predicts for some samples of validation, as images.

    None where nobody can say: without captum, without classes, or without a feature map.
    """
    loader, folder = learner.val_loader, learner.folder
    if not (isinstance(samples, ClassSamples) and isinstance(loader, Loader) and folder and positions and installed()):
        return []
    indices, classes = samples.index[[*positions]].tolist(), samples.prediction[[*positions]]
    files, targets = (tuple(of[i] for i in indices) for of in (loader.split.files, loader.split.targets))
    split = replace(loader.split, files=files, targets=targets, repeated=0, bad=(), left_out=())
    order = Order(min(loader.batch_size, len(files)), 0, Shard(0, 1), False)
    try:
        network, images = with_weights(learner.model, load(folder / BEST, BestModel).model), dict[int, Image.Image]()
        with closing(Loader(loader.plan, split, order, loader.placement, classes=loader.classes)) as part:
            for batch in part:
                images |= _overlays(network, batch, classes.to(batch.images.device)[batch.indices], loader.plan)
    except Exception as error:  # of a model of one's own, or of captum: a report without maps is better than none
        log.info("no maps of where the model looks: %s", first_line(error))
        return []
    return [images[number] for number in range(len(files))]


def _overlays(network: nn.Module, batch: Batch, classes: Tensor, plan: Plan) -> Iterator[tuple[int, Image.Image]]:
    maps = class_maps(network, batch.images, classes).cpu().numpy()
    for number, pixels, values in zip(batch.indices.tolist(), as_pixels(batch.images, plan), maps, strict=True):
        yield number, overlay(pixels, values)
