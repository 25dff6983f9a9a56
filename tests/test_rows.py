"""What arrays of targets mean, and that nothing is guessed where they may mean two things."""

import logging
from typing import Any

import numpy as np
import pytest

from augment.dataset import Task
from augment.errors import UserError
from augment.targets.classes import Targets
from augment.targets.rows import Rows, understand_rows

FLAGS = [[1, 0, 1], [0, 1, 0], [0, 0, 0]]
ONE_HOT = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def understand(values: Any, val: Any = None, **options: Any) -> Targets:
    splits = ((key, np.array(found)) for key, found in (("train", values), ("val", values if val is None else val)))
    return understand_rows(
        *(Rows(f"data.{key}", found, lambda place: f"x[{place}]") for key, found in splits), **options
    )


@pytest.mark.parametrize(
    ("values", "options", "task", "names", "train"),
    [
        ([0, 2, 1], {}, "classify", ("0", "1", "2"), (0, 2, 1)),
        ([[1], [2]], {"offset": 1}, "classify", ("1", "2"), (0, 1)),
        ([True, False], {}, "classify", ("0", "1"), (1, 0)),
        ([0.0, 1.0], {"classes": ("a", "b")}, "classify", ("a", "b"), (0, 1)),
        (ONE_HOT, {"task": "classify"}, "classify", ("0", "1", "2"), (0, 1, 2)),
        ([1.0, 2.5], {}, "regress", ("target",), ((1.0,), (2.5,))),
        ([23.0, 90.0], {"targets": ["age"]}, "regress", ("age",), ((23.0,), (90.0,))),
        ([23, 90], {"task": "regress"}, "regress", ("target",), ((23.0,), (90.0,))),
        ([[1.5, 2], [0, 1]], {}, "regress", ("target_1", "target_2"), ((1.5, 2.0), (0.0, 1.0))),
        ([[7, 2], [0, 1]], {"targets": ["x", "y"]}, "regress", ("x", "y"), ((7.0, 2.0), (0.0, 1.0))),
        (FLAGS, {}, "multilabel", ("0", "1", "2"), tuple(tuple(map(float, row)) for row in FLAGS)),
        (np.array(FLAGS, bool), {}, "multilabel", ("0", "1", "2"), tuple(tuple(map(float, row)) for row in FLAGS)),
        (ONE_HOT, {"task": "multilabel", "targets": ["a", "b", "c"]}, "multilabel", ("a", "b", "c"),
         tuple(tuple(map(float, row)) for row in ONE_HOT)),
        (np.array(FLAGS, np.float32), {"classes": ("a", "b", "c")}, "multilabel", ("a", "b", "c"),
         tuple(tuple(map(float, row)) for row in FLAGS)),
        (FLAGS, {"task": "regress", "targets": ["a", "b", "c"]}, "regress", ("a", "b", "c"),
         tuple(tuple(map(float, row)) for row in FLAGS)),
        (np.array(FLAGS, float), {"task": "regress"}, "regress", ("target_1", "target_2", "target_3"),
         tuple(tuple(map(float, row)) for row in FLAGS)),
    ],
)  # fmt: skip
def test_what_they_mean(values: Any, options: Any, task: Task, names: Any, train: Any) -> None:
    assert understand(values, **options) == Targets(task, names, train, train)


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (ONE_HOT, {}, "^data.train: each picture has one 1 among 3 numbers, which may mean a class or labels. "
                      "Allowed: data.task=classify, multilabel or regress"),
        (np.array(FLAGS, float), {}, "0 and 1 as fractions.*data.multilabel=true or data.task=regress"),
        ([[7, 2], [0, 1]], {}, "2 whole numbers a picture. Allowed: 0 and 1 for labels; data.task=regress"),
        (FLAGS, {"targets": ["a", "b", "c"]},
         "^data.targets: all of them are 0 and 1, which may mean labels or numbers"),
        ([[0, 1], [0, 2]], {"task": "multilabel"}, r"x\[1\] has the target \[0, 2\]. Allowed .*: 0 and 1"),
        (FLAGS, {"task": "classify"}, r"x\[0\] has the target \[1, 0, 1\].*one 1, and 0 otherwise"),
        ([[1.5, np.nan], [0, 1]], {}, r"x\[0\] has the target \[1.5, nan\]. Allowed: finite numbers"),
        ([1.5, 1e39], {}, r"x\[1\] has the target 1e\+39. Allowed: finite"),
        ([[1.5, 2]], {"targets": ["a"]}, "^data.targets: 1 names. Allowed: 2"),
        (FLAGS, {"classes": ("a", "b")}, "^data.classes: 2 names. Allowed: 3"),
        ([0, 1], {"targets": ["a"], "task": "classify"}, "^data.targets: names numbers, but data.task=classify"),
        ([], {}, "^data.train: holds no pictures"),
        (np.zeros((2, 2, 2)), {}, r"targets are \(2, 2, 2\) float64"),
        ([0.5, 1.0], {"classes": ("a", "b")}, r"x\[0\] has the label 0.5. Allowed: whole numbers"),
    ],
)  # fmt: skip
def test_what_they_may_not_mean(values: Any, options: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        understand(values, **options)


def test_both_splits_are_alike() -> None:
    with pytest.raises(UserError, match=r"^data\.val: 2 numbers a picture, but 3 in train"):
        understand(FLAGS, [[0, 1]])
    assert understand([0.0, 1.5], [3, 4]).val == ((3.0,), (4.0,))


def test_labels_without_pictures_are_noted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        understand([[1, 0, 1], [0, 0, 1]])
    assert "1 of 3 classes have no picture in train: 1." in caplog.text
