"""Pictures as the model would be fed them, each with what was done to it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from augment.captions import applied_steps
from augment.dataset import Picture, Split
from augment.loader import Batch, Loader
from augment.plan import Plan
from augment.sampler import Sampler
from augment.stage import Draws

Pictures = NDArray[np.uint8]


@dataclass(frozen=True)
class Shot:
    """A picture as the model would be fed it.

    Attributes:
        epoch: in which it is drawn so.
        view: of the pictures made of one.
        photo: index of the file.
        picture: (size, size, 3) RGB.
        done: what was done to it, in words.
    """

    epoch: int
    view: int
    photo: int
    picture: Pictures
    done: tuple[str, ...]


def shoot(plan: Plan, files: Sequence[Picture], *, seed: int, epochs: int) -> list[Shot]:
    """Run files through a plan and say what was done to each: what the sampler draws for exactly these samples.

    Args:
        plan: its steps.
        files: the pictures of an epoch, which is one batch.
        seed: of the draws.
        epochs: how many, from the first one.

    Returns:
        A shot for each epoch, view and file.
    """
    split = Split(tuple(files), tuple(range(len(files))))
    # Pictures that are mixed are mixed after normalization; the share of each comes out as the targets.
    raw = not plan.batch_stages
    loader = Loader(plan, split, batch_size=len(files), seed=seed, device=torch.device("cpu"), classes=len(files),
                    raw=raw)  # fmt: skip
    samplers = [Sampler(plan, seed, view=view) for view in range(plan.views.count)]
    shots = []
    for epoch in range(epochs):
        for batch in loader:
            shots += [shot for v, s in enumerate(samplers) for shot in _shots(batch, s, epoch=epoch, view=v)]
    loader.close()
    return shots


def _shots(batch: Batch, sampler: Sampler, *, epoch: int, view: int) -> Iterator[Shot]:
    plan = sampler.plan
    # Views are mixed alike, all as the first one.
    draws = sampler.draw(epoch, 0, len(batch)) | _mixing(replace(sampler, view=0), epoch, len(batch))
    pictures = _pixels(batch.views[view], plan)
    for place, photo in enumerate(batch.indices.tolist()):
        done = applied_steps(plan, draws, place)
        if plan.batch_stages and any(draws[s.key]["applied"][place] for t in plan.batch_stages for s in t.steps):
            done.append(f"share {float(batch.targets[place, photo]):.2f}")
        yield Shot(epoch, view, photo, pictures[place], tuple(done))


def _mixing(sampler: Sampler, epoch: int, count: int) -> dict[str, Draws]:
    keys = [step.key for stage in sampler.plan.batch_stages for step in stage.steps]
    drawn = sampler.draw(epoch, 0, count) if keys else {}
    return {key: drawn[key] for key in keys}


def _pixels(images: torch.Tensor, plan: Plan) -> Pictures:
    """Return (N, size, size, 3) uint8 of images as the loader hands them out."""
    if images.dtype != torch.uint8:
        mean, std = (images.new_tensor(v).view(3, 1, 1) for v in (plan.mean, plan.std))
        images = ((images * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
    return images.permute(0, 2, 3, 1).contiguous().numpy()
