"""Targets of a user's own images: known ones, and their interpretation."""

import importlib
import logging
from collections import Counter
from typing import Any

import pytest
from own_data import load, my_data, own_module, written  # noqa: F401  (a fixture)

from augment.support.errors import UserError

pytestmark = pytest.mark.usefixtures("own_module")


def test_unknown_targets_are_determined_by_reading_all_items(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        dataset = load(options={"targets": False})
    assert "my_data.Photos has no `targets` that match its items. All 7 items are read once" in caplog.text
    assert dataset.train.targets == (2, 0, 1, 1, 2, 0, 2)
    assert Counter(my_data().READ[:8]) == Counter([0, *range(7)])


def test_attributes_of_untransformed_targets_are_ignored() -> None:
    code = """
        from my_data import Photos

        class train(Photos):
            target_transform = None
            def __getitem__(self, index):
                image, target = super().__getitem__(index)
                return image, 2 - target
    """
    assert written(code).train.targets == (0, 2, 1, 1, 0, 2, 0)
    code = code.replace("2 - target", "target if index == 0 else 2 - target")
    assert written(code.replace("= None", "= True")).train.targets == (2, 2, 1, 1, 0, 2, 0)


@pytest.mark.parametrize(
    ("known", "items", "reads"),
    [
        ("[0.1, 0.7, 2.5]", "torch.tensor([0.1, 0.7, 2.5])", 3),  # the items in float32, which rounds
        ("torch.tensor([[1, 0], [1, 1], [0, 1]])", "[[1, 0], [1, 1], [0, 1]]", 3),
        ("np.array(['a', 'b', 'b'])", "['a', 'b', 'b']", 3),
        ("np.array([['a'], ['a', 'b'], []], object)", "[['a'], ['a', 'b'], []]", 3),  # as a column of pandas
        ("['a', 'b', 'b']", "[0, 1, 1]", 4),
        ("[0, 1]", "[0, 1, 1]", 4),
        ("[0, 1, 1]", "[0, 1, 0]", 6),  # those of another order, of which some are the same
    ],
)
def test_known_targets_are_compared_with_items(known: str, items: str, reads: int) -> None:
    code = f"""
        from my_data import *

        class train:
            targets, items, calls = {known}, {items}, 0
            def __len__(self):
                return 3
            def __getitem__(self, index):
                train.calls += 1
                return FILES[index], self.items[index]
    """
    written(code)
    assert importlib.import_module("mine").train.calls == 2 * (reads + 6)  # of train and of val; all again, twice


# --- what targets mean ---


@pytest.mark.parametrize(
    ("targets", "settings", "task", "classes", "found"),
    [
        ("[5, 7, 5]", {"label_offset": 5}, "classify", ("5", "6", "7"), (0, 2, 0)),
        ("[np.int64(0), torch.tensor(1), True]", {}, "classify", ("0", "1"), (0, 1, 1)),
        ("[['a', 'b'], [], {'b'}]", {}, "multilabel", ("a", "b"), ((1.0, 1.0), (0.0, 0.0), (0.0, 1.0))),
        ("[[1], [0, 2], (2,)]", {}, "multilabel", ("0", "1", "2"), ((0.0, 1.0, 0.0), (1.0, 0.0, 1.0), (0.0, 0.0, 1.0))),
        ("[20.5, 3, 4.0]", {}, "regress", ("target",), ((20.5,), (3.0,), (4.0,))),
        ("[(20, 1.5), (3, 1), (4, 2)]", {"targets": ["age", "height"]}, "regress", ("age", "height"),
         ((20.0, 1.5), (3.0, 1.0), (4.0, 2.0))),
        ("list(np.array([[20, 1.5], [3, 1], [4, 2]]))", {}, "regress", ("target_1", "target_2"),
         ((20.0, 1.5), (3.0, 1.0), (4.0, 2.0))),
    ],
)  # fmt: skip
def test_targets(targets: str, settings: Any, task: str, classes: Any, found: Any) -> None:
    dataset = written(f"from my_data import *\ntrain = list(zip(FILES, {targets}))", **settings)
    assert (dataset.task, dataset.classes, dataset.train.targets) == (task, classes, found)


@pytest.mark.parametrize(
    ("targets", "settings", "message"),
    [
        ("[0, None, 1]", {}, r"^data\.train: the target of mine\.train\[1\] is None\. Allowed: a class"),
        ("[np.array([0, 1]), np.array([1, 1]), np.array([1])]", {},
         r"mine\.train\[2\] has 1 number, but mine\.train\[0\] has 2\."),
        ("[1.5, 'a', 1]", {"task": "regress"}, r"mine\.train\[1\] has the label 'a'\. Use either numbers or names"),
    ],
)  # fmt: skip
def test_invalid_targets_are_rejected(targets: str, settings: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        written(f"from my_data import *\ntrain = list(zip(FILES, {targets}))", **settings)
