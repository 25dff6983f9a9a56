"""Folds and fractions: each image once, stratified by class, and stable."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from augment.data.dataset import Dataset, Split, Target
from augment.data.selection import take_fold, take_fraction, take_val
from augment.data.sources import SOURCES, Source, load_dataset, parse_data
from augment.params import setting, settings
from augment.support.errors import UserError

VAL = Split((Path("val/0.jpg"),), (0,))


def dataset(targets: Sequence[Target], task: str = "classify") -> Dataset:
    """A dataset of images that are not there."""
    files = tuple(Path(f"train/{place}.jpg") for place in range(len(targets)))
    classes = len(targets[0]) if isinstance(targets[0], tuple) else 1 + max(t for t in targets if isinstance(t, int))
    return Dataset(tuple(f"class {c}" for c in range(classes)), Split(files, tuple(targets)), VAL, task)


def of_classes(seed: int, least: int = 7) -> Dataset:
    """Some classes of at least so many images, in mixed order."""
    rng = np.random.default_rng(seed)
    targets = np.repeat(np.arange(6), rng.integers(least, 40, 6))
    return dataset(rng.permutation(targets).tolist())


def of_labels(seed: int, image_files: int = 200) -> Dataset:
    """Images of five labels, the last of which is on four images."""
    rng = np.random.default_rng(seed)
    rows = (rng.random((image_files, 5)) < [0.5, 0.3, 0.2, 0.1, 0]).astype(float)
    rows[rng.choice(image_files, 4, replace=False), 4] = 1
    return dataset([tuple(row) for row in rows.tolist()], "multilabel")


def pairs(split: Split) -> set[tuple[object, Target]]:
    return set(zip(split.files, split.targets, strict=True))


# --- folds ---


@pytest.mark.parametrize("folds", [2, 3, 7])
@pytest.mark.parametrize("seed", range(2))
def test_every_image_is_in_val_of_one_fold_and_in_train_of_the_others(folds: int, seed: int) -> None:
    whole = of_classes(seed)
    rounds = [take_fold(whole, folds=folds, fold=fold, seed=seed) for fold in range(folds)]
    scored = Counter(file for one in rounds for file in one.val.files)
    assert scored == Counter(whole.train.files)
    for one in rounds:
        assert pairs(one.train) | pairs(one.val) == pairs(whole.train)
        assert len(one.train) + len(one.val) == len(whole.train)
        kept = set(one.train.files)
        assert list(one.train.files) == [file for file in whole.train.files if file in kept]
        assert (one.classes, one.task) == (whole.classes, whole.task)
    counts = np.array([np.bincount(one.val.targets, minlength=6) for one in rounds])
    assert (np.ptp(counts, axis=0) <= 1).all()
    assert np.ptp(counts.sum(axis=1)) <= 1


def test_the_rarest_label_is_in_as_many_folds_as_it_can_be() -> None:
    for seed in range(5):
        rounds = [take_fold(of_labels(seed), folds=4, fold=fold, seed=0) for fold in range(4)]
        having = np.array([np.sum(one.val.targets, axis=0) for one in rounds])
        assert having[:, 4].tolist() == [1, 1, 1, 1]
        assert [len(one.val) for one in rounds] == [50] * 4


def test_duplicates_in_a_list_stay_in_one_split() -> None:
    whole = of_classes(0)
    listed = Split(whole.train.files + whole.train.files, whole.train.targets * 2)
    for fold in range(3):
        one = take_fold(Dataset(whole.classes, listed, VAL), folds=3, fold=fold, seed=0)
        assert not set(one.train.files) & set(one.val.files)
        assert set(Counter(one.val.files).values()) == {2}


# --- fraction ---

FRACTIONS = (0.01, 0.1, 0.25, 0.5, 0.9, 1.0)


@pytest.mark.parametrize("seed", range(2))
def test_each_class_keeps_its_share_and_larger_shares_have_all_of_smaller_ones(seed: int) -> None:
    whole = of_classes(seed)
    before: set[tuple[object, Target]] = set()
    for fraction in FRACTIONS:
        found = take_fraction(whole, fraction=fraction, seed=0)
        all_counts, counts = (np.bincount(split.targets).tolist() for split in (whole.train, found.train))
        assert counts == [max(1, round(fraction * count)) for count in all_counts]
        assert before <= pairs(found.train) <= pairs(whole.train)
        kept = set(found.train.files)
        assert list(found.train.files) == [file for file in whole.train.files if file in kept]
        assert found.val == whole.val
        before = pairs(found.train)
    assert before == pairs(whole.train)
    some = [take_fraction(whole, fraction=0.5, seed=number).train for number in (0, 1)]
    assert some[0] != some[1]


# --- val ---


@pytest.mark.parametrize("fraction", [0.05, 0.2, 0.5, 0.9])
def test_val_is_a_share_of_each_class(fraction: float) -> None:
    whole = dataset([0] * 40 + [1] * 7 + [2] * 2 + [3])
    cut = take_val(whole, fraction=fraction, seed=1)
    assert pairs(cut.train) | pairs(cut.val) == pairs(whole.train)
    assert len(cut.train) + len(cut.val) == len(whole.train)
    expected = [round(40 * fraction), min(max(round(7 * fraction), 1), 6), 1, 0]
    assert np.bincount(cut.val.targets, minlength=4).tolist() == expected
    other = take_val(whole, fraction=fraction, seed=2)
    assert len(other.val) == len(cut.val)
    assert other.val != cut.val


# --- as settings of every source ---


@dataclass(frozen=True, kw_only=True)
class Drawn(Source):
    """A source as a user declares one, which counts how often it is asked."""

    asked: ClassVar[list[str]] = []

    name: str = setting(settings(SOURCES["folder"])["root"])

    def load(self) -> Dataset:
        self.asked.append(self.name)
        return of_classes(0)


def test_the_fold_comes_first_and_then_the_fraction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Drawn, "asked", [])
    whole = load_dataset(Drawn(name="a"))
    for fold in range(3):
        cut = take_fold(whole, folds=3, fold=fold, seed=4)
        found = load_dataset(Drawn(name="a", folds=3, fold=fold, split_seed=4, fraction=0.5))
        assert found.train == take_fraction(cut, fraction=0.5, seed=4).train
        assert found.val == cut.val
    assert Drawn.asked == ["a", "a"], "the jobs of a sweep over folds list and check their images once"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"folds": 3}, "data.fold is missing. Allowed: 0 to 2, or -m 'data.fold=range(3)' for all folds."),
        ({"folds": 3, "fold": 3}, "data.fold=3 is too large. Allowed: 0 to 2, or -m"),
        ({"fold": 0}, "data.fold=0 needs data.folds. Set data.folds=K, or remove data.fold."),
        ({"folds": 1, "fold": 0}, "data.folds: 1 is not allowed. Use a whole number from 2 to 1000 or null."),
        ({"fraction": 0}, "data.fraction: 0 is not allowed. Use a number above 0 up to 1."),
        ({"fraction": 1.5}, "data.fraction: 1.5 is not allowed."),
        ({"balance": "weight"}, "data.balance: unknown name 'weight'. Did you mean 'weights'?"),
    ],
)
def test_mistakes(given: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_data({"source": "sample", **given})
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("whole", "message"),
    [
        (dataset([0] * 9 + [1] * 3), "data.folds=4: train has only 3 images of class 1. Use at most 3 folds."),
        (dataset([0] * 9 + [1]), "data.folds=4: train has only 1 image of class 1. Add images"),
        (dataset([(0.0,)] * 3, "regress"), "data.folds=4: train has only 3 images. Use at most 3 folds."),
    ],
)
def test_more_folds_than_images(whole: Dataset, message: str) -> None:
    with pytest.raises(UserError) as raised:
        take_fold(whole, folds=4, fold=0, seed=0)
    assert str(raised.value).startswith(message)
