"""The drawn sets with masks, boxes and points: exact, the same every time, and readable as other sets are."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from augment.data.dataset import Dataset, check_dataset
from augment.data.generated import annotated
from augment.data.generated.annotated import HOUSE_FLIP_PAIRS, OBJECT_NAMES, draw_objects, draw_points, runs_of
from augment.data.sources import parse_data


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder in which sets of 30 and 5 images are drawn."""
    monkeypatch.setattr(annotated, "TRAIN", 30)
    monkeypatch.setattr(annotated, "VAL", 5)
    return tmp_path


def load(source: str, root: Path, **settings: object) -> Dataset:
    return check_dataset(parse_data({"source": source, "dir": str(root), **settings}).load(), source)


def pixels_of(file: Path) -> np.ndarray:
    with Image.open(file) as image:
        return np.asarray(image)


def redness(image: np.ndarray | Image.Image) -> np.ndarray:
    pixels = np.asarray(image, np.float64)
    return pixels[..., 0] - pixels[..., 1]


def test_an_image_depends_only_on_its_split_and_index() -> None:
    first, again, other = (draw_objects(split, 7) for split in ("train", "train", "val"))
    assert first.image.tobytes() == again.image.tobytes()
    assert np.array_equal(first.instances, again.instances)
    assert first.image.tobytes() != other.image.tobytes()
    assert draw_points("val", 1)[0].tobytes() == draw_points("val", 1)[0].tobytes()


def test_masks_lie_on_what_they_name() -> None:
    """Hearts are red: a mask that is a pixel off fits them worse."""
    heart = OBJECT_NAMES.index("heart")
    fits = dict.fromkeys([(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0)], 0.0)
    for index in range(40):
        scene = draw_objects("train", index)
        shape, red = scene.mask == heart, redness(scene.image)
        for shift in fits:
            fits[shift] += float((red * np.roll(shape, shift, (0, 1))).sum())
    assert max(fits, key=lambda shift: fits[shift]) == (0, 0)


def test_the_three_forms_of_an_image_agree(small: Path) -> None:
    masks, boxes = load("sample_masks", small), load("sample_boxes", small, instances=True)
    assert (masks.task, boxes.task, len(masks.train), len(masks.val)) == ("segment", "detect", 30, 5)
    assert masks.train.files == boxes.train.files
    counts = []
    for file, mask, found in zip(masks.train.files, masks.train.targets, boxes.train.targets, strict=True):
        labels, instances = mask.read(), found.instances.read()
        assert labels.shape == pixels_of(file).shape[:2]
        counts.append(len(found))
        for number, (label, (left, top, right, bottom)) in enumerate(zip(found.labels, found.boxes, strict=True), 1):
            rows, columns = np.nonzero(instances == number)
            assert (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) == (left, top, right, bottom)
            assert set(labels[instances == number]) == {label}
    assert set(counts) == {0, 1, 2, 3, 4}
    assert len({pixels_of(file).shape for file in masks.train.files}) == 4


def test_objects_are_written_in_cocos_form(small: Path) -> None:
    folder = annotated.generate_objects(small)
    content = json.loads((folder / "val.json").read_text())
    assert [category["name"] for category in content["categories"]] == list(OBJECT_NAMES[1:])
    for found in content["annotations"]:
        split, _, file = content["images"][found["image_id"]]["file_name"].split("/")
        instances = pixels_of(folder / split / "instances" / file.replace("jpg", "png"))
        height, width = found["segmentation"]["size"]
        runs = found["segmentation"]["counts"]
        shape = np.repeat(np.arange(len(runs)) % 2, runs).reshape(width, height).T
        assert shape.sum() == found["area"]
        (number,) = np.unique(instances[shape > 0])
        assert np.array_equal(shape > 0, instances == number)
    assert runs_of(np.array([[True, False], [True, True]])) == [0, 2, 1, 1]


def test_points_are_corners_of_the_house(small: Path) -> None:
    dataset = load("sample_points", small)
    assert (dataset.task, dataset.kind.flip_pairs) == ("keypoints", HOUSE_FLIP_PAIRS)
    inside = outside = 0.0
    visibilities: set[float] = set()
    for file, target in zip(dataset.train.files, dataset.train.targets, strict=True):
        found, red = np.array(target), redness(pixels_of(file))
        visibilities |= set(found[:, 2])
        for left, right in HOUSE_FLIP_PAIRS:
            if found[left, 2] and found[right, 2]:
                assert found[left, 0] < found[right, 0]
        if (found[:, 2] == 2).all():  # the roof is red below its top, and nothing is above
            towards = found[1:3, :2].mean(axis=0) - found[0, :2]
            for step, sign in ((0.2, 1), (-0.2, -1)):
                x, y = np.rint(found[0, :2] + step * towards).astype(int).clip(0)
                inside, outside = (inside + red[y, x], outside) if sign > 0 else (inside, outside + red[y, x])
    assert visibilities == {0, 1, 2}
    assert inside > 3 * abs(outside)
