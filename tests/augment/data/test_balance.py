"""Imbalanced classes: repetitions, weights, and exact epochs of repeated images."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoded import for_device
from loaders import build_loader
from PIL import Image

from augment.data.dataset import Dataset, Split
from augment.data.selection import balanced, describe_balance, oversample
from augment.data.sources import load_dataset, parse_data
from augment.data.targets.multilabel import MAX_LABEL_WEIGHT
from augment.pipeline.graph.sample_order import RankShard
from augment.recipe.plan import build_plan
from augment.recipe.steps import parse_aug
from augment.support.errors import UserError
from augment.tools.convert import main as convert

NAMES = ("ant", "bee", "cat", "dog")


def dataset(targets: tuple[int, ...], names: tuple[str, ...] = NAMES) -> Dataset:
    """A dataset of images that are not there."""
    files = tuple(Path(f"{place}.jpg") for place in range(len(targets)))
    return Dataset(names, Split(files, targets), Split(files[:1], targets[:1]))


UNEQUAL = dataset((0,) * 7 + (1, 3) * 3 + (3,) * 2)


# --- oversampling ---


def test_oversampling_repeats_images_equally() -> None:
    found = oversample(UNEQUAL, 1)
    train = found.train
    assert Counter(train.targets) == {0: 7, 1: 7, 3: 7}
    times = Counter(zip(train.files, train.targets, strict=True))
    assert set(times) == set(zip(UNEQUAL.train.files, UNEQUAL.train.targets, strict=True))
    for label, expected in ((0, [1] * 7), (1, [2, 2, 3]), (3, [1, 1, 1, 2, 2])):
        assert sorted(count for (_, target), count in times.items() if target == label) == expected
    assert train.files[: train.images] == UNEQUAL.train.files, "images keep their places"
    assert train.images + train.repeated == len(train)
    assert found.val == UNEQUAL.val


@pytest.fixture
def repeated(image_files: Split) -> Split:
    """Six images of three classes (two, one, three), repeated: 6 + 3 samples."""
    kept = [place for place in range(7) if place != 1]
    whole = Split(*(tuple(of[place] for place in kept) for of in (image_files.files, image_files.targets)))
    return oversample(Dataset(NAMES, whole, whole), 0).train


@pytest.mark.parametrize("world_size", [1, 3])
def test_each_sample_once_an_epoch_over_all_ranks(world_size: int, repeated: Split, device: torch.device) -> None:
    split = replace(repeated, files=for_device(repeated.files, device))
    assert (split.images, len(split)) == (6, 9)
    steps = {"brightness": {"factor_range": [0.3, 1.7]}}
    plan = build_plan(parse_aug({"size": 16, "train": steps}), "train")
    options: dict[str, Any] = {"batch_size": 2, "seed": 3, "device": device, "raw": True}
    loaders = [build_loader(plan, split, shard=RankShard(rank, world_size), **options) for rank in range(world_size)]
    batches = [batch for loader in loaders for batch in loader if batch.share]
    indices = torch.cat([batch.indices for batch in batches]).tolist()
    assert sorted(indices) == list(range(9))
    targets = torch.cat([batch.targets for batch in batches]).tolist()
    assert targets == [split.targets[index] for index in indices]
    assert Counter(targets) == {0: 3, 1: 3, 2: 3}
    # An image that is there several times is augmented anew each time.
    seen = dict(zip(indices, torch.cat([batch.images for batch in batches]).cpu(), strict=True))
    for place in range(6):
        times = [seen[i] for i in range(9) if split.files[i] == split.files[place]]
        assert not any(torch.equal(a, b) for n, a in enumerate(times) for b in times[:n])


# --- weights ---


@pytest.mark.parametrize("seed", range(3))
def test_weights_of_classes_are_those_of_scikit_learn(seed: int) -> None:
    from sklearn.utils.class_weight import compute_class_weight

    targets = np.random.default_rng(seed).choice([0, 1, 3], 50, p=[0.7, 0.1, 0.2])
    weights = np.array(balanced(dataset(tuple(targets.tolist())), "weights", 0).train.weights)
    expected = compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=targets)
    np.testing.assert_allclose(weights[[0, 1, 3]], expected, rtol=1e-12)
    assert weights[2] == 0, "no image has it"
    assert weights[targets].mean() == pytest.approx(1)


def test_weights_of_labels_by_hand() -> None:
    rows = [[1.0, 0.0, 1.0, float(place == 0), 0.0] for place in range(200)]
    rows = [[row[0], float(place < 50), *row[2:]] for place, row in enumerate(rows)]
    labels = dataset(tuple(map(tuple, rows)), ("all", "some", "too", "one", "none"))  # type: ignore[arg-type]
    whole = Dataset(labels.classes, labels.train, labels.val, "multilabel")
    assert balanced(whole, "weights", 0).train.weights == (0.01, 3.0, 0.01, MAX_LABEL_WEIGHT, 1.0)


# --- what people are told ---


def test_the_effect_of_balancing_is_described() -> None:
    assert describe_balance(UNEQUAL, "none") == ""
    assert describe_balance(oversample(UNEQUAL, 0), "oversample") == (
        "balance: 15 training images, 21 samples per epoch, the same number per class"
    )
    for data in (UNEQUAL, replace(UNEQUAL, task="a plugin's")):
        assert describe_balance(balanced(data, "weights", 0), "weights") == (
            "balance: weights in the training loss are from 0.714 (class ant) to 1.67 (class bee). "
            "Validation is not weighted"
        )


@pytest.mark.parametrize(
    ("given", "allowed"),
    [({"multilabel": True}, "labels. Allowed: none, weights."), ({"task": "regress"}, "numbers. Allowed: none.")],
)
def test_tasks_that_cannot_be_balanced(given: dict[str, object], allowed: str, tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "list.txt").write_text("a.png 1\n")
    named = {"train": str(tmp_path / "list.txt"), "val": str(tmp_path / "list.txt"), "balance": "oversample"}
    with pytest.raises(UserError, match=f"^data.balance=oversample does not support {allowed}"):
        load_dataset(parse_data({"source": "filelist", **named, **given}))


def test_repeated_images_are_not_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        convert(["data=sample", "data.balance=oversample", "--to", "folder", "--out", str(tmp_path / "out")])
    assert "data.balance: oversample works only in training. Set data.balance=none." in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):  # the test images would be missing
        convert(["data=sample", "data.test_fraction=0.2", "--to", "folder", "--out", str(tmp_path / "out")])
    assert "data.test_fraction=0.2 would leave out images" in capsys.readouterr().err
