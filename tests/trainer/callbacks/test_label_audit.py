"""The label audit: margins by hand, mixed images, labels, repeats, resumed runs and ranks, and its files."""

import csv
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import CLASSES as NAMES
from fakes import Logits, MemoryLoader, frozen, logits_loader, make_learner, needs_gpu

from augment.data.dataset import Split
from trainer.callbacks import label_audit
from trainer.callbacks.label_audit import LabelAudit, _joined, _with_classes, _with_labels
from trainer.callbacks.recorder import Recorder
from trainer.figures.label_report import LabelReport, audit_classes
from trainer.loop.callback import Callback
from trainer.loop.learner import Learner
from trainer.run.folder.reader import RunFolder
from trainer.tasks.label_errors import estimate

LOGITS = [[2.0, 1.0, 0.0], [5.0, 1.0, 0.0], [0.0, 1.0, 4.0]]
GIVEN = [0, 1, 0]


def loader(logits: list[list[float]] = LOGITS, given: list[int] = GIVEN, **split: Any) -> MemoryLoader:
    made: Any = logits_loader(logits, given)
    made.split = Split(tuple(Path(f"photos/{number}.jpg") for number in range(len(given))), tuple(given), **split)
    return made


def learner_of(*callbacks: Callback, **options: Any) -> Learner:
    parts = {"train": loader(), "model": Logits(), "optimizer": frozen, "val": logits_loader(LOGITS, GIVEN)}
    return make_learner(Recorder(), *callbacks, **(parts | options))


def table_of(learner: Learner) -> Any:
    table = learner.find(LabelAudit).merged()
    assert table is not None
    return table


def test_margins_by_hand() -> None:
    learner = learner_of(LabelAudit(), epochs=2)
    learner.fit()
    table = table_of(learner)
    assert (table[:, 0] / table[:, 1]).tolist() == pytest.approx([1, -4, -4])
    assert table[:, 2].tolist() == [1, 0, 2]  # the best other class
    # Two batches per epoch, so weights are 1/4 and 3/4 in the first batch, and 2/4 and 4/4 in the second.
    assert table[:, 1].tolist() == pytest.approx([1, 1, 1.5])


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
    row = _with_classes(torch.zeros(1, 4), logits, torch.tensor([0]), shares, 1.0)
    assert row.tolist() == [[0.75, 0.75, 2.0, 0.75]]  # the partner's class is no error
    nothing = _with_classes(torch.zeros(1, 4), logits[:, :2], torch.tensor([0]), shares[:, :2], 1.0)
    assert nothing[0, :2].tolist() == [0, 0]  # no class is left to compare with
    assert not _with_classes(torch.zeros(1, 4), logits * torch.inf, torch.tensor([0]), shares, 1.0)[0, :2].any()


def test_the_majority_is_suggested() -> None:
    row = torch.zeros(1, 4)
    for best in (1, 2, 2, 1, 2):
        row = _with_classes(row, torch.eye(3)[best][None], torch.tensor([0]), torch.tensor([0]), 1.0)
    assert row[0, 2] == 2


def test_labels_count_where_mixed_images_agree() -> None:
    given = torch.tensor([[1.0, 0.0, 1.0]])
    rows = _with_labels(
        torch.zeros(1, 3, 2), torch.tensor([[-3.0, -2.0, 4.0]]), given, torch.tensor([[1, 0, 0.5]]), 1.0
    )
    assert rows.tolist() == [[[-3, 1], [2, 1], [0, 0]]]


def test_repeated_images_are_joined() -> None:
    rows = np.array([[1.0, 1, 0, 1], [2, 1, 0, 1], [3, 1, 2, 5]])
    split = Split((Path("a"), Path("b"), Path("a")), (0, 1, 0), repeated=1)
    assert _joined(rows, split).tolist() == [[4, 2, 2, 5], [2, 1, 0, 1]]


def test_a_resumed_fit_continues() -> None:
    whole = learner_of(LabelAudit(), epochs=3)
    whole.fit()
    first = learner_of(LabelAudit(), epochs=3, limit_batches=None)
    states: list[Any] = []

    class Save(Callback):
        order = 50

        def after_batch(self, learner: Learner) -> None:
            if learner.training and not states and learner.progress.batches_done == 3:
                learner.after_this_batch(lambda one: states.append(deepcopy(one.state())))

    first = learner_of(LabelAudit(), Save(), epochs=3)
    first.fit()
    second = learner_of(LabelAudit(), Save(), epochs=3)
    second.fit(second.restore(states[0]))
    assert torch.equal(table_of(second), table_of(whole))


def test_ranks_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of(LabelAudit(), epochs=1)
    learner.fit()
    other = torch.tensor([[1.0, 2, 2, 9], [0, 0, 0, 0], [0, 0, 0, 0]])

    class Two:
        def gather(self, own: Any) -> list[Any]:
            return [own, other]

    own = table_of(learner)
    monkeypatch.setattr(label_audit, "current", Two)
    merged = table_of(learner)
    assert torch.equal(merged[:, :2], own[:, :2] + other[:, :2])
    assert merged[0, 2:].tolist() == [2, 9]
    assert torch.equal(merged[1:, 2:], own[1:, 2:])


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


def simulated(share: float, count: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    wrong = rng.random(count) < share
    side = rng.random(count) < 0.65  # right labels have a long left tail
    right = np.where(side, 2.2 - np.abs(rng.normal(0, 1.1, count)), 2.2 + np.abs(rng.normal(0, 0.6, count)))
    return np.where(wrong, rng.normal(-2.2, 0.9, count), right), wrong


@pytest.mark.parametrize("share", [0.01, 0.05, 0.25, 0.5])
def test_the_estimated_share_is_near_the_true_one(share: float) -> None:
    inside = 0
    for seed in range(4):
        scores, wrong = simulated(share, 4000, seed)
        found, probability = estimate(scores, epochs=5)
        true = wrong.mean()
        assert found.share == pytest.approx(true, rel=0.15, abs=0.004)
        inside += found.low <= true <= found.high
        assert probability[wrong].mean() > 0.75
        assert probability.mean() == pytest.approx(found.share, rel=0.15, abs=0.004)
        assert (np.diff(probability[np.argsort(scores)]) <= 0).all()
    assert inside >= 3


def test_clean_labels_have_no_large_share() -> None:
    found, _ = estimate(simulated(0, 4000, 0)[0], epochs=5)
    assert found.unknown or found.share < 0.01


@pytest.mark.parametrize(
    ("scores", "epochs", "why"),
    [
        (simulated(0.2, 50, 0)[0], 5, "Too few samples"),
        (simulated(0.2, 500, 0)[0], 1, "Too few epochs"),
        (np.random.default_rng(0).normal(0, 1, 500), 5, "too little"),
        (np.zeros(500), 5, "too little"),
    ],
)
def test_answers_what_it_cannot_know(scores: Any, epochs: int, why: str) -> None:
    found, probability = estimate(scores, epochs)
    assert why in found.sentence
    assert np.isnan(probability).all()


def test_finds_a_class_whose_labels_are_all_wrong() -> None:
    scores, _ = simulated(0, 1000, 0)
    scores[900:] = np.random.default_rng(1).normal(-2.2, 0.9, 100)  # the class b, which looks like c
    table = np.stack([scores, np.ones(1000), np.full(1000, 2.0), np.ones(1000)], axis=1)
    found = audit_classes(table, [0] * 900 + [1] * 100, ("a", "b", "c"), 5)
    assert found.estimates[0].share == pytest.approx(0.1, abs=0.02)
    assert found.pairs["b", "c"] > 90


@needs_gpu
def test_recorded_graphs_give_the_same_margins() -> None:
    tables = []
    for graph in (False, True):
        rows = [row for _ in range(40) for row in LOGITS]
        learner = learner_of(LabelAudit(), train=loader(rows, GIVEN * 40), device="cuda", graph=graph, epochs=2)
        learner.fit()
        tables.append(table_of(learner))
    assert torch.allclose(*tables)
