"""Passes of a loader, taken to the CPU and compared; of gray images the pixels tell how they were drawn."""

import io
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from loaders import build_loader
from torch import Tensor

from augment.data.dataset import Split
from augment.pipeline.batch import Batch
from augment.pipeline.loader import Loader
from augment.recipe.plan import Plan, build_plan
from augment.recipe.sampler import Sampler
from augment.recipe.steps import SplitName, parse_aug

SEED = 3
SIZE = 8
FILES = 17

# What a batch holds, on the CPU, in memory of its own: images, targets, indices.
Content = tuple[Tensor, Tensor, Tensor]


def level(index: int) -> int:
    return 60 + 10 * index


def first(split: Split, count: int) -> Split:
    """Return the first `count` images, beginning again where there are no more."""
    places = [i % len(split) for i in range(count)]
    return Split(tuple(split.files[i] for i in places), tuple(split.targets[i] for i in places))


# A factor of its own for each sample tells the epoch and the place that it was drawn for.
DRAWN: dict[str, Any] = {"brightness": {"p": 0.75, "factor_range": [0.25, 1]}}

# Everything that has state: the shuffle, the crop's generator and two stages.
RECIPE: dict[str, Any] = {"random_resized_crop": {}, "flip": {"p": 0.5}, "rotate": {"p": 0.5}, "hue": {"p": 0.5}}


def plan_of(steps: dict[str, Any], split: SplitName = "train", size: int = SIZE) -> Plan:
    return build_plan(parse_aug({"size": size, split: steps}), split)


def make(
    split: Split, device: torch.device, *, plan: Plan | None = None, batch_size: int = 4, **options: Any
) -> Loader:
    given: dict[str, Any] = {"seed": SEED, "device": device, "raw": True} | options
    return build_loader(plan or plan_of(DRAWN), split, batch_size=batch_size, **given)


def content(batch: Batch) -> Content:
    return batch.images.cpu().clone(), batch.targets.cpu().clone(), batch.indices.cpu().clone()


def take(loader: Iterable[Batch], count: int | None = None) -> list[Content]:
    """Return a pass, or the first `count` batches of one that is then cut short."""
    taken = []
    for batch in loader:
        taken.append(content(batch))
        if len(taken) == count:
            break
    return taken


def views_of(loader: Iterable[Batch]) -> list[Tensor]:
    """Return the images of each view of a pass, (samples, 3, size, size)."""
    batches = [[view.cpu().clone() for view in batch.views] for batch in loader]
    return [torch.cat(view) for view in zip(*batches, strict=True)]


def indices(batches: list[Content]) -> list[int]:
    return torch.cat([batch[2] for batch in batches]).tolist() if batches else []


def same(ones: list[Content], others: list[Content]) -> bool:
    return len(ones) == len(others) and all(
        torch.equal(a, b) for one, other in zip(ones, others, strict=True) for a, b in zip(one, other, strict=True)
    )


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """Write a state to a file and read it again, without running code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    read: dict[str, Any] = torch.load(file, weights_only=True)
    return read


def states_of(loader: Loader) -> tuple[list[Content], list[dict[str, Any]]]:
    """Return a pass and, after each of its batches, the state."""
    batches, states = [], []
    for batch in loader:
        batches.append(content(batch))
        states.append(saved(loader.state_dict()))
    return batches, states


def assert_drawn(batches: list[Content], epoch: int, *, split: SplitName = "train") -> None:
    """Check that gray images were fed with the draws of an epoch, from its first place on."""
    order = indices(batches)
    drawn = Sampler(plan_of(DRAWN, split), SEED).draw(epoch, 0, len(order))["brightness"]
    factors = np.where(drawn["applied"], drawn["factor"], 1)
    levels = torch.cat([batch[0] for batch in batches])[:, 1, SIZE // 2, SIZE // 2].numpy()
    np.testing.assert_allclose(levels, factors * [level(index) for index in order], atol=0.51)


def assert_complete(batches: list[Content], samples: int, epoch: int, *, split: SplitName = "train") -> None:
    """Check that a pass has each of so many gray images once, with the draws of that epoch."""
    assert sorted(indices(batches)) == list(range(samples))
    assert_drawn(batches, epoch, split=split)
