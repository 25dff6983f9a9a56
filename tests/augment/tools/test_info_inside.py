"""The info command on masks, boxes and points."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from annotated import coco, mask, photo
from PIL import Image

from augment.tools.info.command import main

pytestmark = pytest.mark.usefixtures("own_folder")


def report(*overrides: str) -> dict[str, Any]:
    assert main([*overrides, "--json", "info.json"]) == 0
    content: dict[str, Any] = json.loads(Path("info.json").read_text())
    with Image.open("outputs/info.png") as drawing:
        assert drawing.width == 1320
    return content


def test_objects_are_counted_by_class_and_size_and_bad_ones_named(capsys: pytest.CaptureFixture[str]) -> None:
    found = [{"bbox": [0, 0, 9, 4]}, {"bbox": [0, 0, 16, 16], "category_id": 7, "iscrowd": 1}, {"bbox": [1, 1, 0, 4]}]
    objects = [found[0], found[1], found[0] | {"image_id": 11}, found[2] | {"image_id": 12}]
    file = coco("t.json", [(30, 20), (31, 20), (32, 20), (33, 20)], objects)
    content = report("data=coco", f"data.train={file}", f"data.val={file}")
    one = {"train": 1, "val": 1}
    assert content["classes"] == {"cat": {"train": 2, "val": 2}, "dog": one}
    assert content["inside"]["objects"] == {"cat": {"train": 2, "val": 2}, "dog": one}
    assert content["inside"]["counts"] == {
        "no objects": {"train": 2, "val": 2},
        "crowd": one,
        "difficult": {"train": 0, "val": 0},
    }
    assert content["inside"]["spread"]["box, px"] == {"min": 6, "median": 6, "max": 16}
    assert [Path(bad["file"]).name for bad in content["unreadable"]] == ["2.jpg", "2.jpg"]
    out = capsys.readouterr().out
    assert "2.jpg has a bad object, annotations[3] of t.json: the box" in out
    assert "coco: 8 images, 4 in train and 4 in val (50%); 2 classes" in out


def test_pixels_are_counted_by_class(capsys: pytest.CaptureFixture[str]) -> None:
    for split, label in (("train", 1), ("val", 2)):
        for number in range(3):
            photo(Path(f"set/{split}/images/{number}.jpg"), 12, 10 + number)
            labels = np.zeros((10 + number, 12))
            labels[:5], labels[0] = label, 255
            mask(Path(f"set/{split}/masks/{number}.png"), labels)
    mask(Path("set/val/masks/0.png"), np.zeros((5, 5)))
    content = report("data=masks", "data.root=set")
    assert content["inside"]["pixels"] == {
        "0": {"train": 12 * (5 + 6 + 7), "val": 12 * (6 + 7)},
        "1": {"train": 144, "val": 0},
        "2": {"train": 0, "val": 96},
    }
    assert content["inside"]["spread"]["ignored, %"]["max"] == 10
    out = capsys.readouterr().out
    assert "has 10 x 12 pixels, but its mask set/val/masks/0.png 5 x 5" in out
    assert "1 class has no image in train and cannot be learned: 2 (0)" in out


def test_labeled_points_are_counted() -> None:
    for number in range(3):
        photo(Path(f"{number}.jpg"), 12, 10 + number)
    Path("t.csv").write_text("path,x_a,y_a,x_b,y_b\n0.jpg,1,1,2,2\n1.jpg,,,2,2\n2.jpg,,,,\n")
    content = report("data=points", "data.train=t.csv", "data.val=t.csv")
    assert content["classes"] == {"a": {"train": 1, "val": 1}, "b": {"train": 2, "val": 2}}
    assert content["inside"]["counts"] == {"no points": {"train": 1, "val": 1}}
