"""Progressive resizing of a few images: a configuration with stages, its loader, and what that yields."""

import threading
from typing import Any

import torch

from augment.data.dataset import Split
from augment.pipeline.batch import Batch
from trainer.loop.progressive_resizing import StagedLoader
from trainer.run.build import make_train_loader
from trainer.run.config.schema import Config, parse_config

# Three stages over 7 images: two epochs of 8 px in batches of 3, one of 16 px, two of 12 px in batches of 4.
STAGES: dict[str, Any] = {
    "small": {"epochs": 2, "size": 8, "batch_size": 3},
    "middle": {"epochs": 1, "size": 16},
    "last": {},
}
SIZES = [(8, [3, 3, 1])] * 2 + [(16, [4, 3])] + [(12, [4, 3])] * 2
STEPS: dict[str, Any] = {"random_resized_crop": {}, "flip": {"p": 0.5}, "rotate": {"p": 0.5}}

Content = tuple[int, list[int], torch.Tensor]


def config_of(stages: object = STAGES, **fit: Any) -> Config:
    """Return a configuration of five epochs at 12 px in batches of 4."""
    given = {"epochs": 5, "batch_size": 4, "threads": 1, "device": "cpu", "stages": stages} | fit
    sections = {"data": {"source": "sample"}, "model": {"kind": "cnn"}}
    return parse_config({**sections, "aug": {"size": 12, "train": STEPS}, "fit": given})


def staged(config: Config, split: Split) -> StagedLoader:
    loader = make_train_loader(config, split)
    assert isinstance(loader, StagedLoader)
    return loader


def content(batch: Batch) -> Content:
    return batch.images.shape[-1], batch.indices.tolist(), batch.images.clone()


def take(loader: StagedLoader, count: int | None = None) -> list[Content]:
    """Return a pass, or its first batches."""
    return [content(batch) for _, batch in zip(range(count or 99), loader, strict=False)]


def same(ones: list[Content], others: list[Content]) -> bool:
    return [one[:2] for one in ones] == [other[:2] for other in others] and all(
        torch.equal(one[2], other[2]) for one, other in zip(ones, others, strict=True)
    )


def wait_for_threads() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("background"):
            thread.join()
