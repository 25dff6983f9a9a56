"""The info command on all kinds of sources."""

import re
import shutil
from pathlib import Path

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


def report(capsys: pytest.CaptureFixture[str], *overrides: str) -> str:
    """Return what is printed, with single blanks."""
    assert main(overrides) == 0
    return re.sub(" +", " ", capsys.readouterr().out)


def test_a_folder_without_problems(own_folder: Path, capsys: pytest.CaptureFixture[str]):
    said = report(capsys, "data=folder", f"data.root={write_folder(own_folder / 'd')}")
    assert said.startswith("folder: 30 images, 24 in train and 6 in val (20%); 2 classes\n")
    assert "\ncat 12 3\ndog 12 3\n\nwidth 150 px\nheight 140 px\n" in said
    assert "\nformats 30 JPEG; 30 RGB\n" in said
    assert "No problems found." in said
    with Image.open("outputs/info.png") as drawing:
        assert drawing.width == 1320


def test_corrections_of_labels_count(
    own_folder: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    write_folder(own_folder / "d")
    Path("c.csv").write_text("path,label,action\nd/train/cat/0.jpg,dog,change\nd/train/cat/1.jpg,,drop\n")
    said = report(capsys, "data=folder", "data.root=d", "data.labels=c.csv")
    assert "\ncat 10 3\ndog 13 3\n" in said
    assert "changed the class" not in said.partition("Problems")[2]
    assert caplog.messages == ["data.labels: changed the class of 1 image and dropped 1"]


def test_several_wrong_lines_are_one_problem(own_folder: Path, capsys: pytest.CaptureFixture[str]):
    write_folder(own_folder / "d")
    Path("c.csv").write_text("path,label\nd/train/cat/0.jpg,dgo\nnone.jpg,dog\n")
    assert main(["data=folder", "data.root=d", "data.labels=c.csv"]) == 0
    assert "\n  - Training cannot start: data.labels=c.csv: line 2: the label" in (said := capsys.readouterr().out)
    assert "\n    data.labels=c.csv: line 3: no training image is named none.jpg" in said


def test_bad_files_and_duplicates_are_reported(own_folder: Path, capsys: pytest.CaptureFixture[str]):
    root = write_folder(own_folder / "d")
    (root / "train/cat/0.jpg").write_bytes(b"")
    data = (root / "train/cat/1.jpg").read_bytes()
    (root / "val/dog/cut.jpg").write_bytes(data[: len(data) // 2])
    shutil.copy(root / "train/cat/2.jpg", root / "val/dog/2.jpg")
    with Image.open(root / "train/dog/3.jpg") as image:
        image.resize((100, 94)).save(root / "val/dog/3.jpg", quality=40)
    said = report(capsys, "data=folder", f"data.root={root}")
    assert f"cannot be used\n {root}/train/cat/0.jpg is empty (0 bytes)\n {root}/val/dog/cut.jpg is broken" in said
    assert f"the same bytes\n {root}/train/cat/2.jpg (train, cat) = {root}/val/dog/2.jpg (val, dog)\n" in said
    assert f"look the same\n {root}/train/dog/3.jpg (train, dog) = {root}/val/dog/3.jpg (val, dog)\n\n" in said
    starts = (
        "2 images of 32",
        "1 of 8 val images (12%) is also in train, byte",
        "1 of 8 val images",
        "1 pair of identical files ",
    )
    problems = said.split("Problems\n - ")[1].split("\n - ")
    assert len(problems) == 4
    assert all(map(str.startswith, problems, starts))


def test_arrays(own_folder: Path, capsys: pytest.CaptureFixture[str]):
    image_files = np.stack([draw_photo(140, 140, seed) for seed in range(30)])
    image_files[25] = image_files[3]
    np.save("x.npy", image_files[:24])
    np.save("y.npy", np.arange(24) % 2)
    np.save("vx.npy", image_files[24:])
    np.save("vy.npy", np.arange(6) % 2)
    said = report(capsys, "data=numpy", "data.train=x.npy", "data.train_targets=y.npy", "data.val=vx.npy",
                  "data.val_targets=vy.npy")  # fmt: skip
    assert "\nformats 30 decoded; 30 RGB\n" in said
    assert "the same bytes\n x.npy[3] (train, 1) = vx.npy[1] (val, 1)\n" in said
    assert said.count("\n - ") == 1


def test_several_labels_and_numbers(own_folder: Path, capsys: pytest.CaptureFixture[str]):
    root = write_folder(own_folder / "d")
    for split in ("train", "val"):
        files = sorted((root / split).rglob("*.jpg"))
        lines = [f"{file},{'a;b' if i % 2 else 'b'},{i / len(files)}" for i, file in enumerate(files)]
        lines[-1] = lines[-1].replace(".jpg", ".gone.jpg")
        Path(f"{split}.csv").write_text("path,label,age\n" + "\n".join(lines))
    given = ("data=filelist", "data.train=train.csv", "data.val=val.csv")
    labels = report(capsys, *given)
    assert labels.count(".gone.jpg cannot be read: No such file or directory\n") == 2
    assert "\na 12 3\nb 24 6\n\nlabels per image mean 1.50\n" in labels
    numbers = report(capsys, *given, "data.targets=[age]")
    assert re.search(r"\nage \(train\) 0\.479 0\.288 0 0\.958\n", numbers)


def test_it_goes_on_after_structural_problems_and_names_other_formats(
    own_folder: Path, capsys: pytest.CaptureFixture[str]
):
    root = write_folder(own_folder / "d", train=4)
    shutil.rmtree(root / "val")
    (root / "train" / "emu").mkdir()
    for number in range(3):
        (root / f"train/cat/{number}.jpg").rename(root / f"train/cat/{number}.HEIC")
    shutil.copy(root / "train/cat/3.jpg", root / "train/dog/copy.jpg")
    first, second, formats, odd, *_ = report(capsys, "data=folder", f"data.root={root}").split("\n - ")[1:]
    assert first.startswith("Training cannot start: data.root=")
    assert "it has no folder val" in first
    assert "the class folder" in second
    assert formats.startswith("left out 3 of 9 images, which DALI does not decode: 3 .heic")
    assert odd.startswith("1 pair of identical files has different targets")
