"""The info command on masks, boxes and points."""

import re
from pathlib import Path

import numpy as np
import pytest
from annotated import coco, mask, photo
from PIL import Image

from augment.tools.info.command import main

pytestmark = pytest.mark.usefixtures("own_folder")


def report(capsys: pytest.CaptureFixture[str], *overrides: str) -> str:
    """Return what is printed, with single blanks."""
    assert main(overrides) == 0
    with Image.open("outputs/info.png") as drawing:
        assert drawing.width == 1320
    return re.sub(" +", " ", capsys.readouterr().out)


def test_objects_are_counted_by_class_and_size_and_bad_ones_named(capsys: pytest.CaptureFixture[str]) -> None:
    found = [{"bbox": [0, 0, 9, 4]}, {"bbox": [0, 0, 16, 16], "category_id": 7, "iscrowd": 1}, {"bbox": [1, 1, 0, 4]}]
    objects = [found[0], found[1], found[0] | {"image_id": 11}, found[2] | {"image_id": 12}]
    file = coco("t.json", [(30, 20), (31, 20), (32, 20), (33, 20)], objects)
    said = report(capsys, "data=coco", f"data.train={file}", f"data.val={file}")
    assert said.count("2.jpg has a bad object, annotations[3] of t.json: the box") == 2
    assert said.startswith("coco: 8 images, 4 in train and 4 in val (50%); 2 classes\n")
    assert "\ncat 2 2 2 2\ndog 1 1 1 1\n" in said
    assert "\nbox, px 6..16: median 6\n" in said
    assert "\nno objects 2 in train, 2 in val\ncrowd 1 in train, 1 in val\naspect" in said


def test_pixels_are_counted_by_class(capsys: pytest.CaptureFixture[str]) -> None:
    for split, label in (("train", 1), ("val", 2)):
        for number in range(3):
            photo(Path(f"set/{split}/images/{number}.jpg"), 12, 10 + number)
            labels = np.zeros((10 + number, 12))
            labels[:5], labels[0] = label, 255
            mask(Path(f"set/{split}/masks/{number}.png"), labels)
    mask(Path("set/val/masks/0.png"), np.zeros((5, 5)))
    said = report(capsys, "data=masks", "data.root=set")
    assert f"\n0 3 2 {12 * (5 + 6 + 7)} {12 * (6 + 7)}\n1 3 0 144 0\n2 0 2 0 96\n" in said
    assert re.search(r"\nignored, % \S*\.\.10: median ", said)
    assert "has 10 x 12 pixels, but its mask set/val/masks/0.png has 5 x 5" in said
    assert "1 class has no image in train and cannot be learned: 2 (0)" in said


def test_labeled_points_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        photo(Path(f"{number}.jpg"), 12, 10 + number)
    Path("t.csv").write_text("path,x_a,y_a,x_b,y_b\n0.jpg,1,1,2,2\n1.jpg,,,2,2\n2.jpg,,,,\n")
    said = report(capsys, "data=points", "data.train=t.csv", "data.val=t.csv")
    assert "\na 1 1\nb 2 2\n" in said
    assert "\nno points 1 in train, 1 in val\n" in said
