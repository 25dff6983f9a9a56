"""Compare an exported model, with its own preprocessing, with the model in PyTorch as it is validated."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from augment.data.dataset import ImageRef, Split
from augment.data.images import name_of
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import Callback
from trainer.loop.learner import Learner
from trainer.run.trained import Trained
from trainer.tasks.meter import Meter

_CPU = torch.device("cpu")
_PIXELS = 0.01  # share of pixels, of those of masks, in which the highest output may be another one

# The outputs of an export for an image, (K,) or (K, height, width) each: what the model returns, and its activation.
RunExport = Callable[[ImageRef], Sequence[NDArray[np.float32]]]


@dataclass(frozen=True)
class Check:
    """How an export compares with PyTorch on some images."""

    images: int
    pytorch: dict[str, float]  # the scores of the model in PyTorch
    exported: dict[str, float]  # the scores of the export
    largest: float  # the largest absolute difference of an activated output: of a probability, or of a number
    # Names of the images whose highest output is another one, of masks in more than a hundredth of the pixels; none
    # where outputs are not ranked
    differing: tuple[str, ...]


def compare(trained: Trained, split: Split, run: RunExport) -> Check:
    """Compare an export with the model in PyTorch, image by image."""
    recorder, comparison = Recorder(), _Comparison(trained, split, run)
    trained.run_over(split, recorder, comparison, description="comparing")
    return Check(
        images=len(split.files),
        pytorch=recorder.val,
        exported={f"val_{name}": value for name, value in comparison.meter.scores().items()},
        largest=comparison.largest,
        differing=tuple(name_of(split.files[i]) for i in sorted(comparison.differing)),
    )


class _Comparison(Callback):
    """Runs an export on the images of each batch of a pass, as all outputs of masks would not fit in memory."""

    def __init__(self, trained: Trained, split: Split, run: RunExport) -> None:
        self._trained, self._files, self._run = trained, split.files, run
        self._loss = trained.task.make_losses(trained.config.fit, trained.network, _CPU)[1]
        self.largest = 0.0
        self.differing: list[int] = []

    def before_validate(self, learner: Learner) -> None:
        """Measure what is measured of the model."""
        self.meter = Meter(learner.task, learner.find(Recorder).metrics, _CPU, keep=True)

    def after_batch(self, learner: Learner) -> None:
        """Compare the outputs of a batch."""
        batch, task = learner.batch, learner.task
        indices, targets = batch.indices.tolist(), task.targets_of(batch).cpu()
        exported = torch.stack([torch.from_numpy(np.array(self._run(self._files[i])[0])) for i in indices])
        self.meter.update(self._loss(exported, targets), exported, targets, frames=task.frames_of(batch))
        ours, theirs = task.activate(learner.output.float().cpu()), task.activate(exported)
        self.largest = max(self.largest, (ours - theirs).abs().max().item())
        if task.ranked and len(self._trained.classes) > 1:
            other = (ours.argmax(1) != theirs.argmax(1)).float().reshape(len(indices), -1).mean(1) > _PIXELS
            self.differing += [i for i, differs in zip(indices, other.tolist(), strict=True) if differs]
