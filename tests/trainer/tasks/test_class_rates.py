"""Metrics of single classes, top-k accuracies, and the thresholds of multi-label models."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from fakes import CPU
from lazily import LazyModule
from torch import Tensor

from augment.data.targets.spatial import IGNORE
from augment.support.errors import UserError
from trainer.tasks.meter import Meter
from trainer.tasks.metric import OutputSamples
from trainer.tasks.registry import ALL_MONITORED, check_metrics, range_of, smaller_is_better, task_named

sklearn = LazyModule("sklearn.metrics")

NAMES = ("cat", "dog", "micro", "owl")
RATES = {"precision": "precision_score", "recall": "recall_score", "f1": "f1_score"}


def scores_of(task: str, asked: list[str], outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """Measure metrics in two batches, as a validation pass does."""
    meter = Meter(task_named(task), task_named(task).measured(NAMES, asked), CPU, keep=True)
    frames = torch.eye(3, dtype=torch.float64).expand(len(outputs), 3, 3) if task == "segment" else None
    for part in (slice(7), slice(7, None)):
        given = None if frames is None else frames[part]
        meter.update(outputs.sum() * 0, outputs[part], targets[part], frames=given)
    return meter.scores()


def drawn(*shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(20, 4, *shape, generator=generator), torch.randint(3, (20, *shape), generator=generator)


def test_rates_of_a_class_and_top_k() -> None:
    outputs, targets = drawn()
    asked = [f"{rate}_{name}" for rate in RATES for name in NAMES if name != "micro"]
    found = scores_of("classify", [*asked, "specificity_cat", "top2", "val_top3"], outputs, targets)
    said = outputs.argmax(1)
    for rate, function in RATES.items():
        expected = getattr(sklearn, function)(targets, said, labels=range(4), average=None, zero_division=0)
        assert [found[f"{rate}_{name}"] for name in ("cat", "dog", "owl")] == pytest.approx(expected[[0, 1, 3]])
    assert found["specificity_cat"] == pytest.approx(sklearn.recall_score(targets != 0, said != 0))
    for k in (2, 3):
        expected = sklearn.top_k_accuracy_score(targets, outputs, k=k, labels=range(4))
        assert found[f"top{k}"] == pytest.approx(expected)
    assert "top1" not in found


@pytest.mark.parametrize("rate", RATES)
def test_micro_averages_without_predictions_or_labels_are_0(rate: str) -> None:
    none, some = torch.zeros(20, 4), torch.eye(4).repeat(5, 1)
    for outputs, targets in ((none - 1, some), (some - 0.5, none), (none - 1, none)):
        assert scores_of("multilabel", [f"{rate}_micro"], outputs, targets)[f"{rate}_micro"] == 0
    outputs, targets = drawn(3, 3)
    unlabeled = scores_of("segment", [f"{rate}_micro"], outputs, torch.full_like(targets, IGNORE))
    assert math.isnan(unlabeled[f"{rate}_micro"])


def test_a_class_called_like_an_average_does_not_replace_it() -> None:
    outputs, targets = drawn()
    said = outputs.argmax(1)
    micro = scores_of("classify", ["recall_micro"], outputs, targets)["recall_micro"]
    assert micro == pytest.approx(sklearn.accuracy_score(targets, said))


def test_segmentation_counts_pixels() -> None:
    outputs, targets = drawn(5, 6)
    targets[0] = IGNORE
    asked = ["precision_macro", "recall_micro", "specificity_macro", "f1", "cohen_kappa", "matthews_corrcoef", "f1_dog"]
    asked.append("specificity_micro")
    found = scores_of("segment", asked, outputs, targets)
    true, said = targets[1:].flatten().numpy(), outputs[1:].argmax(1).flatten().numpy()
    f1 = sklearn.f1_score(true, said, labels=range(4), average=None, zero_division=0)
    expected = {
        "precision_macro": sklearn.precision_score(true, said, average="macro", zero_division=0),
        "recall_micro": sklearn.recall_score(true, said, average="micro"),
        "specificity_macro": np.mean([sklearn.recall_score(true != i, said != i) for i in range(4)]),
        "specificity_micro": np.sum([(true != i) & (said != i) for i in range(4)]) / (3 * len(true)),
        "f1": f1.mean(),
        "f1_dog": f1[1],
        "cohen_kappa": sklearn.cohen_kappa_score(true, said),
        "matthews_corrcoef": sklearn.matthews_corrcoef(true, said),
    }
    assert {name: found[name] for name in asked} == pytest.approx(expected)


def test_rates_without_samples_and_with_one_class() -> None:
    asked = ["precision_macro", "recall_micro", "cohen_kappa", "matthews_corrcoef", "recall_owl"]
    outputs, targets = drawn()
    empty = scores_of("classify", asked, outputs[:0], targets[:0])
    assert all(math.isnan(empty[name]) for name in asked if name != "matthews_corrcoef")
    same = scores_of("classify", asked, torch.eye(4)[[0, 0, 0]], torch.zeros(3, dtype=torch.int64))
    assert (same["precision_macro"], same["matthews_corrcoef"]) == (1, 0)
    assert math.isnan(same["cohen_kappa"])
    assert math.isnan(same["recall_owl"])


@pytest.mark.parametrize(
    ("key", "known"),
    [
        ("val_recall_cat", True),
        ("val_f1_any class", True),
        ("val_top17", True),
        ("val_cohen_kappa", True),
        ("val_top0", False),
        ("train_recall_cat", False),
    ],
)
def test_keys_that_depend_on_the_data_can_be_monitored(key: str, known: bool) -> None:
    assert (key in ALL_MONITORED) == known
    assert not smaller_is_better(key)
    assert (range_of(key)[1] == 1) == known


@pytest.mark.parametrize(
    ("task", "name", "remedy"),
    [
        ("classify", "mcc", "Did you mean 'matthews_corrcoef'"),
        ("classify", "precision", "Did you mean 'precision_macro'"),
        ("classify", "top4", "topK"),
        ("classify", "recall_bird", "recall_CLASS"),
        ("multilabel", "cohen_kappa", "Allowed: auroc, f1,"),
        ("regress", "precision_macro", "Allowed: mae, mae_cat"),
        ("segment", "top2", "Allowed: cohen_kappa,"),
    ],
)
def test_a_metric_of_another_task_lists_the_allowed_ones(task: str, name: str, remedy: str) -> None:
    with pytest.raises(UserError, match=rf"^fit\.metrics: .*'{name}'.*{remedy}"):
        check_metrics(task_named(task), NAMES, [name])


def label_samples() -> OutputSamples:
    generator = torch.Generator().manual_seed(2)
    target = (torch.rand(200, 4, generator=generator) < torch.tensor([0.5, 0.2, 0.1, 0.0])).float()
    output = torch.randn(200, 4, generator=generator) + 2 * target - 3
    return OutputSamples(torch.arange(200), target, output)


def test_thresholds_have_the_best_f1_score_of_each_label() -> None:
    samples, task = label_samples(), task_named("multilabel")
    chosen = task.choose_thresholds(samples, NAMES)
    shares = samples.output.sigmoid()
    for label in range(3):
        true = samples.target[:, label] > 0
        scores = [sklearn.f1_score(true, shares[:, label] >= share) for share in shares[:, label]]
        assert sklearn.f1_score(true, shares[:, label] >= chosen[label]) == max(scores)
    assert chosen[3] == 0.5  # no image has the label


def test_an_evaluation_adds_the_rates_at_the_thresholds_of_the_run() -> None:
    samples, task = label_samples(), task_named("multilabel")
    thresholds = (0.1, 0.2, 0.3, 0.5)
    plain = task.evaluate({"val_map": 0.5}, samples, NAMES)
    scores = task.at_thresholds(plain, samples, NAMES, thresholds)
    said = samples.output.double().sigmoid().numpy() >= np.array(thresholds)
    assert scores.values["val_map"] == 0.5
    assert plain.per_class["cat"].items() <= scores.per_class["cat"].items()
    for number, name in enumerate(NAMES[:3]):
        true: Any = samples.target[:, number].numpy()
        found = scores.per_class[name]["run"]
        assert found["threshold"] == thresholds[number]
        assert found["f1"] == pytest.approx(sklearn.f1_score(true, said[:, number]))
        assert found["recall"] == pytest.approx(sklearn.recall_score(true, said[:, number]))
    f1 = sklearn.f1_score(samples.target[:, :3].numpy(), said[:, :3], average="macro")
    assert scores.values["run_f1"] == pytest.approx(f1)
    assert "run_f1" in scores.others
