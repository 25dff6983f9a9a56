"""Interpretation of arrays of targets; ambiguous ones are rejected."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from augment.data.dataset import Dataset, Split
from augment.data.targets.class_names import LabeledSplit, Labels, TargetOptions, pack
from augment.data.targets.interpretation import make_dataset
from augment.support.errors import UserError

FLAGS = [[1, 0, 1], [0, 1, 0], [0, 0, 0]]
ONE_HOT = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def understand(values: Any, val: Any = None, *, task: str = "", **options: Any) -> Dataset:
    splits = []
    for key, found in (("train", values), ("val", values if val is None else val)):
        images = [Path(f"{key}{index}") for index in range(len(found))]
        splits.append(LabeledSplit(f"data.{key}", images, Labels.of_rows(np.array(found)), "x[{}]".format))
    return make_dataset(splits, TargetOptions(task, **options))


@pytest.mark.parametrize(
    ("values", "options", "task", "names", "train"),
    [
        ([0, 2, 1], {}, "classify", ("0", "1", "2"), (0, 2, 1)),
        ([[1], [2]], {"offset": 1}, "classify", ("1", "2"), (0, 1)),
        ([True, False], {}, "classify", ("0", "1"), (1, 0)),
        ([0.0, 1.0], {"classes": ("a", "b")}, "classify", ("a", "b"), (0, 1)),
        (ONE_HOT, {"task": "classify"}, "classify", ("0", "1", "2"), (0, 1, 2)),
        ([1.0, 2.5], {}, "regress", ("target",), ((1.0,), (2.5,))),
        ([23.0, 90.0], {"names": ("age",)}, "regress", ("age",), ((23.0,), (90.0,))),
        ([23, 90], {"task": "regress"}, "regress", ("target",), ((23.0,), (90.0,))),
        ([[1.5, 2], [0, 1]], {}, "regress", ("target_1", "target_2"), ((1.5, 2.0), (0.0, 1.0))),
        ([[7, 2], [0, 1]], {"names": ("x", "y")}, "regress", ("x", "y"), ((7.0, 2.0), (0.0, 1.0))),
        (FLAGS, {}, "multilabel", ("0", "1", "2"), tuple(tuple(map(float, row)) for row in FLAGS)),
        (np.array(FLAGS, bool), {}, "multilabel", ("0", "1", "2"), tuple(tuple(map(float, row)) for row in FLAGS)),
        (ONE_HOT, {"task": "multilabel", "names": ("a", "b", "c")}, "multilabel", ("a", "b", "c"),
         tuple(tuple(map(float, row)) for row in ONE_HOT)),
        (np.array(FLAGS, np.float32), {"classes": ("a", "b", "c")}, "multilabel", ("a", "b", "c"),
         tuple(tuple(map(float, row)) for row in FLAGS)),
        (FLAGS, {"task": "regress", "names": ("a", "b", "c")}, "regress", ("a", "b", "c"),
         tuple(tuple(map(float, row)) for row in FLAGS)),
        (np.array(FLAGS, float), {"task": "regress"}, "regress", ("target_1", "target_2", "target_3"),
         tuple(tuple(map(float, row)) for row in FLAGS)),
    ],
)  # fmt: skip
def test_unambiguous_arrays(values: Any, options: Any, task: str, names: Any, train: Any) -> None:
    splits = (Split(tuple(Path(f"{key}{i}") for i in range(len(train))), train) for key in ("train", "val"))
    assert understand(values, **options) == Dataset(names, *splits, task)


@pytest.mark.parametrize("task", ["", "multilabel"])
def test_lists_of_0_and_1_of_one_length_are_rows(task: str) -> None:
    def read(*lists: list[int]) -> Dataset:
        split = LabeledSplit("data.train", [Path(str(i)) for i in range(len(lists))], pack(lists, str), str)
        return make_dataset([split, split], TargetOptions(task))

    assert read(*FLAGS).train.targets == tuple(tuple(map(float, row)) for row in FLAGS)
    assert read([0, 1], [1], [0, 1]).train.targets == ((1.0, 1.0), (0.0, 1.0), (1.0, 1.0)), "numbers of labels"
    assert read([0, 2], [1, 2]).train.targets == ((1.0, 0.0, 1.0), (0.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (ONE_HOT, {}, "^data.train: the 3 numbers of each image may be a class, labels or numbers to predict. "
                      "Set data.task to classify, multilabel or regress"),
        (np.array(FLAGS, float), {}, "the 3 numbers of each image may be"),
        ([[7, 2], [0, 1]], {}, "the 2 numbers of each image may be"),
        (FLAGS, {"names": ("a", "b", "c")}, "^data.train: a, b, c may be"),
        ([[0, 1], [0, 2]], {"task": "multilabel"}, r"x\[1\] has the target \[0, 2\].* needs 0 and 1"),
        (FLAGS, {"task": "classify"}, r"x\[0\] has the target \[1, 0, 1\].*one 1 per image"),
        ([[1.5, np.nan], [0, 1]], {}, r"x\[0\] has the target \[1.5, nan\]. Use finite"),
        ([1.5, 1e39], {}, r"x\[1\] has the target 1e\+39. Use finite"),
        ([[1.5, 2]], {"names": ("a",)}, "^data.targets: 1 name for 2 numbers"),
        (FLAGS, {"classes": ("a", "b")}, "^data.classes: 2 names for 3 numbers"),
        ([0, 1], {"names": ("a",), "task": "classify"}, "^data.targets is for numbers, but data.task=classify"),
        ([], {}, "^data.train has no images"),
        (np.zeros((2, 2, 2)), {}, r"targets are \(2, 2, 2\) float64"),
        ([0.5, 1.0], {"classes": ("a", "b")}, r"x\[0\] has the label 0.5. Use whole numbers"),
    ],
)  # fmt: skip
def test_ambiguous_or_invalid_arrays_are_rejected(values: Any, options: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        understand(values, **options)


def test_both_splits_must_have_the_same_form() -> None:
    with pytest.raises(UserError, match=r"^data\.val: 2 numbers per image, but 3 in train"):
        understand(FLAGS, [[0, 1]])
    assert understand([0.0, 1.5], [3, 4]).val.targets == ((3.0,), (4.0,))
