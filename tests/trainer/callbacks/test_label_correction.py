"""Label correction: targets by hand, skipped batches, resumed runs and ranks, and what it does not work with."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import Logits, MemoryLoader, StateAt, frozen, logits_loader, make_learner, needs_gpu

from augment.data.dataset import Split
from augment.support.errors import UserError
from trainer.callbacks import label_correction
from trainer.callbacks.label_correction import LabelCorrection
from trainer.loop.callback import Callback, CancelBatch, CancelEpoch, CancelTrain, Phase
from trainer.loop.learner import Learner

LOGITS = [[2.0, 1.0, 0.0], [5.0, 1.0, 0.0], [0.0, 1.0, 4.0]]
GIVEN = [0, 1, 0]
LABELS = torch.eye(3)[GIVEN]
PREDICTED = torch.tensor(LOGITS).softmax(dim=1)


def loader() -> MemoryLoader:
    made: Any = logits_loader(LOGITS, GIVEN)
    made.split = Split(tuple(Path(f"photos/{number}.jpg") for number in range(len(GIVEN))), tuple(GIVEN))
    return made


def learner_of(*callbacks: Callback, **options: Any) -> Learner:
    parts: Any = {"train": loader(), "model": Logits(), "optimizer": frozen, "val": logits_loader(LOGITS, GIVEN)}
    parts |= options
    for name in ("train", "val"):
        parts[name] = parts[name].to(parts.get("device", "cpu"))
    return make_learner(*callbacks, **parts)


def targets_of(learner: Learner) -> Any:
    return learner.find(LabelCorrection).targets


class Seen(Callback):
    """Remembers the targets that the loss got, and the targets that later callbacks see."""

    def __init__(self) -> None:
        self.trained: list[Any] = []
        self.after: list[Any] = []

    def loss(self, outputs: Any, targets: Any) -> Any:
        if outputs.requires_grad:
            self.trained.append(targets.clone())
        return torch.nn.functional.cross_entropy(outputs, targets)

    def after_batch(self, learner: Learner) -> None:
        self.after.append(learner.batch.targets)


def test_targets_move_from_the_label_to_the_prediction() -> None:
    seen = Seen()
    learner = learner_of(LabelCorrection(start=0.5, momentum=0.75), seen, epochs=4, loss_function=seen.loss)
    learner.fit()
    assert torch.allclose(targets_of(learner), 0.75**2 * LABELS + (1 - 0.75**2) * PREDICTED)
    assert torch.equal(torch.cat(seen.trained[:4]), LABELS.repeat(2, 1))  # two batches in each of two epochs
    assert torch.equal(torch.cat(seen.trained[4:6]), LABELS)  # an image moves after its pass
    assert torch.allclose(torch.cat(seen.trained[6:]), 0.75 * LABELS + 0.25 * PREDICTED)
    assert all(targets.ndim == 1 for targets in seen.after)  # metrics and the label audit see the labels


def test_a_skipped_batch_changes_no_target() -> None:
    class Skip(Callback):
        order = Phase.MEASURE

        def before_batch(self, learner: Learner) -> None:
            if learner.training and 0 in learner.batch.indices:
                raise CancelBatch

    learner = learner_of(LabelCorrection(start=0), Skip(), epochs=1)
    learner.fit()
    assert torch.equal(targets_of(learner)[:2], LABELS[:2])
    assert not torch.equal(targets_of(learner)[2], LABELS[2])


@pytest.mark.parametrize("cancel", [CancelTrain, CancelEpoch])
def test_a_cancelled_pass_changes_no_target_in_validation(cancel: type[Exception]) -> None:
    class Stop(Callback):
        def before_step(self, learner: Learner) -> None:
            raise cancel

    learner = learner_of(LabelCorrection(start=0), Stop(), epochs=1)
    learner.fit()
    learner.validate()
    assert torch.equal(targets_of(learner), LABELS)


def test_an_overflow_changes_no_target() -> None:
    logits = [[torch.inf, 1.0, 0.0], *LOGITS[1:]]
    train: Any = logits_loader(logits, GIVEN)
    train.split = loader().split
    learner = learner_of(LabelCorrection(start=0), train=train, loss_function=lambda outputs, _: outputs[:, 1].mean())
    learner.fit()
    assert torch.equal(targets_of(learner)[0], LABELS[0])
    assert not torch.equal(targets_of(learner)[1], LABELS[1])


@pytest.mark.parametrize("saved", ["damaged", torch.zeros(1, 3)])
def test_a_state_of_another_dataset_is_refused(saved: Any) -> None:
    correction = LabelCorrection()
    correction.load_state_dict({"targets": saved})
    with pytest.raises(UserError, match=r"^callbacks\.label_correction .* Start a new run"):
        learner_of(correction).fit()


def test_a_batch_that_only_fills_up_the_pass_changes_no_target() -> None:
    """A rank without images repeats its last batch. The rank that owns these images has already moved them."""

    class Repeat(Callback):
        order = Phase.FIRST - 1

        def before_batch(self, learner: Learner) -> None:
            learner.batch = replace(learner.batch, share=0.0)

    learner = learner_of(LabelCorrection(start=0), Repeat(), epochs=1)
    learner.fit()
    assert torch.equal(targets_of(learner), LABELS)


def test_a_resumed_fit_continues() -> None:
    whole = learner_of(LabelCorrection(start=0), at := StateAt(3), epochs=3)
    whole.fit()
    second = learner_of(LabelCorrection(start=0), StateAt(3), epochs=3)
    second.fit(second.restore(at.kept))
    assert torch.equal(targets_of(second), targets_of(whole))


def test_the_changes_of_all_ranks_count(monkeypatch: pytest.MonkeyPatch) -> None:
    correction = LabelCorrection(start=0, momentum=0.75)
    learner = learner_of(correction, epochs=1)
    correction.before_fit(learner)
    correction.targets, correction._at_start = LABELS.clone(), LABELS.clone()
    correction.targets[0] = PREDICTED[0]
    theirs = torch.zeros(3, 3)
    theirs[2] = PREDICTED[2] - LABELS[2]

    class Two:
        def gather(self, own: Any) -> list[Any]:
            return [own, theirs]

    monkeypatch.setattr(label_correction, "current", Two)
    expected = torch.stack([PREDICTED[0], LABELS[1], PREDICTED[2]])
    assert torch.allclose(correction.state_dict()["targets"], expected)
    correction.after_epoch(learner)
    assert torch.allclose(correction.targets, expected)
    assert torch.equal(correction.targets, correction._at_start)


def with_images(outputs: Any, targets: Any, images: Any) -> Any:
    return torch.nn.functional.cross_entropy(outputs, targets)


with_images.takes_images = True  # type: ignore[attr-defined]  # as with a teacher


def asserting(outputs: Any, targets: Any) -> Any:
    assert targets.ndim == 1
    return torch.nn.functional.cross_entropy(outputs, targets)


def only_classes(outputs: Any, targets: Any) -> Any:
    return torch.nn.functional.nll_loss(outputs, targets)


@pytest.mark.parametrize(
    ("options", "needs"),
    [
        ({"task": "regress", "loss_function": lambda outputs, _: outputs.mean()}, "one class per image"),
        ({"train": logits_loader(LOGITS, GIVEN)}, "one class per image"),
        ({"training_step": lambda learner, batch: learner.model(batch.images).mean()}, "training step"),
        ({"loss_function": only_classes}, "fit.loss"),
        ({"loss_function": asserting}, "fit.loss"),
        ({"loss_function": with_images}, "fit.teacher"),
        ({"classes": ()}, "a name for each class"),
    ],
)
def test_what_it_does_not_work_with(options: Any, needs: str) -> None:
    learner = learner_of(LabelCorrection(), **options)
    with pytest.raises(UserError, match=rf"^callbacks\.label_correction works only with .*{needs}"):
        learner.fit()


def test_mixed_images_are_refused() -> None:
    train: Any = loader()
    train.targets = torch.eye(3)[GIVEN]
    with pytest.raises(UserError, match=r"^callbacks\.label_correction .* Remove mixup"):
        learner_of(LabelCorrection(), train=train).fit()


@needs_gpu
def test_a_recorded_pass_gets_the_corrected_targets() -> None:
    ends = []
    for graph in (False, True):
        torch.manual_seed(0)
        learner = learner_of(LabelCorrection(start=0), epochs=12, device="cuda", graph=graph)
        learner.fit()
        ends.append(targets_of(learner).cpu())
    assert torch.allclose(ends[0], ends[1], atol=1e-6)
    assert torch.allclose(ends[0], 0.85**12 * LABELS + (1 - 0.85**12) * PREDICTED, atol=1e-5)
