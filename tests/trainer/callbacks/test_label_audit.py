"""The label audit: margins by hand, mixed images, labels, repeats, resumed runs and ranks, and its files."""

import csv
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fakes import CLASSES as NAMES
from fakes import Logits, MemoryLoader, StateAt, frozen, logits_loader, make_learner, needs_gpu

from augment.data.dataset import Split
from trainer.callbacks import label_audit
from trainer.callbacks.label_audit import LabelAudit, _joined, _training_result, _with_classes, _with_labels
from trainer.callbacks.recorder import Recorder
from trainer.figures.label_report import LabelReport, audit_classes, audit_labels
from trainer.loop.callback import Callback
from trainer.loop.learner import Learner
from trainer.run.folder.reader import RunFolder
from trainer.tasks.label_errors import TrainingResult, confident_classes, estimate

LOGITS = [[2.0, 1.0, 0.0], [5.0, 1.0, 0.0], [0.0, 1.0, 4.0]]
GIVEN = [0, 1, 0]


def loader(logits: list[list[float]] = LOGITS, given: list[int] = GIVEN, **split: Any) -> MemoryLoader:
    made: Any = logits_loader(logits, given)
    made.split = Split(tuple(Path(f"photos/{number}.jpg") for number in range(len(given))), tuple(given), **split)
    return made


def learner_of(*callbacks: Callback, **options: Any) -> Learner:
    parts: Any = {"train": loader(), "model": Logits(), "optimizer": frozen, "val": logits_loader(LOGITS, GIVEN)}
    parts |= options
    for name in ("train", "val"):
        parts[name] = parts[name].to(parts.get("device", "cpu"))
    return make_learner(Recorder(), *callbacks, **parts)


def table_of(learner: Learner) -> Any:
    table = learner.find(LabelAudit).merged()
    assert table is not None
    return table


def test_margins_by_hand() -> None:
    learner = learner_of(LabelAudit(), epochs=2)
    learner.fit()
    table = table_of(learner)
    assert (table[:, 0] / table[:, 1]).tolist() == pytest.approx([1, -4, -4])
    assert table[:, 1].tolist() == [1.5, 1.5, 1.5]  # the weights of two epochs are 1/2 and 1
    assert torch.allclose(table[:, 2:], 1.5 * torch.tensor(LOGITS).softmax(dim=1))


def test_the_last_epochs_of_a_long_run_do_not_count() -> None:
    learner = learner_of(LabelAudit(), epochs=10)
    learner.fit()
    row = table_of(learner)[0]
    assert row[1] == pytest.approx(sum(range(1, 10)) / 10)  # margins of nine epochs
    assert row[2:].sum() == pytest.approx(sum(range(1, 8)) / 10)  # probabilities of seven epochs


def test_margins_of_several_labels_count_as_long_as_probabilities() -> None:
    audit, targets = LabelAudit(), torch.tensor([[1.0, 0.0]])
    audit.given, audit.table = targets, torch.zeros(1, 2, 2)
    batch = SimpleNamespace(indices=torch.tensor([0]), share=1)
    task = SimpleNamespace(targets_of=lambda _: targets)
    learner: Any = SimpleNamespace(batch=batch, task=task, training=True, loss=torch.tensor(1.0), output=targets)
    for epoch in range(10):
        learner.progress = SimpleNamespace(epoch=epoch, epochs=10)
        audit.after_batch(learner)
        audit.after_train(learner)
    assert audit.table[0, :, 1].tolist() == pytest.approx([sum(range(1, 8)) / 10] * 2)


def test_changes_no_result() -> None:
    results = []
    for callbacks in ((), (LabelAudit(),)):
        learner = make_learner(Recorder(), *callbacks, epochs=2)
        learner.fit()
        results.append([{k: v for k, v in row.items() if "second" not in k and k != "waiting"} for row in
                        learner.find(Recorder).rows])  # fmt: skip
    assert results[0] == results[1]


def test_a_mixed_image_is_evidence_for_each_label() -> None:
    logits = torch.tensor([[2.0, 9.0, 1.0]])
    shares = torch.tensor([[0.75, 0.25, 0.0]])
    row = _with_classes(logits, torch.tensor([0]), shares)
    assert row[0, :2].tolist() == [0.75, 0.75]  # the partner's class is no error
    assert torch.allclose(row[0, 2:], 0.75 * torch.tensor([2.0, -torch.inf, 1.0]).softmax(dim=0))
    assert not _with_classes(logits[:, :2], torch.tensor([0]), shares[:, :2]).any()  # no class is left to compare with
    assert not _with_classes(logits * torch.inf, torch.tensor([0]), shares).any()


def test_labels_count_where_mixed_images_agree() -> None:
    given = torch.tensor([[1.0, 0.0, 1.0]])
    rows = _with_labels(torch.tensor([[-3.0, -2.0, 4.0]]), given, torch.tensor([[1, 0, 0.5]]))
    assert rows.tolist() == [[[-3, 1], [2, 1], [0, 0]]]


def test_repeated_images_are_joined() -> None:
    rows = np.array([[1.0, 1, 0, 1], [2, 1, 0, 1], [3, 1, 2, 5]])
    split = Split((Path("a"), Path("b"), Path("a")), (0, 1, 0), repeated=1)
    assert _joined(rows, split).tolist() == [[4, 2, 2, 6], [2, 1, 0, 1]]


def test_a_resumed_fit_continues() -> None:
    whole = learner_of(LabelAudit(), at := StateAt(3), epochs=3)
    whole.fit()
    second = learner_of(LabelAudit(), StateAt(3), epochs=3)
    second.fit(second.restore(at.kept))
    assert torch.equal(table_of(second), table_of(whole))


def test_ranks_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of(LabelAudit(), epochs=1)
    learner.fit()
    own = table_of(learner)
    other = torch.rand(own.shape)

    class Two:
        def gather(self, own: Any) -> list[Any]:
            return [own, other]

    monkeypatch.setattr(label_audit, "current", Two)
    assert torch.equal(table_of(learner), own + other)


def test_writes_its_files(tmp_path: Path) -> None:
    learner = learner_of(LabelAudit(), epochs=3, folder=tmp_path)
    learner.fit()
    with (tmp_path / "labels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == ["photos/1.jpg", "photos/2.jpg", "photos/0.jpg"]
    assert (rows[0]["given_label"], rows[0]["suggested_label"]) == (NAMES[1], NAMES[0])
    report = json.loads((tmp_path / "labels.json").read_text())
    assert report["estimates"][0]["unknown"].startswith("Too few samples: 3")
    assert [one["uri"] for one in report["suspects"]] == ["", "", ""]  # there are no such files
    assert RunFolder(tmp_path).notes == {}
    assert set(report) == set(LabelReport.__dataclass_fields__)


def test_a_weak_model_gets_no_estimate(tmp_path: Path) -> None:
    learner = learner_of(LabelAudit(), train=loader(LOGITS * 40, GIVEN * 40), epochs=3, folder=tmp_path)
    learner.fit()
    report = json.loads((tmp_path / "labels.json").read_text())
    assert "val_accuracy is 33.3%" in report["estimates"][0]["unknown"]


@pytest.mark.parametrize("options", [{"task": "regress"}, {"training_step": lambda learner, batch: learner.model(
    batch.images).mean()}, {"train": logits_loader(LOGITS, GIVEN)}])  # fmt: skip
def test_is_off_without_known_labels_or_logits(options: Any, tmp_path: Path) -> None:
    audit = LabelAudit()
    if options.get("task") == "regress":
        learner = learner_of(audit, task="regress", loss_function=lambda outputs, _: outputs.mean())
    else:
        learner = learner_of(audit, folder=tmp_path, **options)
    audit.before_fit(learner)
    assert audit.table is None
    assert audit.state_dict() == {"table": None}


def simulated(share: float, count: int, seed: int) -> tuple[Any, Any, Any]:
    """Return scores, mean probabilities and given labels of ten classes, then which labels are wrong, and the truth."""
    rng = np.random.default_rng(seed)
    true, other = rng.integers(10, size=(2, count))
    wrong = (rng.random(count) < share) & (other != true)
    given = np.where(wrong, other, true)
    logits = rng.normal(0, 1, (count, 10))
    logits[np.arange(count), true] += rng.gamma(4, 1.5, count)  # some samples are hard
    means = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    others = logits.copy()
    others[np.arange(count), given] = -np.inf
    return (logits[np.arange(count), given] - others.max(axis=1), means, given), wrong, true


@pytest.mark.parametrize("share", [0.0, 0.05, 0.25, 0.5])
def test_the_estimated_share_is_near_the_true_one(share: float) -> None:
    (scores, means, given), wrong, _ = simulated(share, 4000, 0)
    found, probability = estimate(scores, given, confident_classes(means))
    true = wrong.mean()
    assert found.share == pytest.approx(true, rel=0.15, abs=0.01)
    assert found.low <= true <= found.high
    assert probability.mean() == pytest.approx(found.share, abs=1e-6)
    assert (np.diff(probability[np.argsort(scores)]) <= 0).all()
    if share:
        assert probability[wrong].mean() > 0.75


def test_the_interval_allows_for_the_errors_of_the_model() -> None:
    (scores, means, given), _, _ = simulated(0.25, 4000, 0)
    sure = confident_classes(means)
    perfect, _ = estimate(scores, given, sure, own_errors=TrainingResult(5, score=1.0).own_errors)
    usual, _ = estimate(scores, given, sure, own_errors=TrainingResult(5, score=0.9).own_errors)
    unknown, _ = estimate(scores, given, sure, own_errors=TrainingResult(5).own_errors)
    assert usual.low == pytest.approx(perfect.low - 0.02)
    assert usual.high == pytest.approx(perfect.high + 0.02)
    assert usual.share == perfect.share
    assert unknown == perfect
    weak, _ = estimate(scores, given, sure, own_errors=TrainingResult(5, score=0.6).own_errors)
    assert weak.low == 0
    assert weak.sentence.endswith("These may all be errors of the model.")
    assert "errors of the model" not in usual.sentence


def test_the_interval_allows_for_few_samples() -> None:
    given = np.repeat([0, 1], 60)
    sure = np.where(np.arange(120) % 2, given, -1)
    found, _ = estimate(np.linspace(-1, 1, 120), given, sure)
    assert found.share == found.low == 0
    assert found.high == pytest.approx(1.96**2 / (60 + 1.96**2) + 0.01)  # Wilson's limit for 0 of 60


def test_the_best_validation_score_decides_whether_a_model_is_strong_enough() -> None:
    learner = learner_of()
    learner.find(Recorder).rows[:] = [{"val_accuracy": score} for score in (0.3, 0.7, math.nan, 0.5)]
    assert _training_result(learner, "val_accuracy").score == 0.7
    assert math.isnan(_training_result(learner, "val_map").score)


def test_the_model_is_confident_of_half_of_the_samples_of_each_predicted_class() -> None:
    means = np.array([[0.9, 0.1], [0.6, 0.4], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6], [0.3, 0.7], [0.2, 0.8]])
    assert confident_classes(means).tolist() == [0, -1, 0, -1, -1, 1, 1]


@pytest.mark.parametrize(
    ("count", "training", "why"),
    [
        (50, TrainingResult(5), "Too few samples"),
        (500, TrainingResult(1), "Too few epochs"),
        (500, TrainingResult(5, score=0.41), "val_accuracy is 41.0%"),
        (500, TrainingResult(5, "val_map", 0.5), "val_map is 50.0%"),
    ],
)
def test_answers_what_it_cannot_know(count: int, training: TrainingResult, why: str) -> None:
    (scores, means, given), _, _ = simulated(0.2, count, 0)
    table = np.hstack([scores[:, None], np.ones((count, 1)), means])
    found = audit_classes(table, given.tolist(), [str(number) for number in range(10)], training)
    assert why in found.estimates[0].sentence
    assert np.isnan(found.probability).all()
    assert found.order() == np.argsort(scores, kind="stable").tolist()


def test_shows_no_probabilities_if_all_labels_may_be_right() -> None:
    (scores, means, given), _, _ = simulated(0.05, 1000, 0)
    table = np.hstack([scores[:, None], np.ones((1000, 1)), means])
    names = [str(number) for number in range(10)]
    strong, weak = (audit_classes(table, given.tolist(), names, TrainingResult(5, score=s)) for s in (0.99, 0.75))
    assert weak.estimates[0].sentence.endswith("These may all be errors of the model.")
    assert weak.order() == strong.order()
    reports = [found.report([Path("a")] * 1000, names, 5, several=False) for found in (strong, weak)]
    assert [[one.probability > 0.9 for one in report.suspects] for report in reports] == [[True] * 5, [False] * 5]
    assert float(weak.as_csv([Path("a")] * 1000).splitlines()[1].split(",")[-1]) > 0.5


def test_probabilities_of_present_and_missing_labels_are_known_separately() -> None:
    """5% of the present labels are wrong, and no label is missing."""
    rng = np.random.default_rng(0)
    given, weights = rng.random((2000, 4)) < 0.5, np.ones((2000, 4))
    wrong = given & (rng.random(given.shape) < 0.05)
    margins = np.where(wrong, -1, 1) * rng.gamma(9, 0.5, given.shape)
    found = audit_labels(np.stack([margins, weights], axis=2), given, ["a", "b", "c", "d"], TrainingResult(5))
    assert [one.certain for one in found.estimates] == [True, False]
    suspects = found.report([Path(str(index)) for index in range(2000)], ["a"], 2000, several=True).suspects
    assert all(one.probability > 0.5 for one in suspects if wrong[int(one.path)].any())
    assert any(math.isnan(one.probability) for one in suspects)


def test_samples_count_alike_whatever_share_of_them_was_mixed_with_others() -> None:
    (scores, means, given), _, _ = simulated(0.2, 1000, 1)
    table = np.hstack([scores[:, None], np.ones((1000, 1)), means])
    shares = np.where(np.arange(1000) % 2, 0.5, 1.0)[:, None]
    names = [str(number) for number in range(10)]
    whole, mixed = (audit_classes(rows, given.tolist(), names, TrainingResult(5)) for rows in (table, table * shares))
    assert mixed.estimates == whole.estimates


def test_samples_without_probabilities_are_left_out() -> None:
    """For example, if the audit was off in the first epochs, and a resumed run turned it on."""
    (scores, means, given), _, _ = simulated(0.2, 1000, 1)
    means[:10] = 0
    table = np.hstack([scores[:, None], np.ones((1000, 1)), means])
    found = audit_classes(table, given.tolist(), [str(number) for number in range(10)], TrainingResult(5))
    assert found.estimates[0].count == 990
    assert np.isnan(found.score).tolist() == [True] * 10 + [False] * 990


def test_a_model_that_knows_nothing_suspects_nothing() -> None:
    table = np.hstack([np.zeros((200, 1)), np.ones((200, 1)), np.full((200, 3), 1 / 3)])
    found = audit_classes(table, [0] * 200, ("a", "b", "c"), TrainingResult(5))
    assert not (found.probability > 0).any()


def test_suggests_the_class_that_the_model_predicts() -> None:
    (scores, means, given), wrong, true = simulated(0.3, 4000, 2)
    table = np.hstack([scores[:, None], np.ones((4000, 1)), means])
    names = [str(number) for number in range(10)]
    found = audit_classes(table, given.tolist(), names, TrainingResult(5))
    assert (np.array(found.suggested)[wrong] == true[wrong].astype(str)).mean() > 0.85
    assert sum(found.pairs.values()) == (found.probability > 0.5).sum()
    report = found.report([], names, 0, several=False)
    assert report.pairs
    assert min(count for *_, count in report.pairs) > 1
    once = replace(found, pairs=Counter({("0", "1"): 1, ("1", "0"): 1})).report([], names, 0, several=False)
    assert once.pairs == ()
    assert "Most often" not in " ".join(once.sentences)


@needs_gpu
def test_recorded_graphs_give_the_same_margins() -> None:
    tables = []
    for graph in (False, True):
        rows = [row for _ in range(40) for row in LOGITS]
        learner = learner_of(LabelAudit(), train=loader(rows, GIVEN * 40), device="cuda", graph=graph, epochs=2)
        learner.fit()
        tables.append(table_of(learner))
    assert torch.allclose(*tables)
