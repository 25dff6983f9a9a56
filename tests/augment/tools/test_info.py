"""The info command on all kinds of sources."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from photos import draw_photo
from PIL import Image

from augment.tools.info.command import main


def write_folder(root: Path, train: int = 12, val: int = 3) -> Path:
    for number, name in enumerate(("cat", "dog")):
        for split, count in (("train", train), ("val", val)):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                seed = 1000 * number + 100 * (split == "val") + i
                Image.fromarray(draw_photo(150, 140, seed)).save(folder / f"{i}.jpg", quality=90)
    return root


def report(*overrides: str) -> dict[str, Any]:
    assert main([*overrides, "--json", "info.json"]) == 0
    content: dict[str, Any] = json.loads(Path("info.json").read_text())
    return content


def kinds(content: dict[str, Any]) -> list[str]:
    return [finding["kind"] for finding in content["findings"]]


def test_a_folder_without_problems(own_folder: Path, capsys: pytest.CaptureFixture[str]):
    content = report("data=folder", f"data.root={write_folder(own_folder / 'd')}")
    assert content["images"] == {"train": 24, "val": 6}
    assert content["classes"] == {"cat": {"train": 12, "val": 3}, "dog": {"train": 12, "val": 3}}
    assert content["width"]["train"]["median"] == 150
    assert content["formats"] == {"JPEG": 30}
    assert content["modes"] == {"RGB": 30}
    assert content["findings"] == []
    assert "No problems found." in capsys.readouterr().out
    with Image.open("outputs/info.png") as drawing:
        assert drawing.width == 1320


def test_bad_files_and_duplicates_are_reported(own_folder: Path, capsys: pytest.CaptureFixture[str]):
    root = write_folder(own_folder / "d")
    (root / "train/cat/0.jpg").write_bytes(b"")
    data = (root / "train/cat/1.jpg").read_bytes()
    (root / "val/dog/cut.jpg").write_bytes(data[: len(data) // 2])
    shutil.copy(root / "train/cat/2.jpg", root / "val/dog/2.jpg")
    with Image.open(root / "train/dog/3.jpg") as image:
        image.resize((100, 94)).save(root / "val/dog/3.jpg", quality=40)
    content = report("data=folder", f"data.root={root}")
    unreadable = content["unreadable"]
    assert [(Path(bad["file"]).name, bad["split"]) for bad in unreadable] == [("0.jpg", "train"), ("cut.jpg", "val")]
    assert kinds(content) == ["unreadable", "leak", "near_leak", "contradiction"]
    assert content["duplicates"]["val_in_train"] == 1
    assert content["near_duplicates"]["pairs"] == [[str(root / "train/dog/3.jpg"), str(root / "val/dog/3.jpg")]]
    out = capsys.readouterr().out
    assert f"{root}/train/cat/0.jpg is empty (0 bytes)" in out
    assert f"{root}/train/dog/3.jpg (train, dog) = {root}/val/dog/3.jpg (val, dog)" in out


def test_arrays(own_folder: Path):
    image_files = np.stack([draw_photo(140, 140, seed) for seed in range(30)])
    image_files[25] = image_files[3]
    np.save("x.npy", image_files[:24])
    np.save("y.npy", np.arange(24) % 2)
    np.save("vx.npy", image_files[24:])
    np.save("vy.npy", np.arange(6) % 2)
    content = report("data=numpy", "data.train=x.npy", "data.train_targets=y.npy", "data.val=vx.npy",
                     "data.val_targets=vy.npy")  # fmt: skip
    assert content["formats"] == {"decoded": 30}
    assert content["duplicates"]["pairs"] == [["x.npy[3]", "vx.npy[1]"]]
    assert kinds(content) == ["leak"]


def test_several_labels_and_numbers(own_folder: Path, capsys: pytest.CaptureFixture[str]):
    root = write_folder(own_folder / "d")
    for split in ("train", "val"):
        files = sorted((root / split).rglob("*.jpg"))
        lines = [f"{file},{'a;b' if i % 2 else 'b'},{i / len(files)}" for i, file in enumerate(files)]
        lines[-1] = lines[-1].replace(".jpg", ".gone.jpg")
        Path(f"{split}.csv").write_text("path,label,age\n" + "\n".join(lines))
    given = ("data=filelist", "data.train=train.csv", "data.val=val.csv")
    labels = report(*given)
    assert labels["task"] == "multilabel"
    assert [bad["reason"] for bad in labels["unreadable"]] == ["cannot be read: No such file or directory"] * 2
    assert "labels per image  mean 1.50" in capsys.readouterr().out
    assert labels["classes"] == {"a": {"train": 12, "val": 3}, "b": {"train": 24, "val": 6}}
    numbers = report(*given, "data.targets=[age]")
    assert numbers["task"] == "regress"
    assert numbers["numbers"]["age"]["train"]["max"] == pytest.approx(23 / 24)


def test_it_goes_on_after_structural_problems_and_names_other_formats(
    own_folder: Path, capsys: pytest.CaptureFixture[str]
):
    root = write_folder(own_folder / "d", train=4)
    shutil.rmtree(root / "val")
    (root / "train" / "emu").mkdir()
    for number in range(3):
        (root / f"train/cat/{number}.jpg").rename(root / f"train/cat/{number}.HEIC")
    shutil.copy(root / "train/cat/3.jpg", root / "train/dog/copy.jpg")
    content = report("data=folder", f"data.root={root}")
    assert kinds(content)[:4] == ["structure", "structure", "formats", "contradiction"]
    said = capsys.readouterr().out.replace("\n", " ")
    assert "Training refuses to start: data.root=" in said
    assert "there is no folder val in it" in said
    assert "left out 3 of 9 images, which DALI does not decode: 3 .heic" in said
    assert len(content["other_formats"]["train"]) == 3
