"""What a pass measures: against values worked out by hand, torchmetrics and scikit-learn, on all samples at once."""

import math
from io import BytesIO
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from fakes import CPU, assert_same, needs_gpu, reject_waiting
from lazily import LazyModule
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss, one_hot

from trainer.tasks.classify import class_counts, confusion
from trainer.tasks.meter import Meter
from trainer.tasks.metric import METRICS, TaskMetric, mean_of_known
from trainer.tasks.multilabel import average_precisions, best_threshold
from trainer.tasks.registry import task_named
from trainer.tasks.regress import number_scores

sklearn = LazyModule("sklearn.metrics")
torchmetrics = LazyModule("torchmetrics.functional.classification")

KINDS = ("classify", "multilabel", "regress")


def names_of(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def meter_of(task: str, count: int, asked: Any = (), *, device: torch.device = CPU, keep: bool = True) -> Meter:
    return Meter(task_named(task), task_named(task).measured(names_of(count), asked), device, keep=keep)


def draw(task: str, samples: int = 300, units: int = 7) -> tuple[Tensor, Tensor]:
    """Outputs that are right more often than not; the last class is that of no sample, but predicted."""
    generator = torch.Generator().manual_seed(0)
    if task == "classify":
        targets = torch.randint(units - 1, (samples,), generator=generator)
        return 2 * torch.randn(samples, units, generator=generator) + one_hot(targets, units), targets
    labels = (torch.rand(samples, units, generator=generator) < 0.3).float()
    return 3 * torch.randn(samples, units, generator=generator) + 2 * labels, labels


def fill(meter: Meter, outputs: Tensor, targets: Tensor, *cuts: int) -> Meter:
    """Feed a meter with batches, whose memory is then written over, as recorded work does."""
    ends = [0, *(cuts or (3, 10)), len(outputs)]
    for start, end in pairwise(ends):
        if part := list(range(len(outputs)))[start:end]:
            given = outputs[part].clone(), targets[part].clone()
            loss = cross_entropy(*given) if targets.dtype == torch.int64 else mse_loss(*given)
            meter.update(loss, *given, torch.tensor(part))
            for tensor in given:
                tensor.zero_()
    return meter


def rates_by_others(true: Any, said: Any) -> dict[str, float]:
    """Return macro and micro averages."""
    rates = {"precision": sklearn.precision_score, "recall": sklearn.recall_score}
    found = {"f1_micro": sklearn.f1_score(true, said, average="micro")}
    for average in ("macro", "micro"):
        for name, rate in rates.items():
            found[f"{name}_{average}"] = rate(true, said, average=average, zero_division=0)
    return found


def specificities_by_others(having: Any, said: Any) -> dict[str, float]:
    """Return averages of the recall of not having a class, from (N, K) bool each."""
    each = [sklearn.recall_score(~has, ~says) for has, says in zip(having.T, said.T, strict=True)]
    return {
        "specificity_macro": np.mean(each),
        "specificity_micro": sklearn.recall_score(~having.ravel(), ~said.ravel()),
    }


def classes_by_others(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    shares, hot = outputs.double().softmax(1).numpy(), one_hot(targets, outputs.shape[1]).numpy()
    true, said, some = targets.numpy(), shares.argmax(1), sorted(set(targets.tolist()))
    curves = {"auroc": sklearn.roc_auc_score, "average_precision": sklearn.average_precision_score}
    return {
        "loss": cross_entropy(outputs, targets).item(),
        "accuracy": sklearn.accuracy_score(true, said),
        "top5": sklearn.top_k_accuracy_score(true, shares, k=5, labels=range(outputs.shape[1])),
        "brier": ((shares - hot) ** 2).sum(1).mean(),
        "balanced_accuracy": sklearn.recall_score(true, said, labels=some, average="macro"),
        "f1": sklearn.f1_score(true, said, average="macro"),
        "calibration_error": float(
            torchmetrics.multiclass_calibration_error(outputs, targets, outputs.shape[1], n_bins=15)
        ),
        "cohen_kappa": sklearn.cohen_kappa_score(true, said),
        "matthews_corrcoef": sklearn.matthews_corrcoef(true, said),
        **rates_by_others(true, said),
        **specificities_by_others(hot > 0, one_hot(torch.from_numpy(said), outputs.shape[1]).numpy() > 0),
        **{name: np.mean([curve(hot[:, i], shares[:, i]) for i in some]) for name, curve in curves.items()},
    }


def labels_by_others(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    having, scores = targets.numpy(), outputs.numpy()
    return {
        "loss": mse_loss(outputs, targets).item(),
        "map": sklearn.average_precision_score(having, scores, average="macro"),
        "auroc": sklearn.roc_auc_score(having, scores, average="macro"),
        "f1": sklearn.f1_score(having, scores > 0, average="macro"),
        **rates_by_others(having, scores > 0),
        **specificities_by_others(having > 0, scores > 0),
    }


def numbers_by_others(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    true, said = targets.double().numpy(), outputs.double().numpy()
    alone = {}
    for name, one, all_said in zip(names_of(true.shape[1]), true.T, said.T, strict=True):
        alone[f"mae_{name}"] = sklearn.mean_absolute_error(one, all_said)
        alone[f"rmse_{name}"] = sklearn.root_mean_squared_error(one, all_said)
        alone[f"r2_{name}"] = sklearn.r2_score(one, all_said)
    return alone | {
        "loss": mse_loss(outputs, targets).item(),
        "mae": sklearn.mean_absolute_error(true, said),
        "rmse": sklearn.mean_squared_error(true, said) ** 0.5,
        "mean_rmse": sklearn.root_mean_squared_error(true, said),
        "r2": sklearn.r2_score(true, said),
    }


OTHERS = dict(zip(KINDS, (classes_by_others, labels_by_others, numbers_by_others), strict=True))


@pytest.mark.parametrize("task", KINDS)
def test_every_metric_agrees_with_other_libraries(task: str) -> None:
    outputs, targets = draw(task)
    meter = fill(meter_of(task, 7, None), outputs, targets)
    assert meter.scores() == pytest.approx(OTHERS[task](outputs, targets), rel=1e-6, abs=1e-6)
    samples = meter.kept()
    assert samples is not None
    assert samples.index.tolist() == list(range(300))
    assert torch.equal(samples.target, targets)
    if task == "classify":
        assert (
            confusion(samples.target, samples.prediction, 7).tolist()
            == torchmetrics.multiclass_confusion_matrix(outputs, targets, 7).tolist()
        )
    else:
        assert torch.equal(samples.output, outputs)
    # In any batches, of any ranks, in any order.
    ends = [fill(meter_of(task, 7, None), outputs[part], targets[part]) for part in (slice(100, 300), slice(100))]
    assert merge(*ends).scores() == pytest.approx(meter.scores(), rel=1e-6)


def merge(*meters: Meter) -> Meter:
    """Merge meters as ranks do, each of which has its own."""
    parts: list[dict[str, Any]] = []
    for meter in meters:
        whole = meter.merged(lambda part: parts.append(part) or parts)  # type: ignore[func-returns-value]
    return whole


@pytest.mark.parametrize(
    ("task", "count", "train", "val"),
    [
        ("classify", 5, ["loss", "accuracy"], ["loss", "accuracy"]),
        ("classify", 6, ["loss", "accuracy"], ["loss", "accuracy", "top5"]),
        ("multilabel", 2, ["loss"], ["loss", "map"]),
        ("regress", 1, ["loss", "mae", "rmse"], ["loss", "mae", "rmse", "r2"]),
        ("regress", 2, ["loss", "mae", "rmse"], ["loss", "mae", "rmse", "mean_rmse", "r2"]),
    ],
)
def test_what_is_measured_without_being_asked_for(task: str, count: int, train: list[str], val: list[str]) -> None:
    empty = meter_of(task, count)
    assert list(meter_of(task, count, keep=False).scores()) == train
    assert {name: math.isnan(value) for name, value in empty.scores().items()} == dict.fromkeys(val, True)
    assert (empty.samples, empty.kept()) == (0, None)
    asked = ("f1", "train_brier", "mae", "val_auroc")
    more = {"classify": ["brier", "f1", "auroc"], "multilabel": ["f1", "auroc"], "regress": []}[task]
    assert [m.name for m in task_named(task).measured(names_of(count), asked) if m.on_request] == more


@pytest.mark.parametrize("task", KINDS)
def test_units_without_samples_do_not_count(task: str) -> None:
    """A class that is neither true nor predicted, a label on no image, a number that is the same in all images."""
    outputs, targets = draw(task)
    if task != "classify":
        targets[:, 6] = 0
    outputs[:, 6] = -99
    found = fill(meter_of(task, 7, None), outputs, targets).scores()
    rest = OTHERS[task](outputs[:, :6], targets if task == "classify" else targets[:, :6])
    for name in {"f1", "auroc", "average_precision", "balanced_accuracy", "map", "r2"} & found.keys():
        assert found[name] == pytest.approx(rest[name], abs=1e-6), name
    if task == "regress":
        assert math.isnan(number_scores(outputs, targets)[6][2])
    assert math.isnan(mean_of_known([math.nan]))


@pytest.mark.parametrize("cut", [0, 2, 3])
@pytest.mark.parametrize("task", KINDS)
def test_a_meter_resumes_from_its_state(task: str, cut: int) -> None:
    """What was not measured is not known."""
    outputs, targets = draw(task, 30)
    parts, file = [(outputs[i : i + 10], targets[i : i + 10]) for i in range(0, 30, 10)], BytesIO()
    begun = meter_of(task, 7, keep=False)
    for part in parts[:cut]:
        fill(begun, *part)
    state = begun.state_dict()
    torch.save([state], file)
    whole = [fill(begun, *part) for part in parts[cut:]] and begun  # after the state was taken, which is a copy
    file.seek(0)
    for saved in torch.load(file, weights_only=True):
        resumed, more = meter_of(task, 7, keep=False), meter_of(task, 7, ["brier"], keep=False)
        for meter in (resumed, more):
            meter.load_state_dict(saved)
            for part in parts[cut:]:
                fill(meter, *part)
        if cut < 3:
            assert_same(resumed.state_dict(), whole.state_dict())
        known = {"brier": pytest.approx(math.nan, nan_ok=True)} if task == "classify" else {}
        assert more.compute() == resumed.compute() | known


@pytest.mark.parametrize("inference", [False, True])
def test_means_are_over_samples(inference: bool) -> None:
    with torch.inference_mode(inference):
        meter = meter_of("classify", 3, ["brier"], keep=False)
        for loss, count in ((1.0, 3), (5.0, 1)):
            meter.update(torch.tensor(loss), torch.eye(3)[:count] * 50, torch.arange(count))
    assert (meter.samples, meter.compute()) == (4, {"loss": 2, "accuracy": 1, "brier": pytest.approx(0)})
    assert merge(meter, meter).compute() == meter.compute()
    meter = meter_of("classify", 3, ["brier"], keep=False)
    meter.update(torch.tensor(math.inf), torch.eye(3), torch.arange(3))
    assert meter.compute()["loss"] == math.inf


def test_mixed_targets_count_as_the_class_with_the_largest_share() -> None:
    outputs = torch.tensor([[2.0, 1, 0], [0, 3, 1], [0, 0, 1], [1, 0, 0]])
    targets = torch.tensor([[0.7, 0.3, 0], [0.6, 0.4, 0], [0, 0, 1], [0.2, 0.3, 0.5]])
    meter, plain = meter_of("classify", 3, None), meter_of("classify", 3, None)
    meter.update(torch.tensor(1.5), outputs, targets)
    plain.update(torch.tensor(1.5), outputs, torch.tensor([0, 0, 2, 2]))
    assert meter.scores() == plain.scores()
    samples = meter.kept()
    assert samples is not None
    assert (samples.target.tolist(), samples.index.tolist()) == ([0, 0, 2, 2], [-1] * 4)


def test_labels_by_hand() -> None:
    """Outputs stay distinct whose float32 probabilities are all 1; of equal scores, all images get the label."""
    sure = torch.tensor([[20.0], [25.0], [30.0], [18.0]]).double().sigmoid()
    assert average_precisions(sure, torch.tensor([[False], [True], [True], [False]])) == [1.0]
    scores, having = torch.tensor([0.9, 0.2, 0.7, 0.7, 0.1]), torch.tensor([True, True, False, True, False])
    # From 0.9 on F1 is 2/4, from 0.7 on (two of one score) 4/6, from 0.2 on 6/7, from all on 6/8.
    assert best_threshold(scores, having) == (pytest.approx(0.2), pytest.approx(6 / 7))
    nobody = best_threshold(scores, torch.zeros(5, dtype=torch.bool))
    assert (math.isnan(nobody[0]), nobody[1]) == (True, 0.0)


@needs_gpu
@pytest.mark.parametrize("task", KINDS)
def test_updating_never_waits_for_the_gpu(task: str) -> None:
    device = torch.device("cuda")
    meter = meter_of(task, 7, None, device=device)
    outputs, targets = (tensor.to(device) for tensor in draw(task, 8))
    with reject_waiting():
        meter.update(outputs.mean(), outputs, targets, torch.arange(8, device=device))
        meter.update(outputs.mean(), outputs, targets)
    samples = meter.kept()
    assert samples is not None
    assert samples.index.tolist() == [*range(8), *[-1] * 8]
    on_cpu = meter_of(task, 7, None)
    for _ in range(2):
        on_cpu.update(outputs.mean().cpu(), outputs.cpu(), targets.cpu())
    assert meter.scores() == pytest.approx(on_cpu.scores(), abs=1e-5, nan_ok=True)


def test_metrics_of_many_classes_are_made_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making all of them would take a minute for 20,000 classes."""
    made = []

    def of_unit(metric: TaskMetric, position: int, name: str) -> TaskMetric:
        made.append(f"{metric.stem}_{name}")
        return unpatched(metric, position, name)

    unpatched = TaskMetric.of_unit
    monkeypatch.setattr(TaskMetric, "of_unit", of_unit)
    task, names = task_named("classify"), [*map(str, range(1000))]
    measured = {metric.name for metric in task.measured(names, ("auto", "recall_7", "val_f1_9", "top3"))}
    assert measured >= {"accuracy", "recall_7", "f1_9", "top3"}
    assert made == ["recall_7", "f1_9"]


def test_counts_of_many_classes_fit_into_memory() -> None:
    """The confusion matrix of this many classes would need 80 GB."""
    targets, predictions = torch.tensor([5, 5, 99_999]), torch.tensor([5, 7, 99_999])
    right, predicted, having, total = class_counts(targets, predictions, 100_000)
    assert [of[[5, 7, 99_999]].tolist() for of in (right, predicted, having)] == [[1, 0, 1], [1, 1, 1], [2, 0, 1]]
    assert total == 3


def test_a_confidence_of_1_counts_in_the_last_bin_of_the_calibration_error() -> None:
    outputs = torch.tensor([[3.0, 0.0], [40.0, 0.0]])
    confidence = outputs.softmax(dim=1)[:, 0].mean().item()
    measured = METRICS["classify", "calibration_error"].of_all(outputs, torch.tensor([0, 1]))
    assert measured == pytest.approx(confidence - 0.5, abs=1e-6)
