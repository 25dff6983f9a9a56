"""Render images as fed to the model, each with a description of what was done to it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from augment.data.dataset import ImageRef, Split
from augment.pipeline.batch import Batch
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
    # Mixing happens after normalization; targets then tell the shares.
    raw = not plan.batch_stages
    loader = Loader(plan, split, batch_size=len(files), seed=seed, device=torch.device("cpu"), raw=raw,
                    classes=[str(number) for number in split.targets])  # fmt: skip
    samplers = [Sampler(own, seed, view=view) for view, own in enumerate(plan.per_view)]
    shots = []
    for epoch in range(epochs):
        for batch in loader:
            shots += [shot for v, s in enumerate(samplers) for shot in _shots(batch, s, epoch=epoch, view=v)]
    loader.close()
    return shots


def _shots(batch: Batch, sampler: Sampler, *, epoch: int, view: int) -> Iterator[Shot]:
    plan = sampler.plan
    draws = sampler.draw(epoch, 0, len(batch))
    first = replace(sampler, view=0).draw(epoch, 0, len(batch))  # all views are mixed as the first one
    draws |= {step.key: first[step.key] for stage in plan.batch_stages for step in stage.steps}
    images = _pixels(batch.views[view], plan)
    for sample, photo in enumerate(batch.indices.tolist()):
        done = applied_steps(plan, draws, sample)
        if plan.batch_stages and any(draws[s.key]["applied"][sample] for t in plan.batch_stages for s in t.steps):
            done.append(f"share {float(batch.targets[sample, photo]):.2f}")
        yield Shot(epoch, view, photo, images[sample], tuple(done))


def _pixels(images: torch.Tensor, plan: Plan) -> Images:
    """Convert images as returned by the loader to (N, size, size, 3) uint8."""
    if images.dtype != torch.uint8:
        mean, std = (images.new_tensor(v).view(3, 1, 1) for v in (plan.mean, plan.std))
        images = ((images * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
    return images.permute(0, 2, 3, 1).contiguous().numpy()
