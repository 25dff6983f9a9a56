"""Fits whose rows are known: outputs that never change, and a clock that counts batches."""

import math

import pytest
from fakes import Logits, MemoryLoader, frozen, logits_loader, make_learner

from trainer.callbacks import recorder
from trainer.loop.callback import Callback
from trainer.loop.learner import Learner

# Outputs of which softmax makes probabilities that can be read off: the logarithms of thirds, quarters and halves.
HALF, QUARTER = math.log(1 / 2), math.log(1 / 4)
TRAIN = [[HALF, QUARTER, QUARTER], [HALF, QUARTER, QUARTER], [QUARTER, QUARTER, HALF]], [0, 1, 0]
VAL = [[QUARTER, HALF, QUARTER], [HALF, QUARTER, QUARTER], [QUARTER, QUARTER, HALF]], [1, 2, 2]
TRAIN_KEYS = ["epoch", "train_loss", "train_accuracy", "lr", "seconds", "images_per_second", "waiting"]
KEYS = [*TRAIN_KEYS, "val_loss", "val_accuracy"]


def known(*callbacks: Callback, **options: object) -> Learner:
    """Batches of 2 and 1, the outputs known and never changing."""
    parts = {"train": logits_loader(*TRAIN), "val": logits_loader(*VAL), "model": Logits(), "optimizer": frozen}
    return make_learner(*callbacks, **(parts | options))


def single_images() -> MemoryLoader:
    """The training images four times over, one in a batch."""
    return logits_loader(TRAIN[0] * 4, TRAIN[1] * 4, batch_size=1)


class Clock:
    """A clock that advances by one second with every batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(recorder, "monotonic", lambda: self.now)

    def tick(self, learner: Learner) -> None:
        self.now += 1.0
