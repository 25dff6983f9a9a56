"""YOLO's data sets."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from annotated import load, photo

from augment.support.errors import UserError

pytestmark = pytest.mark.usefixtures("own_folder")

YAML = "path: .\ntrain: images/train\nval: images/val\nnames: [cat, dog]\n"


def put(*lines: str, yaml: str = YAML) -> None:
    """Write an image of 40 x 20 with these labels and one without objects, in train and in val."""
    for split in ("train", "val"):
        for number in range(2):
            photo(Path(f"set/images/{split}/{number}.jpg"), 40, 20)
        Path(f"set/labels/{split}").mkdir(parents=True, exist_ok=True)
        Path(f"set/labels/{split}/0.txt").write_text("\n".join(lines) + "\n")
        Path(f"set/labels/{split}/1.txt").write_text("")
    Path("set/data.yaml").write_text(yaml)


def test_boxes_are_shares_of_the_image() -> None:
    put("1 0.25 0.5 0.5 0.2", "", "0 .5 .5 1 1")
    dataset = load("yolo", root="set")
    first, second = dataset.train.targets
    assert dataset.classes == ("background", "cat", "dog")
    np.testing.assert_allclose(first.boxes, [[0, 8, 20, 12], [0, 0, 40, 20]], atol=1e-5)
    assert (first.labels.tolist(), len(second), len(dataset.val)) == ([2, 1], 0, 2)


def test_the_current_folder_may_hold_the_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    put("1 0.25 0.5 0.5 0.2")
    monkeypatch.chdir("set")
    assert [len(target) for target in load("yolo", root=".").train.targets] == [1, 0]


def test_outlines_are_masks_and_have_boxes() -> None:
    put("0 0.1 0.1 0.5 0.1 0.5 0.5 0.1 0.5", yaml=YAML.replace("[cat, dog]", "{3: dog, 0: cat, 8: emu}"))
    dataset = load("yolo", root="set/data.yaml", instances=True)
    target = dataset.train.targets[0]
    assert dataset.classes == ("background", "cat", "dog", "emu"), "in the order of their numbers"
    np.testing.assert_allclose(target.boxes, [[4, 2, 20, 10]], atol=1e-5)
    assert (target.instances.read() == 1).sum() == 16 * 8
    assert load("yolo", root="set", task="segment").train.targets[0].read().sum() == 16 * 8


def test_a_txt_may_list_the_images_and_folders_may_have_been_moved() -> None:
    put("1 .5 .5 1 1", yaml=YAML.replace("path: .", "path: /elsewhere").replace("images/val", "val.txt"))
    Path("set/val.txt").write_text("./images/val/1.jpg\n")
    Path("set/labels/val/1.txt").unlink()
    with pytest.raises(UserError, match="no image of val has a label file"):
        load("yolo", root="set")
    Path("set/val.txt").write_text("./images/val/1.jpg\n./images/val/0.jpg\n")
    dataset = load("yolo", root="set")
    assert [file.name for file in dataset.val.files] == ["1.jpg", "0.jpg"]
    assert "1 of 2 val images have no label file" in dataset.notices[0]


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_shares_are_of_the_image_as_it_is_shown(orientation: int) -> None:
    put("0 0.25 0.125 0.5 0.25")  # a quarter and a half from the top left corner
    photo(Path("set/images/train/0.jpg"), 40, 20, orientation=orientation)
    expected = {3: [20, 15, 40, 20], 6: [0, 10, 10, 20], 8: [30, 0, 40, 10]}[orientation]
    np.testing.assert_allclose(load("yolo", root="set").train.targets[0].boxes, [expected], atol=1e-4)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("2 .5 .5 1 1", "the class 2 has no name"),
        ("a .5 .5 1 1", "could not convert"),
        ("0 .5 .5 1", "3 numbers instead of 4, 6, 8 and so on"),
        ("0 .5 .5 1 x", "could not convert"),
        ("0 20 10 5 5", r"\[20.0, 10.0, 5.0, 5.0\] instead of fractions of the image size, 0 to 1"),
        ("0 .5 .5 nan 1", "instead of fractions of the image size"),
        ("0 .5 .5 0 1", "has no area"),
        ("0 .5 .5 -.2 1", "instead of fractions"),
    ],
)
def test_a_bad_line_is_named_and_its_image_left_out(line: str, why: str) -> None:
    put("0 .5 .5 1 1", line)
    with pytest.raises(
        UserError, match=rf"images/train/0.jpg has a bad object, line 2 of set/labels/train/0.txt: .*{why}"
    ):
        load("yolo", root="set")
    assert len(load("yolo", root="set", skip_bad=True).train) == 1


@pytest.mark.parametrize(
    ("yaml", "why"),
    [
        ("train: images/train\nval: images/val\n", "has no 'names'"),
        (YAML.replace("[cat, dog]", "[cat, cat]"), "has the same class twice"),
        (YAML.replace("images/train", "images/trian"), "train: set/images/trian does not exist.*Did you mean .*train"),
        (YAML.replace("images/train", r'"a\0"'), "train: set/a\0 does not exist"),
        (YAML.replace("images/train", "data.yaml"), "train: set/data.yaml is not a .txt list. Use a folder of images"),
        (YAML.replace("images/train", "[images/train, ./images/train]"), "train lists set/images/train twice"),
        (YAML.replace("train:", "trains:"), "has no 'train'. Did you mean 'trains'?"),
        (YAML + "kpt_shape: [3, 2]\n", r"has keypoints \(kpt_shape\), which are not supported here"),
    ],
)
def test_a_wrong_data_yaml_says_why(yaml: str, why: str) -> None:
    put("0 .5 .5 1 1", yaml=yaml)
    with pytest.raises(UserError, match=why):
        load("yolo", root="set")


def test_val_can_be_cut_and_a_given_one_is_not_forgotten() -> None:
    put("0 .5 .5 1 1")
    with pytest.raises(UserError, match="without an outline"):
        load("yolo", root="set", task="segment")
    Path("set/data.yaml").write_text(YAML.replace("val: images/val\n", ""))
    dataset: Any = load("yolo", root="set", val_fraction=0.5)
    assert (len(dataset.train), len(dataset.val)) == (1, 1)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("[no, yes]", ("no", "yes")),
        ("{0: off, 1: on}", ("off", "on")),
        ("{0: 01, 1: 010}", ("01", "010")),
        ("[007, 1e3]", ("007", "1e3")),
        ("[12:30, null]", ("12:30", "null")),
        ("[1.10, 2020-01-01]", ("1.10", "2020-01-01")),
    ],
)
def test_names_are_text(names: str, expected: tuple[str, ...]) -> None:
    put("0 .5 .5 1 1", "1 .5 .5 .5 .5", yaml=YAML.replace("[cat, dog]", names))
    assert load("yolo", root="set").classes[1:] == expected


def test_a_byte_order_mark_and_a_class_written_as_a_fraction_are_read() -> None:
    put("\ufeff1.0 .5 .5 1 1", yaml=f"\ufeff{YAML}")
    assert load("yolo", root="set").train.targets[0].labels.tolist() == [2]


def test_a_category_of_the_background_is_label_zero() -> None:
    put("2 .5 .5 1 1", "1 .5 .5 .5 .5", yaml=YAML.replace("[cat, dog]", "[background, cat, dog]"))
    dataset = load("yolo", root="set")
    assert dataset.classes == ("background", "cat", "dog")
    assert dataset.train.targets[0].labels.tolist() == [2, 1]
    put("0 .5 .5 1 1", "1 .5 .5 .5 .5", yaml=YAML.replace("[cat, dog]", "[__background__, cat]"))
    with pytest.raises(UserError, match=r"'__background__'.*Rename the class"):
        load("yolo", root="set")


def test_repeated_objects_and_splits_without_objects_are_reported() -> None:
    put("0 .5 .5 1 1", "0 .5 .5 1 1")
    assert any(
        "2 objects have the class and the box of an earlier object" in notice
        for notice in load("yolo", root="set").notices
    )
    put("")
    with pytest.raises(UserError, match="no image of train has an object"):
        load("yolo", root="set")


def test_labels_that_are_a_pipe() -> None:
    put("0 .5 .5 1 1")
    for split in ("train", "val"):
        (labels := Path(f"set/labels/{split}/0.txt")).unlink()
        os.mkfifo(labels)
    with pytest.raises(UserError, match="it is a named pipe"):
        load("yolo", root="set")
