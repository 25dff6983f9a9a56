"""Compare an exported model, with its own preprocessing, with the model in PyTorch as it is validated."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from augment.data.dataset import ImageRef, Split
from augment.data.images import name_of
from augment.support.console import progress_bar
from trainer.callbacks.recorder import Recorder
from trainer.run.trained import KeptOutputs, Trained
from trainer.tasks.meter import Meter

# The outputs of an export for an image, (K,) each: what the model returns, and its activation.
RunExport = Callable[[ImageRef], Sequence[NDArray[np.float32]]]


@dataclass(frozen=True)
class Check:
    """How an export compares with PyTorch on some images.

    Attributes:
        images: number of images.
        pytorch: the scores of the model in PyTorch.
        exported: the scores of the export.
        largest: the largest absolute difference of an activated output: of a probability, or of a number.
        differing: names of the images whose highest output is another one; none where outputs are not ranked.
    """

    images: int
    pytorch: dict[str, float]
    exported: dict[str, float]
    largest: float
    differing: tuple[str, ...]


def compare(trained: Trained, split: Split, run: RunExport) -> Check:
    """Compare an export with the model in PyTorch, image by image.

    Args:
        trained: the model.
        split: images that can be decoded, with their targets; at least one.
        run: the export.
    """
    recorder, task = Recorder(), trained.task
    kept = KeptOutputs(lambda learner: (learner.batch.targets.clone(), learner.output.float().clone()))
    trained.run_over(split, recorder, kept, description="PyTorch")
    targets, outputs = kept.in_order()
    found = []
    with progress_bar() as progress:
        for image in progress.track(split.files, description="the export"):
            found.append(torch.from_numpy(np.array(run(image)[0])))
    exported = torch.stack(found)
    _, loss = task.make_losses(trained.config.fit, trained.network, torch.device("cpu"))
    meter = Meter(task, recorder.metrics, torch.device("cpu"), keep=True)
    meter.update(loss(exported, targets), exported, targets)
    ours, theirs = task.activate(outputs), task.activate(exported)
    differing: list[int] = []
    if task.ranked and len(trained.classes) > 1:
        differing = (ours.argmax(1) != theirs.argmax(1)).nonzero().flatten().tolist()
    return Check(
        images=len(split.files),
        pytorch=recorder.val,
        exported={f"val_{name}": value for name, value in meter.scores().items()},
        largest=(ours - theirs).abs().max().item(),
        differing=tuple(name_of(split.files[i]) for i in differing),
    )
