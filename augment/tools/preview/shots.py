"""Render images as fed to the model, each with a description of what was done to it.

What belongs to an image, such as its boxes, would be drawn on it in `shoot`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from augment.data.dataset import ImageRef, Split
from augment.pipeline.loader import Loader
from augment.recipe.captions import applied_steps
from augment.recipe.plan import Plan
from augment.recipe.sampler import Sampler

Images = NDArray[np.uint8]


@dataclass(frozen=True)
class Shot:
    """An image as fed to the model.

    Attributes:
        epoch: the epoch in which it occurs.
        view: index of the view.
        photo: index of the file.
        image: (size, size, 3) RGB.
        done: what was done to it, as phrases.
    """

    epoch: int
    view: int
    photo: int
    image: Images
    done: tuple[str, ...]


def shoot(plan: Plan, files: Sequence[ImageRef], *, seed: int, epochs: int) -> list[Shot]:
    """Run files through a plan and describe what was done to each, from the sampler's draws for these samples.

    Args:
        plan: the plan.
        files: the images of an epoch, which form one batch.
        seed: seed of the draws.
        epochs: number of epochs.

    Returns:
        One shot for each epoch, view and file.
    """
    split = Split(tuple(files), tuple(range(len(files))))
    mixing = [step.key for stage in plan.batch_stages for step in stage.steps]
    # Mixing happens after normalization; targets then tell the shares.
    loader = Loader(plan, split, batch_size=len(files), seed=seed, device=torch.device("cpu"), raw=not mixing,
                    classes=[str(number) for number in split.targets])  # fmt: skip
    shots = []
    for epoch in range(epochs):
        (batch,) = loader
        for view, own in enumerate(plan.per_view):
            sampler = Sampler(own, seed, view=view)
            draws = sampler.draw(epoch, 0, len(batch))
            first = replace(sampler, view=0).draw(epoch, 0, len(batch))  # all views are mixed as the first one
            draws |= {key: first[key] for key in mixing}
            images = _pixels(batch.views[view], own)
            for sample, photo in enumerate(batch.indices.tolist()):
                done = applied_steps(own, draws, sample)
                if any(draws[key]["applied"][sample] for key in mixing):
                    done.append(f"share {float(batch.targets[sample, photo]):.2f}")
                shots.append(Shot(epoch, view, photo, images[sample], tuple(done)))
    loader.close()
    return shots


def _pixels(images: torch.Tensor, plan: Plan) -> Images:
    """Convert images as returned by the loader to (N, size, size, 3) uint8."""
    if images.dtype != torch.uint8:
        mean, std = (images.new_tensor(v).view(3, 1, 1) for v in (plan.mean, plan.std))
        images = ((images * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
    return images.permute(0, 2, 3, 1).contiguous().numpy()
