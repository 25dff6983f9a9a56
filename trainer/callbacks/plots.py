"""The callback that draws the first batch, and the figure of the task. The report draws the curves."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from augment.params import Count, setting
from augment.support.background import Background
from augment.support.untrusted_files import explained_damage
from trainer.callbacks.checkpoint import best_model, kept_model
from trainer.loop.callback import Callback, Phase, configurable
from trainer.loop.checkpoint import BEST
from trainer.loop.lazy_learner import Learner

BATCH = "batch.png"
REPORT, MISTAKES = "report.html", "mistakes.json"  # `trainer.report` writes them


@configurable
@dataclass(eq=False)
class Plots(Callback):
    """Draws the first training batch, and a figure of the best epoch's predictions.

    Depending on the task, this figure is a confusion matrix, the average precision of each label, or predicted numbers
    plotted against their targets.
    """

    images: int = setting(Count(default=32, within=(1, 32), doc="number of images to show from the batch"))
    main_only = True
    order = Phase.DRAW
    _first: Background[None] | None = field(default=None, init=False)

    def before_fit(self, learner: Learner) -> None:
        self._first = None

    def after_batch(self, learner: Learner) -> None:
        if learner.training and self._first is None and learner.folder is not None:
            from augment.pipeline.batch import as_pixels

            images = as_pixels(learner.batch.images[: self.images], learner.train_loader.plan)
            targets = learner.batch.targets[: self.images]
            each = targets if isinstance(targets, list) else targets.tolist()
            labels = [learner.task.caption(target, learner.classes) for target in each]
            number = learner.progress.batches_done
            self._first = Background(partial(_draw_first, learner.folder, number, images, labels))

    def after_fit(self, learner: Learner) -> None:
        if self._first is not None and learner.error is None:
            self._first.result()
        elif self._first is not None:
            self._first.drop()
        if learner.folder is None or not learner.folder.is_dir():
            return
        from trainer.figures.batches import plot_outputs

        best = best_model(learner)
        if best is not None and best.samples is not None:  # the best epoch had a validation
            # The file of a resumed run may come from a stranger.
            is_read = best is not kept_model(learner)
            with explained_damage(learner.folder / BEST) if is_read else nullcontext():
                figure = learner.task.figure(learner.task.samples(**best.samples), learner.classes)
                if figure is not None:
                    plot_outputs(figure, learner.folder / learner.task.figure_file)


def _draw_first(folder: Path, step: int, images: NDArray[np.uint8], labels: list[str]) -> None:
    from trainer.figures.batches import plot_batch  # importing Matplotlib takes a while

    if folder.is_dir():  # drawing would create a deleted folder again
        plot_batch(images, labels, folder / BATCH, title=f"training batch {step}, after augmentation")
