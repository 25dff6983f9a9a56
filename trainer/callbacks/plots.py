"""Figures of a run: the first batch, curves, the schedule, and the figure of its task."""

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from augment.params import Count, setting
from augment.support.background import Refresher
from trainer.callbacks.recorder import Recorder
from trainer.callbacks.registry import configurable
from trainer.callbacks.scheduler import ParamScheduler
from trainer.figures.batch import plot_batch
from trainer.figures.curves import plot_history, plot_schedule
from trainer.figures.outputs import plot_outputs
from trainer.loop.callback import Callback
from trainer.loop.checkpoint import BEST, BestModel, load
from trainer.loop.learner import Learner
from trainer.optim.schedule import position

BATCH, HISTORY, SCHEDULE = "batch.png", "history.png", "schedule.png"


@configurable
@dataclass(eq=False)
class Plots(Callback):
    """Draws the first training batch, loss and accuracy, the schedule, and the best epoch's confusion matrix.

    In place of the matrix, it draws the average precisions for labels, and predictions over targets for numbers.
    """

    images: int = setting(Count(default=32, within=(1, 32), doc="number of images of the batch to show"))
    main_only = True
    order: ClassVar[int] = 60
    _history: Refresher | None = field(default=None, init=False)
    _begun: bool = field(default=False, init=False)

    def before_fit(self, learner: Learner) -> None:
        """Draw the schedule, which is known before the first step."""
        self._history = Refresher(HISTORY)
        if learner.folder is None:
            return
        schedules = [c.schedules for c in learner.callbacks if isinstance(c, ParamScheduler)]
        if schedules and "lr" in schedules[0]:
            steps = learner.total_steps
            rates = [schedules[0]["lr"](position(step, steps)) for step in range(steps)]
            plot_schedule(rates, learner.folder / SCHEDULE)

    def after_batch(self, learner: Learner) -> None:
        """Draw the first training batch, as it came out of the pipeline."""
        if learner.training and not self._begun and learner.folder is not None:
            self._begun = True
            images, labels = as_fed(learner, learner.batch.images[: self.images], learner.batch.targets[: self.images])
            plot_batch(images, labels, learner.folder / BATCH, title=f"training batch {learner.step + 1}, as fed")

    def after_epoch(self, learner: Learner) -> None:
        """Draw the curves again in the background if the last drawing is old."""
        if learner.folder is not None and self._history is not None and self._history.due:
            self._history.start(partial(plot_history, list(learner.find(Recorder).rows), learner.folder / HISTORY))

    def after_fit(self, learner: Learner) -> None:
        """Draw the curves, and the figure of the task for the best epoch."""
        if self._history is not None:
            self._history.finish()
        if learner.folder is None or not learner.folder.is_dir() or not learner.find(Recorder).rows:
            return
        plot_history(learner.find(Recorder).rows, learner.folder / HISTORY)
        if (learner.folder / BEST).is_file():
            best = load(learner.folder / BEST, BestModel)
            if best.samples is None:  # the best epoch had no validation
                return
            figure = learner.task.figure(learner.task.samples(**best.samples), learner.classes)
            if figure is not None:
                plot_outputs(figure, learner.folder / learner.task.figure_file)


def as_fed(learner: Learner, images: Tensor, targets: Tensor) -> tuple[NDArray[np.uint8], list[str]]:
    """Return training images as pixels, (N, H, W, 3), as they were fed, and their targets in words."""
    plan = learner.train_loader.plan
    normalization = ((0.0,), (1.0,)) if plan is None else (plan.mean, plan.std)
    images = images.float()
    mean, std = (images.new_tensor(values).view(-1, 1, 1) for values in normalization)
    pixels = ((images * std + mean) * 255).nan_to_num().round().clamp(0, 255).to(torch.uint8)
    captions = [learner.task.caption(target, learner.classes) for target in targets.tolist()]
    return pixels.permute(0, 2, 3, 1).cpu().numpy(), captions
