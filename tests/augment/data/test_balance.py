"""Imbalanced classes: repetitions, weights, and exact epochs of repeated images."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from decoded import for_device
from loaders import build_loader
from stores import write_arrays, write_shards

from augment.data.dataset import Dataset, Split, Task
from augment.data.selection import balanced, describe_balance, oversample
from augment.data.sources import load_dataset, parse_data
from augment.data.targets.labels import MAX_LABEL_WEIGHT
from augment.pipeline.loader import Loader
from augment.pipeline.reading import Shard
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


@pytest.mark.parametrize("seed", range(3))
def test_oversampling_repeats_images_equally(seed: int) -> None:
    found = oversample(UNEQUAL, seed)
    train = found.train
    assert Counter(train.targets) == {0: 7, 1: 7, 3: 7}
    times = Counter(zip(train.files, train.targets, strict=True))
    assert set(times) == set(zip(UNEQUAL.train.files, UNEQUAL.train.targets, strict=True))
    for label, expected in ((0, [1] * 7), (1, [2, 2, 3]), (3, [1, 1, 1, 2, 2])):
        assert sorted(count for (_, target), count in times.items() if target == label) == expected
    assert train.files[: train.images] == UNEQUAL.train.files, "images keep their places"
    assert train.images + train.repeated == len(train)
    assert found.val == UNEQUAL.val


@pytest.fixture(scope="module")
def stored(image_files: Split, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Split]:
    """Seven images of three classes (two, two, three), with one of class 0 left out, and repeated: 3 + 6 samples."""
    folder = tmp_path_factory.mktemp("stored")
    kept = [place for place, target in enumerate(image_files.targets) if (place, target) != (1, 0)]
    files = [Path(str(image_files.files[place])) for place in kept]
    targets = [target for place in kept if isinstance(target := image_files.targets[place], int)]
    shards = write_shards(folder, files, targets, 2)
    x, y = write_arrays(folder, files, targets)
    given = {
        "webdataset": {"train": shards, "val": shards},
        "numpy": {"train": x, "train_targets": y, "val": x, "val_targets": y},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        splits = {
            name: load_dataset(parse_data({"source": name, **files, "balance": "oversample"})).train
            for name, files in given.items()
        }
    whole = Split(tuple(files), tuple(targets))
    return splits | {"folder": oversample(Dataset(NAMES, whole, whole), 0).train}


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("name", ["folder", "webdataset", "numpy"])
def test_each_sample_once_an_epoch_over_all_ranks(
    name: str, world_size: int, stored: dict[str, Split], device: torch.device
) -> None:
    split = stored[name]
    assert (split.images, len(split)) == (6, 9)
    if world_size > 1:
        split = replace(split, files=for_device(split.files, device))
    steps = {"brightness": {"factor_range": [0.3, 1.7]}}
    plan = build_plan(parse_aug({"size": 16, "train": steps}), "train")

    def make(rank: int) -> Loader:
        return build_loader(plan, split, batch_size=2, seed=3, device=device, raw=True, shard=Shard(rank, world_size))

    loaders = [make(rank) for rank in range(world_size)]
    for _ in range(2):
        batches = [batch for loader in loaders for batch in loader if batch.share]
        indices = torch.cat([batch.indices for batch in batches]).tolist()
        assert sorted(indices) == list(range(9))
        targets = torch.cat([batch.targets for batch in batches]).tolist()
        assert targets == [split.targets[index] for index in indices]
        assert Counter(targets) == {0: 3, 1: 3, 2: 3}
        # An image that is there several times is augmented anew each time.
        seen = {i: image.cpu() for batch in batches for i, image in zip(batch.indices.tolist(), batch.images)}  # noqa: B905
        for place in range(6):
            times = [seen[i] for i in range(9) if split.files[i] == split.files[place]]
            assert not any(torch.equal(a, b) for n, a in enumerate(times) for b in times[:n])

    loader = make(world_size - 1)
    expected = [batch.indices.tolist() for batch in loader]
    loader = make(world_size - 1)
    next(iter(loader))
    resumed = make(world_size - 1)
    resumed.load_state_dict(loader.state_dict())
    assert [batch.indices.tolist() for batch in resumed] == expected[1:]


def test_another_balance_is_another_identity(stored: dict[str, Split]) -> None:
    split = stored["folder"]
    plan = build_plan(parse_aug({"size": 16}), "train")
    whole = Split(split.files[: split.images], split.targets[: split.images])
    loaders = [build_loader(plan, s, batch_size=2, seed=3) for s in (split, whole)]
    with pytest.raises(UserError, match=r"^data: not that of the saved run"):
        loaders[1].load_state_dict(loaders[0].state_dict())


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
        "balance: 15 training images make 21 samples an epoch, as many of each class"
    )
    for data in (UNEQUAL, replace(UNEQUAL, task="a plugin's")):
        assert describe_balance(balanced(data, "weights", 0), "weights") == (
            "balance: weights in the training loss are from 0.714 (class ant) to 1.67 (class bee); "
            "validation is not weighted"
        )


@pytest.mark.parametrize(
    ("task", "how", "message"),
    [
        ("multilabel", "oversample", "data.balance=oversample: images have several labels, which are repeated"),
        ("regress", "oversample", "data.balance=oversample: images have numbers, not classes."),
        ("regress", "weights", "data.balance=weights: images have numbers, not classes. Allowed: none."),
        ("multilabel", "weights", None),
        ("regress", "none", None),
    ],
)
def test_tasks_that_cannot_be_balanced(task: Task, how: str, message: str | None) -> None:
    whole = Dataset(("a",), Split((Path("a.jpg"),), ((1.0,),)), Split((), ()), task)
    if message is None:
        whole.kind.check_balance(how)
    else:
        with pytest.raises(UserError, match=f"^{message}"):
            whole.kind.check_balance(how)


def test_repeated_images_are_not_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        convert(["data=sample", "data.balance=oversample", "--to", "folder", "--out", str(tmp_path / "out")])
    assert "data.balance: oversample applies to training only. Allowed here: none." in capsys.readouterr().err
