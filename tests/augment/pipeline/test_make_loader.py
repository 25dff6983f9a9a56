"""The data that `make_loader` loads: splits, classes, changes, and what is rejected."""

import gc
import logging
import re
import shutil
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import pytest
import torch
from red_and_blue import CPU, SIZE, loader_of

import augment
from augment import Recipe, UserError
from augment.data.sources import load_dataset, parse_data


def test_data_that_have_changed_are_loaded_again(
    recipe: Recipe, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def files(**options: Any) -> Sequence[Any]:
        return augment.make_loader(recipe, split="train", batch_size=4, device="cpu", **options).split.files

    root = tmp_path / "images"
    shutil.copytree(folder, root)
    before = files(data="folder", root=root)
    added = before[0].with_name("added.png")
    shutil.copy(before[1], added)
    assert set(files(data="folder", root=root)) == {*before, added}

    arrays = {name: str(tmp_path / f"{name}.npy") for name in ("train", "val", "train_targets", "val_targets")}
    for count in (4, 6):
        for name, file in arrays.items():
            np.save(file, np.arange(count) % 2 if "targets" in name else np.zeros((count, 8, 8, 3), np.uint8))
        assert len(files(data="numpy", **arrays)) == count

    code = ModuleType("code_that_changes")
    monkeypatch.setitem(sys.modules, code.__name__, code)
    for count in (4, 6):
        monkeypatch.setattr(code, "pairs", [(before[0], 0), (before[1], 1)] * count, raising=False)
        assert len(files(data="own", train="code_that_changes.pairs")) == 2 * count


class Squares(torch.utils.data.Dataset[Any]):
    """Images of one gray each, of three classes."""

    def __init__(self, grays: list[int]) -> None:
        self.grays = grays

    def __len__(self) -> int:
        return len(self.grays)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        gray = self.grays[index]
        return np.full((8, 8, 3), gray, np.uint8), gray % 3


def test_own_data_may_be_objects_in_place_of_names(recipe: Recipe, caplog: pytest.LogCaptureFixture) -> None:
    def targets(split: Literal["train", "val"], **given: Any) -> list[int]:
        return list(augment.make_loader(recipe, "own", split=split, **CPU | given).split.targets)

    both = {"train": Squares([0, 1, 2, 4]), "val": Squares([5, 2])}
    assert targets("train", **both) == [0, 1, 2, 1]
    assert targets("val", **both) == [2, 2]
    assert "with the same arguments as data.train" not in caplog.text
    assert targets("train", train=Squares([2, 1, 0])) == [2, 1, 0]  # another object of that class
    assert targets("train", train=[(np.zeros((8, 8, 3), np.uint8), label) for label in (1, 0, 1)]) == [1, 0, 1]
    assert targets("train", train=lambda grays: Squares(grays), train_options={"grays": [1, 0, 2]}) == [1, 0, 2]
    assert targets("train", train=Squares, train_options={"grays": [0, 1]}, workers=1) == [0, 1]
    refused = "data.workers=1: worker processes cannot import the given objects. Set data.workers=0, or"
    with pytest.raises(UserError, match=f"^{refused}"):
        targets("train", train=Squares([0, 1]), workers=1)


def test_weights_that_balance_classes_are_for_the_loss_of_the_loop(recipe: Recipe) -> None:
    given = {"data": "own", "train": Squares([0, 1, 4, 7])}  # gray % 3: class 0, three times class 1
    assert augment.make_loader(recipe, **CPU | given, balance="weights").split.weights == (2.0, 2 / 3)


def test_data_in_memory_are_released_with_their_loader(recipe: Recipe, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)  # what is logged does not hold them either
    squares = Squares([0, 1, 2])
    there = weakref.ref(squares)
    augment.make_loader(recipe, "own", train=squares, **CPU)
    del squares
    augment.make_loader(recipe, "own", train=Squares([0, 1]), **CPU)
    gc.collect()
    assert there() is None


@pytest.mark.parametrize(
    ("make", "missing"),
    [
        (lambda root: {"data": "folder", "root": root / "train"}, "has no folder train and no folder val, only blue"),
        (lambda root: {"data": "folder", "root": root}, "it has no folder val, only train"),
    ],
    ids=["classes", "train"],
)
def test_train_alone_needs_no_val(
    make: Callable[[Path], dict[str, Any]],
    missing: str,
    recipe: Recipe,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "d"
    shutil.copytree(folder / "train", root / "train")
    given = make(root)
    assert sorted(augment.make_loader(recipe, **CPU | given).split.targets) == [0] * 10 + [1] * 10
    with pytest.raises(UserError, match=re.escape(missing)):
        augment.make_loader(recipe, split="val", **CPU | given)
    assert len(augment.make_loader(recipe, split="val", val_fraction=0.2, **CPU | given).split) == 4
    source = parse_data({"source": given.pop("data"), **{key: str(value) for key, value in given.items()}})
    with pytest.raises(UserError, match=re.escape(missing)):  # in training
        load_dataset(source)


def test_the_data_are_those_of_the_recipe_unless_they_are_named(folder: Path) -> None:
    recipe = augment.load_recipe("none", f"aug.size={SIZE}", "data=folder", f"data.root={folder}")
    loader = augment.make_loader(recipe, **CPU)
    assert (len(loader.split), loader.classes) == (20, ("blue", "red"))
    assert len(augment.make_loader(recipe, fraction=0.5, **CPU).split) == 10
    drop = augment.make_loader(recipe, "folder", root=str(folder), batch_size=16, drop_last=True, half=True, **CPU)
    assert (len(drop), next(iter(drop)).images.dtype) == (1, torch.float16)


@pytest.mark.parametrize("given", [{}, {"rank": 1, "world_size": 2}], ids=["alone", "shared"])
def test_ranks_that_share_nothing_cause_a_warning(
    given: dict[str, int],
    recipe: Recipe,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for split in ("train", "val"):
        loader_of(recipe, folder, split, **given)
        augment.Transform(recipe, split, device="cpu", rank=given.get("rank", 0))
    expected = [
        "world_size=1: each of the 2 processes reads all images. Pass rank and world_size.",
        "rank=0, but this is rank 1 of 2. All ranks draw the same values. Pass the rank.",
    ]
    found = [record.message for record in caplog.records if record.name == "augment.pipeline.arguments"]
    assert found == ([] if given else expected)
