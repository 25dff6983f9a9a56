"""What one would rather look at than read: the batch as it was fed, curves, the confusion matrix."""

from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from augment.dataset import Task
from augment.loader import Loader
from augment.params import Count, setting
from trainer.batch_plot import plot_batch
from trainer.callback import Callback
from trainer.callbacks import ParamScheduler, configurable
from trainer.checkpoint import BEST, load
from trainer.confusion_plot import plot_confusion
from trainer.learner import Learner
from trainer.output_plots import plot_labels, plot_scatter
from trainer.outputs import Outputs, label_scores
from trainer.plots import plot_history, plot_schedule
from trainer.recorder import Recorder
from trainer.schedule import position
from trainer.stages import StagedLoader

BATCH, HISTORY, CONFUSION, SCHEDULE = "batch.png", "history.png", "confusion.png", "schedule.png"
LABELS, SCATTER = "labels.png", "scatter.png"

# Seconds between two drawings of the curves of a run that is under way: drawing takes as long as a short epoch.
_EVERY = 30.0


@dataclass(eq=False)
class _Fed:
    images: NDArray[np.uint8]
    labels: list[str]


@configurable
@dataclass(eq=False)
class Plots(Callback):
    """Draws the first batch that the model was fed, loss and accuracy, the schedule, and the best epoch's confusion.

    Of labels it draws their average precisions in place of the confusion, of numbers predictions over targets.
    """

    pictures: int = setting(Count(default=32, within=(1, 32), doc="pictures of the batch that are shown"))
    order: ClassVar[int] = 60
    _drawn: float = field(default=0.0, init=False)
    _begun: bool = field(default=False, init=False)

    def before_fit(self, learner: Learner) -> None:
        """Draw the schedule, which is known before the first step."""
        self._drawn = monotonic()
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
            fed = self._fed(learner)
            plot_batch(
                fed.images, fed.labels, learner.folder / BATCH, title=f"training batch {learner.step + 1}, as fed"
            )

    def after_epoch(self, learner: Learner) -> None:
        """Draw the curves again if the last drawing is old."""
        if learner.folder is not None and monotonic() - self._drawn > _EVERY:
            plot_history(learner.find(Recorder).rows, learner.folder / HISTORY)
            self._drawn = monotonic()

    def after_fit(self, learner: Learner) -> None:
        """Draw the curves, and the confusion matrix of the best epoch or what stands for it."""
        if learner.folder is None or not learner.find(Recorder).rows:
            return
        plot_history(learner.find(Recorder).rows, learner.folder / HISTORY)
        if (learner.folder / BEST).is_file():
            best = load(learner.folder / BEST)
            if best["samples"] is None:  # the best epoch had no validation
                return
            if learner.task == "classify":
                plot_confusion(best["confusion"].numpy(), learner.classes, learner.folder / CONFUSION)
            else:
                plot_outputs(Outputs(**best["samples"]), learner.task, learner.classes, learner.folder)

    def _fed(self, learner: Learner) -> _Fed:
        images = learner.batch.images[: self.pictures].float()
        mean, std = _normalization(learner.train_loader, images)
        pixels = ((images * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
        targets = learner.batch.targets[: self.pictures]
        label = _label if learner.task == "classify" else _several if learner.task == "multilabel" else _numbers
        labels = [label(target, learner.classes) for target in targets.tolist()]
        return _Fed(pixels.permute(0, 2, 3, 1).cpu().numpy(), labels)


def _label(target: int | list[float], classes: tuple[str, ...]) -> str:
    """Name a sample's class, or the classes that are mixed in it with their shares: "cat 70 %, dog 30 %"."""
    if isinstance(target, int):
        return classes[target] if classes else str(target)
    shares = sorted(((share, i) for i, share in enumerate(target) if share >= 0.005), reverse=True)
    return ", ".join(f"{classes[i] if classes else i} {share:.0%}" for share, i in shares)


def _several(target: list[float], classes: tuple[str, ...]) -> str:
    """Name a sample's labels, those that are mixed in it with their shares."""
    shown = ((name, share) for name, share in zip(classes, target, strict=True) if share >= 0.005)
    return ", ".join(name if share > 0.995 else f"{name} {share:.0%}" for name, share in shown) or "none"


def _numbers(target: list[float], classes: tuple[str, ...]) -> str:
    return ", ".join(f"{value:.4g}" for value in target)


def plot_outputs(outputs: Outputs, task: Task, names: tuple[str, ...], folder: Path, file: str | None = None) -> None:
    """Draw what a pass said of labels or numbers into a folder, by default as labels.png or scatter.png."""
    if task == "multilabel":
        plot_labels(label_scores(outputs, names), folder / (file or LABELS))
    else:
        plot_scatter(outputs.target.numpy(), outputs.output.numpy(), names, folder / (file or SCATTER))


def _normalization(loader: Any, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and std, (3, 1, 1) in 0..1, that undo the loader's normalization."""
    if not isinstance(loader, Loader | StagedLoader):
        return images.new_zeros(3, 1, 1), images.new_ones(3, 1, 1)
    mean, std = (images.new_tensor(v).view(3, 1, 1) for v in (loader.plan.mean, loader.plan.std))
    return mean, std
