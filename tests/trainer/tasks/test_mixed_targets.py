"""Targets that Mixup and CutMix mix: their captions, and fits on them."""

from typing import Any

import numpy as np
import pytest
import torch
from fakes import CLASSES, Logits, MemoryLoader, frozen, logits_loader, make_learner, tiny_model

from augment.data.dataset import Split
from augment.pipeline.loader import Loader
from augment.recipe.plan import build_plan
from augment.recipe.steps import parse_aug
from trainer.callbacks.recorder import Recorder
from trainer.tasks.registry import task_named


@pytest.mark.parametrize(
    ("target", "names", "expected"),
    [
        (2, CLASSES, "cat"),
        ([0.3, 0.0, 0.7], CLASSES, "cat 70%, ant 30%"),
        ([0.0, 0.004, 0.996], CLASSES, "cat 100%"),
        (1, (), "1"),
        ([0.25, 0.75], (), "1 75%, 0 25%"),
    ],
)
def test_a_caption_names_what_is_mixed(target: Any, names: tuple[str, ...], expected: str) -> None:
    assert task_named("classify").caption(target, names) == expected


def test_a_fit_with_mixed_targets() -> None:
    logits = torch.tensor([[2.0, 0, 0], [0, 1, 0], [0, 0, 3]])
    targets = torch.tensor([[0.8, 0.2, 0], [0.5, 0.25, 0.25], [0, 0.6, 0.4]])
    train = MemoryLoader(logits[:, :, None, None], targets, batch_size=3, shuffle=False)
    val, recorder = logits_loader(logits.tolist(), [0, 1, 2]), Recorder()
    make_learner(recorder, train=train, val=val, model=Logits(), optimizer=frozen, epochs=1).fit()
    (row,) = recorder.rows
    by_hand = -(targets * logits.log_softmax(dim=1)).sum(dim=1).mean()
    assert row["train_loss"] == pytest.approx(float(by_hand))
    # The largest shares are those of classes 0, 0 and 1.
    assert (row["train_accuracy"], row["val_accuracy"]) == (pytest.approx(1 / 3), 1)


def test_mixed_batches_train_a_model(varied: Split, device: torch.device) -> None:
    either = {"op": "one_of", "p": 0.9, "steps": {"mixup": {"weight": 2}, "cutmix": {}}}
    aug = parse_aug({"size": 32, "train": {"random_resized_crop": {}, "mix": either}})
    train = Loader(build_plan(aug, "train"), varied, batch_size=3, seed=3, device=device, classes="abc")
    val = Loader(build_plan(aug, "val"), varied, batch_size=7, seed=0, device=device)
    model, recorder = tiny_model(), Recorder()
    before = [parameter.clone() for parameter in model.parameters()]
    make_learner(recorder, train=train, val=val, model=model, device=device).fit()  # type: ignore[arg-type]
    assert all((a.cpu() != b.cpu()).any() for a, b in zip(before, model.parameters(), strict=True))
    assert [np.isfinite(row["train_loss"]) for row in recorder.rows] == [True, True]
