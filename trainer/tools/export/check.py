"""Compare an exported model, with its own preprocessing, with the model in PyTorch as it is validated."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from augment.data.dataset import ImageRef, Split
from augment.data.images import name_of
from augment.support.console import progress_bar
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import Callback
from trainer.loop.learner import Learner
from trainer.run.trained import Trained

# The outputs of an export for an image, (K,) each: what the model returns, and its activation.
Run = Callable[[ImageRef], Sequence[NDArray[np.float32]]]


@dataclass(frozen=True)
class Check:
    """How an export compares with PyTorch on some images.

    Attributes:
        images: number of images.
        pytorch: the scores of the model in PyTorch.
        exported: the scores of the export.
        largest: the largest absolute difference of an activated output: of a probability, or of a number.
        differing: names of the images whose highest output is another one; none where outputs are not ranked.
        margin: the largest lead, in PyTorch, of the highest output over the next one among these images.
    """

    images: int
    pytorch: dict[str, float]
    exported: dict[str, float]
    largest: float
    differing: tuple[str, ...]
    margin: float


class _Kept(Callback):
    """Keeps targets, indices and outputs of a pass."""

    order = 0

    def __init__(self) -> None:
        self._kept: list[tuple[Tensor, Tensor, Tensor]] = []

    def after_batch(self, learner: Learner) -> None:
        """Add the batch."""
        self._kept.append(
            (learner.batch.indices.clone(), learner.batch.targets.clone(), learner.output.float().clone())
        )

    def in_order(self) -> tuple[Tensor, Tensor]:
        """Return targets and outputs in the order of the split's files, on the CPU."""
        indices, targets, outputs = (torch.cat(parts).cpu() for parts in zip(*self._kept, strict=True))
        order = indices.argsort()
        return targets[order], outputs[order]


def compare(trained: Trained, split: Split, run: Run) -> Check:
    """Compare an export with the model in PyTorch, image by image.

    Args:
        trained: the model.
        split: images that can be decoded, with their targets; at least one.
        run: the export.
    """
    recorder, kept, task = Recorder(), _Kept(), trained.task
    trained.run_over(split, recorder, kept, description="PyTorch")
    targets, outputs = kept.in_order()
    found = []
    with progress_bar() as progress:
        for image in progress.track(split.files, description="the export"):
            found.append(torch.from_numpy(np.array(run(image)[0])))
    exported = torch.stack(found)
    _, loss = task.make_losses(trained.config.fit, trained.network, torch.device("cpu"))
    meter = task.meter(len(trained.classes), torch.device("cpu"), keep=True)
    meter.update(loss(exported, targets), exported, targets)
    ours, theirs = task.activate(outputs), task.activate(exported)
    differing: list[int] = []
    margin = 0.0
    if task.ranked and len(trained.classes) > 1:
        differing = (ours.argmax(1) != theirs.argmax(1)).nonzero().flatten().tolist()
        lead = ours.topk(2, dim=1).values
        margin = max(((lead[i, 0] - lead[i, 1]).item() for i in differing), default=0.0)
    return Check(
        images=len(split.files),
        pytorch=recorder.val,
        exported={f"val_{name}": value for name, value in meter.scores().items()},
        largest=(ours - theirs).abs().max().item(),
        differing=tuple(name_of(split.files[i]) for i in differing),
        margin=margin,
    )
