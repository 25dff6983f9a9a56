"""COCO's JSON as boxes, instance masks, keypoints and masks of classes."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from annotated import coco, load, photo
from PIL import Image, ImageOps

from augment.data.sources import load_dataset, parse_data
from augment.data.targets.boxes import Boxes
from augment.support.errors import UserError

pytestmark = pytest.mark.usefixtures("own_folder")

SIZES = [(30, 20), (24, 24)]
BOX: dict[str, Any] = {"bbox": [2, 3, 10, 5]}
SQUARE = [[2, 3, 12, 3, 12, 8, 2, 8]]


def found(*annotations: dict[str, Any], **settings: Any) -> Any:
    """Return what is loaded of two images in train and in val, of which the first have these annotations."""
    train = coco("train.json", SIZES, annotations)
    return load("coco", train=train, val=train, images=".", **settings)


def test_boxes_are_edges_and_labels_count_the_categories_by_id() -> None:
    dataset = found(BOX, {"bbox": [0, 0, 30, 20], "category_id": 7, "iscrowd": 1})
    first, second = dataset.train.targets
    assert dataset.classes == ("background", "cat", "dog")
    assert first.boxes.tolist() == [[2, 3, 12, 8], [0, 0, 30, 20]]
    assert (first.labels.tolist(), first.crowd.tolist(), first.image_id) == ([1, 2], [False, True], 10)
    assert (len(second), dataset.task) == (0, "detect"), "an image without objects is legal"


def test_boxes_that_reach_out_are_clipped_with_a_notice() -> None:
    dataset = found({"bbox": [-5, 3, 10, 40]}, {"bbox": [20, 0, 10.5, 20]})
    assert dataset.train.targets[0].boxes.tolist() == [[0, 3, 5, 20], [20, 0, 30, 20]]
    assert (
        "clipped 2 boxes that extend beyond the image" in dataset.notices[0]
    )  # one in train, one in val: half a pixel is nothing
    assert "such as annotations[0] of train.json" in dataset.notices[0]


def test_a_notice_of_many_clipped_boxes_explains_the_order_of_their_numbers() -> None:
    reaching_out, right_and_bottom = {"bbox": [-5, 3, 10, 10]}, {"bbox": [20, 10, 28, 18]}
    assert "width and height" in found(BOX, right_and_bottom).notices[0]
    assert "width and height" not in found(*[BOX] * 3, reaching_out).notices[0]


def test_outlines_become_masks_of_instances_or_of_classes() -> None:
    runs = {"size": [20, 30], "counts": [0, 20 * 2, 20 * 28]}
    given = (BOX | {"segmentation": SQUARE}, {"bbox": [0, 0, 2, 20], "category_id": 7, "segmentation": runs})
    expected = np.zeros((20, 30), np.uint8)
    expected[:, :2], expected[3:8, 2:12] = 2, 1
    instances = found(*given, instances=True).train.targets[0].instances
    np.testing.assert_array_equal(instances.read(), expected)
    dataset = found(*given, task="segment")
    assert (dataset.task, dataset.classes) == ("segment", ("background", "cat", "dog"))
    np.testing.assert_array_equal(dataset.train.targets[0].read(), expected)
    assert not dataset.train.targets[1].read().any()


def test_keypoints_have_names_and_pairs() -> None:
    points = {"keypoints": ["nose", "left_eye", "right_eye"]}
    train = coco("train.json", SIZES, [BOX | {"keypoints": [4, 5, 2, 6, 5, 1, 7, 8, 0]}, BOX | {"category_id": 7}])
    content = json.loads(Path(train).read_text())
    content["categories"][1] |= points
    Path(train).write_text(json.dumps(content))
    dataset = load("coco", train=train, val=train, keypoints=True)
    assert isinstance(dataset.kind, Boxes)
    assert dataset.kind.point_names == ("nose", "left_eye", "right_eye")
    assert dataset.kind.flip_pairs == ((1, 2),)
    objects = dataset.train.targets[0]
    assert objects.points.tolist() == [[[4, 5, 2], [6, 5, 1], [0, 0, 0]], [[0, 0, 0]] * 3]
    content["categories"][1]["keypoints"] = ["nose", "right_eye", "left_eye"]
    Path("val.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"val.json: its keypoints differ from nose, left_eye, right_eye\. Use the"):
        load("coco", train=train, val="val.json", keypoints=True)
    assert len(load("coco", train=train, val="val.json").val) == 2, "keypoints are not used"
    content["annotations"][0]["keypoints"][0] = 1e300
    Path(train).write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"annotations\[0\] of train.json: 9 numbers as keypoints"):
        load("coco", train=train, val=train, keypoints=True)


@pytest.mark.parametrize(
    ("annotation", "why"),
    [
        ({"bbox": [2, 3, -4, 5]}, r"annotations\[0\] of train.json: the box \[2.0, 3.0, -2.0, 8.0\] has no area, or"),
        ({"bbox": [2, 3, 0, 5]}, r"annotations\[0\] of train.json: the box .* has no area"),
        ({"bbox": [2, 3, float("nan"), 5]}, r"annotations\[0\] of train.json: the box .*nan.* is not finite"),
        ({"bbox": [2, 3, float("inf"), 5]}, ".*inf.* is not finite"),
        ({"bbox": [40, 3, 5, 5]}, r"annotations\[0\] of train.json: the box \[40.0, 3.0, 45.0, 8.0\] is outside"),
        ({"bbox": [2, 3]}, r"annotations\[0\] of train.json: not enough values"),
        ({"bbox": [1, 1, 2, 2], "category_id": 5}, r"annotations\[0\] .*: the category 5 is not listed"),
        ({}, r"annotations\[0\] of train.json: no 'bbox'"),
    ],
)
def test_a_bad_object_is_named_and_its_image_left_out(annotation: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=rf"1 of 2 train images cannot be used:\n  .*0.jpg has a bad object, {why}"):
        found(annotation)
    dataset = found(annotation, skip_bad=True)
    assert [file.name for file in dataset.train.files] == ["1.jpg"]
    assert [image.file.name for image in dataset.train.left_out] == ["0.jpg"]


@pytest.mark.parametrize(
    ("outline", "why"),
    [
        ([[1, 2, 3, 4]], "a polygon of 4 numbers"),
        ({"size": [20, 30], "counts": [5, 6]}, "runs of 11 pixels"),
        ({"size": [30, 20], "counts": "52"}, "runs of"),
        ([], "has an object without an outline"),
    ],
)
def test_an_outline_that_does_not_fit_is_named(outline: object, why: str) -> None:
    with pytest.raises(UserError, match=why):
        found(BOX | {"segmentation": outline}, instances=True)
    assert len(found(BOX | {"segmentation": outline}).train) == 2, "outlines are not needed"


def test_outlines_that_need_too_much_memory_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = BOX | {"segmentation": {"size": [20, 30], "counts": [20, 560, 20]}}
    objects = runs, BOX | {"segmentation": SQUARE}
    monkeypatch.setattr("augment.data.formats.annotations.MOST_COVERED", 560 + 50)
    assert len(found(*objects, instances=True).train) == 2
    monkeypatch.setattr("augment.data.formats.annotations.MOST_COVERED", 560 + 49)
    with pytest.raises(UserError, match="has objects of 610 pixels, but at most 609 are allowed"):
        found(*objects, instances=True)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"images": [{"id": 1, "file_name": "0.jpg"}, {"id": 1, "file_name": "1.jpg"}]},
            r"images\[1\].* id 1 of 0.jpg",
        ),
        ({"images": [{"id": 1, "file_name": "0.jpg"}, {"id": 2, "file_name": "0.jpg"}]}, "0.jpg is listed 2 times"),
        (
            {"images": [{"id": 1, "file_name": "none.jpg"}]},
            r"cannot find none.jpg, images\[0\] of train.json.* Set data.im",
        ),
        ({"images": [{"id": 1, "file_name": "0\0.jpg"}]}, r"images\[0\] is .*needs an id and a valid file_name"),
        ({"images": [{"id": 1, "file_name": "\ud800.jpg"}]}, r"images\[0\] is .*needs an id and a valid file_name"),
        ({"images": [{"id": float("inf"), "file_name": "0.jpg"}]}, r"images\[0\] is .*needs an id"),
        ({"images": [{"file_name": "0.jpg"}]}, r"images\[0\] is .*needs an id and a valid file_name"),
        ({"images": []}, "has no images"),
        ({"categories": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]}, r"categories\[1\] repeats the id 1"),
        ({"categories": None}, "has no list 'categories'"),
    ],
)
def test_a_file_that_is_no_coco_file_says_why(change: dict[str, Any], why: str) -> None:
    train = coco("train.json", SIZES, [], **change)
    with pytest.raises(UserError, match=why):
        load("coco", train=train, val_fraction=0.5)


def test_annotations_of_other_images_are_counted() -> None:
    dataset = found(BOX, BOX | {"image_id": 99}, BOX | {"image_id": 98})
    assert any("2 annotations belong to images that are not listed" in notice for notice in dataset.notices)


def test_an_image_of_another_size_than_in_the_file_is_named() -> None:
    train = coco("train.json", SIZES, [BOX])
    photo(Path("0.jpg"), 60, 40)
    with pytest.raises(UserError, match=r"0.jpg has 40 x 60 pixels, but 20 x 30 in images\[0\] of train.json"):
        load("coco", train=train, val=train)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_objects_of_an_image_as_it_is_shown_are_turned_to_its_file(orientation: int) -> None:
    """A box and a mask are where Pillow's own turn, undone, has them."""
    stored = Image.new("L", (30, 20))
    exif = stored.getexif()
    exif[0x0112] = orientation
    upright = ImageOps.exif_transpose(_with(stored, exif))
    expected = np.zeros((20, 30), np.uint8)
    expected[3:8, 2:12] = 1
    shown = np.asarray(ImageOps.exif_transpose(_with(Image.fromarray(expected), exif)))
    (top, left), (bottom, right) = (
        np.argwhere(shown).min(axis=0).tolist(),
        (np.argwhere(shown).max(axis=0) + 1).tolist(),
    )
    box = {"bbox": [left, top, right - left, bottom - top]}
    outline = {"segmentation": [[left, top, right, top, right, bottom, left, bottom]]}
    train = coco("train.json", [upright.size, (9, 9)], [box | outline])
    photo(Path("0.jpg"), 30, 20, orientation=orientation)
    objects = load("coco", train=train, val=train, instances=True).train.targets[0]
    np.testing.assert_allclose(objects.boxes, [[2, 3, 12, 8]], atol=1e-5)
    np.testing.assert_array_equal(objects.instances.read(), expected)


def test_objects_of_an_image_as_it_is_stored_stay_where_they_are() -> None:
    train = coco("train.json", SIZES, [{"bbox": [20, 3, 10, 5]}])
    photo(Path("0.jpg"), 30, 20, orientation=6)
    assert load("coco", train=train, val=train).train.targets[0].boxes.tolist() == [[20, 3, 30, 8]]


def _with(image: Any, exif: Any) -> Any:
    """Return an image that has been saved with EXIF."""
    stream = BytesIO()
    image.save(stream, "PNG", exif=exif)
    return Image.open(stream)


def test_folds_and_shares_keep_classes_apart_and_balance_is_rejected() -> None:
    annotations = [BOX | {"image_id": 10 + n, "category_id": 3 + 4 * (n % 2)} for n in range(12)]
    train = coco("train.json", [(30, 20 + n) for n in range(12)], annotations)
    for settings in ({"val_fraction": 0.34}, {"folds": 3, "fold": 1}):
        dataset = load("coco", train=train, **settings)
        labels = [target.labels[0] for target in dataset.val.targets]
        assert (len(dataset.train), sorted(labels)) == (8, [1, 1, 2, 2])
    assert len(load("coco", train=train, val_fraction=0.34, fraction=0.5).train) == 4
    with pytest.raises(UserError, match=r"data.balance=oversample does not support boxes. Allowed: none"):
        load("coco", train=train, val_fraction=0.34, balance="oversample")


@pytest.mark.parametrize("of_images", [int, float, str, "img{}".format, "00{}".format])
@pytest.mark.parametrize("of_annotations", [None, float, str])
def test_ids_of_any_type_are_joined(of_images: Any, of_annotations: Any) -> None:
    numeric = isinstance(of_images, type)
    join = of_annotations if of_annotations and numeric else of_images
    names = [{"id": of_images(number), "file_name": f"{number}.jpg"} for number in (0, 1)]
    given = [BOX | {"image_id": join(number), "category_id": join(number + 3)} for number in (0, 1, 1)]
    categories = [{"id": of_images(3), "name": "cat"}, {"id": of_images(4), "name": "dog"}]
    train = coco("train.json", SIZES, given, images=names, categories=categories)
    dataset = load("coco", train=train, val=train)
    assert [target.labels.tolist() for target in dataset.train.targets] == [[1], [2, 2]]
    assert [target.image_id for target in dataset.train.targets] == ([0, 1] if numeric else [1, 2])


def test_ids_that_lose_something_are_rejected_and_a_file_without_objects_fails() -> None:
    with pytest.raises(UserError, match=r"images\[0\]"):
        load(
            "coco", train=coco("train.json", SIZES, [BOX], images=[{"id": 1.5, "file_name": "0.jpg"}]), val_fraction=0.5
        )
    with pytest.raises(
        UserError, match=r"no image of train has an object.*1 annotation belongs to images that are not listed"
    ):
        found(BOX | {"image_id": "elsewhere"})
    with pytest.raises(UserError, match="no image of train has an object"):
        found(task="segment")
    with pytest.raises(UserError, match=r"^data\.root: unknown key\. Did you mean 'images'\?"):
        found(BOX, root=".")


def test_a_category_of_the_background_is_label_zero() -> None:
    categories = [{"id": 0, "name": "background"}, {"id": 3, "name": "cat"}]
    train = coco("train.json", SIZES, [BOX | {"segmentation": SQUARE}], categories=categories)
    for task in ("detect", "segment"):
        assert load("coco", train=train, val=train, task=task).classes == ("background", "cat")
    assert load("coco", train=train, val=train, task="segment").train.targets[0].read().max() == 1
    train = coco("train.json", SIZES, [BOX | {"category_id": 0}, BOX], categories=categories)
    with pytest.raises(UserError, match=r"annotations\[0\] .*'background'.*Rename the class"):
        load("coco", train=train, val=train)


def test_runs_need_no_size_of_the_image() -> None:
    runs = {"size": [20, 30], "counts": [0, 20 * 2, 20 * 28]}
    names = [{"id": 10, "file_name": "0.jpg"}, {"id": 11, "file_name": "1.jpg"}]
    train = coco("train.json", SIZES, [BOX | {"segmentation": runs}], images=names)
    assert load("coco", train=train, val=train, task="segment").train.targets[0].read()[:, :2].all()
    train = coco("train.json", SIZES, [BOX | {"segmentation": {**runs, "size": [30, 20]}}], images=names)
    with pytest.raises(UserError, match=r"0.jpg has 20 x 30 pixels, but 30 x 20"):
        load("coco", train=train, val=train, task="segment")


def test_names_that_no_file_can_have_are_rejected() -> None:
    images = [{"id": 10, "file_name": "\ud800.jpg"}, {"id": 11, "file_name": "1.jpg"}]
    given = {"source": "coco", "train": coco("train.json", SIZES, [BOX], images=images), "val_fraction": 0.5}
    with pytest.raises(UserError, match=r"images\[0\] is .*needs an id and a valid file_name"):
        load_dataset(parse_data(given))


def test_the_folders_of_missing_images_are_named() -> None:
    files = [coco(f"photos/{name}/{name}.json", SIZES, [BOX]) for name in ("train", "val")]
    with pytest.raises(UserError, match=r"photos contains no files, only train/, val/\. Set .* set data\.train_images"):
        load("coco", train=files[0], val=files[1], images="photos")
    load("coco", train=files[0], val=files[1], train_images="photos/train", val_images="photos/val")
