"""Masks, boxes and points of a user's own code."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest
from own_data import load, own_module, written  # noqa: F401  (a fixture)
from PIL import Image

from augment.data.targets.boxes import Boxes
from augment.data.targets.keypoints import Keypoints
from augment.pipeline.geometry.batch_assembly import TargetReader
from augment.support.errors import UserError

pytestmark = pytest.mark.usefixtures("own_module")

CODE = """
    import numpy as np, torch
    from pathlib import Path
    from PIL import Image
    READ = []
    class Items:
        def __len__(self):
            return 3
        def __getitem__(self, index):
            READ.append(index)
            return np.full((10 + index, 12, 3), index, np.uint8), target(index)
    train = Items
    def target(index):
"""


@pytest.mark.parametrize(
    "target",
    [
        "np.full((10 + index, 12), index, np.int64)",
        "torch.full((1, 10 + index, 12), index)",
        "Image.new('L', (12, 10 + index), index)",
        "Image.new('P', (12, 10 + index), index)",
    ],
)
def test_masks_are_read_when_they_are_needed(target: str) -> None:
    dataset = written(f"{CODE}        return {target}\n", task="segment")
    assert (dataset.classes, dataset.task) == (("0", "1", "2"), "segment")
    np.testing.assert_array_equal(dataset.train.targets[2].read(), np.full((12, 12), 2))
    assert str(dataset.train.targets[2]) == "mine.train[2]"


def test_masks_without_a_label_except_0_are_rejected() -> None:
    """Binary masks often store 255 for objects, but 255 is ignored."""
    with pytest.raises(UserError, match=r"^data\.train: masks have no label except 0.* 255 is ignored"):
        written(f"{CODE}        return np.full((10 + index, 12), index % 2 * 255)\n", task="segment")


def test_with_names_no_mask_is_read_before_it_is_needed() -> None:
    Path("names.txt").write_text("a\nb\n")
    code = f"{CODE.replace('return 3', 'return 20')}        return np.full((10 + index, 12), index)\n"
    dataset = written(code, task="segment", classes="names.txt")
    import mine  # type: ignore[import-not-found]

    assert len(set(mine.READ)) == 8  # to see whether they stay the same
    assert dataset.classes == ("a", "b")
    with pytest.raises(UserError, match=r"item 2 of mine.train has the label 2 in its mask. Allowed: 0 to 1, and 255"):
        dataset.train.targets[2].read()


def test_threads_read_masks_one_by_one() -> None:
    """A Dataset need not be thread-safe, and may write each mask to the same memory."""
    code = """
        import time
        import numpy as np
        inside, together = [], []
        class Mask(np.ndarray):
            def detach(self):
                inside.append(1)
                time.sleep(0.02)
                together.append(len(inside))
                inside.pop()
                return self
            def cpu(self):
                return np.asarray(self)
        class Items:
            def __len__(self):
                return 8
            def __getitem__(self, index):
                return np.zeros((10, 12, 3), np.uint8), np.full((10, 12), index).view(Mask)
        train = Items
    """
    dataset = written(code, task="segment")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda target: target.read(), dataset.train.targets))
    import mine

    assert [mask.max() for mask in found] == list(range(8))
    assert set(mine.together) == {1}


class Changing:
    """A Dataset whose masks have another label in each epoch, and that cannot be pickled."""

    classes = ("a", "b")

    def __init__(self, task: str) -> None:
        self.task, self.label, self.lock = task, 0, Lock()

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[object, object]:
        mask = np.full((10, 12), self.label, np.uint8)
        objects = {"boxes": [[0, 0, 9, 9]], "labels": [1], "masks": mask[None]}
        return np.zeros((10, 12, 3), np.uint8), mask if self.task == "segment" else objects


@pytest.mark.parametrize("task", ["segment", "detect"])
def test_val_has_the_classes_of_train_in_their_order(task: str) -> None:
    train, val = Changing(task), Changing(task)
    val.classes = ("b", "a")
    with pytest.raises(UserError, match=r"^data: val has the class names b, a, but train has"):
        load(train, val, task=task)  # type: ignore[arg-type]


@pytest.mark.parametrize("task", ["segment", "detect"])
def test_masks_are_read_again_in_each_epoch(task: str) -> None:
    items: Any = Changing(task)
    reader = TargetReader(load(items, task=task, instances=task == "detect").train, 2)
    for items.label in (0, 1):
        reader.announce(np.arange(3))
        found = reader.take([0, 1, 2])
        masks = found if task == "segment" else [mask for _, mask in found]
        assert [mask.labels.max() for mask in masks] == [items.label] * 3


@pytest.mark.parametrize("task", ["segment", "detect"])
def test_targets_that_are_drawn_at_random_are_rejected(task: str) -> None:
    """An image and its target are read at different times, and would not belong together."""

    class Drawn(Changing):
        def __getitem__(self, index: int) -> tuple[object, object]:
            self.label += index == 2
            return super().__getitem__(index)

    with pytest.raises(UserError, match=r"^data\.train: item 2 of Drawn .* Return the same target each time"):
        load(Drawn(task), task=task)  # type: ignore[arg-type]


def test_paths_are_read_as_files() -> None:
    code = """
        from PIL import Image
        for index in range(3):
            Image.new("L", (12, 10), index).save(f"{index}.png")
        train = [(f"photos/{index}.png", f"{index}.png") for index in range(3)]
    """
    dataset = written(code, task="segment")
    assert [file.name for file in dataset.train.files] == ["0.png", "1.png", "2.png"]
    assert dataset.train.targets[1].read().max() == 1
    assert len(dataset.classes) == 3


def test_boxes_are_given_as_torchvision_has_them() -> None:
    target = '{"boxes": torch.tensor([[0., 1, 2, 3]] * index).reshape(-1, 4), "labels": torch.full((index,), 2)}'
    dataset = written(f"{CODE}        return {target}\n", task="detect")
    assert dataset.classes == ("background", "1", "2")
    assert [len(objects) for objects in dataset.train.targets] == [0, 1, 2]
    assert dataset.train.targets[2].boxes.tolist() == [[0, 1, 2, 3]] * 2
    masks = '"masks": torch.arange(10 * 12).reshape(1, 10, 12) < torch.tensor([60, 12]).reshape(2, 1, 1)'
    target = f'{{"boxes": [[0, 0, 12, 5], [0, 0, 12, 1]], "labels": [1, 1], {masks}}}'
    dataset = written(f"{CODE}        return {target}\n", task="detect", instances=True)
    found = dataset.train.targets[0].instances
    assert found is not None
    assert found.read()[[0, 1, 4, 5], 0].tolist() == [2, 1, 1, 0]


def test_objects_keep_their_points_and_the_number_of_their_image() -> None:
    target = '{"boxes": [[0, 0, 9, 9]], "labels": [1], "keypoints": [[[1, 2, 2], [3, 4, 1]]], "image_id": 40 + index}'
    dataset = written(f"{CODE}        return {target}\n", task="detect", targets=["left_ear", "right_ear"])
    assert [objects.image_id for objects in dataset.train.targets] == [40, 41, 42]
    assert dataset.train.targets[1].points.tolist() == [[[1, 2, 2], [3, 4, 1]]]
    assert isinstance(dataset.kind, Boxes)
    assert dataset.kind.flip_pairs == ((0, 1),)


def test_points_may_be_missing_and_have_names() -> None:
    Path("names.txt").write_text("nose\nleft_eye\nright_eye\n")
    code = f"{CODE}        return np.array([[1, 2], [np.nan, 3], [5, 6.5]])\n"
    dataset = written(code, task="keypoints", classes="names.txt")
    assert dataset.train.targets[0] == ((1, 2, 2), (0, 0, 0), (5, 6.5, 2))
    assert isinstance(dataset.kind, Keypoints)
    assert dataset.kind.flip_pairs == ((1, 2),)


@pytest.mark.parametrize(
    ("task", "target", "why"),
    [
        ("segment", "[1, 2]", r"item 0 of mine.train has .*Return a mask: a path"),
        ("segment", "Image.new('RGB', (12, 10))", "a mask of mode RGB"),
        ("segment", "np.zeros((3, 10, 12), int)", "has .*Return a mask"),
        ("segment", "{'masks': 3}", "has .*Return a mask"),
        ("detect", "3", "item 0 of mine.train has as its target an int. Return a dict with"),
        ("detect", '{"boxes": [[1, 1, 0, 3]], "labels": [1]}', "item 0 of mine.train has the box .* has no area"),
        ("detect", '{"boxes": [[1, 1, 2, 3]], "labels": [0]}', "the label 0, but labels of objects begin at 1"),
        ("detect", '{"boxes": [[1, 1, 2, 3]] * index, "labels": [9][:index] * index}', None),
        ("detect", '{"boxes": [], "labels": [], "mask": 1}', r"has mask: unknown key. Did you mean 'masks'\?"),
        ("keypoints", "[[1, 2], [3]]", "item 0 of mine.train has"),
        ("keypoints", "np.zeros((2, 4))", "item 0 of mine.train has"),
        ("keypoints", "np.zeros((2 + index, 2))", r"data.train: has the target .*Use 2 points"),
    ],
)
def test_targets_of_another_form_are_rejected(task: str, target: str, why: str | None) -> None:
    if why is None:
        assert len(written(f"{CODE}        return {target}\n", task=task).train) == 3
        return
    with pytest.raises(UserError, match=why):
        written(f"{CODE}        return {target}\n", task=task)


def test_a_later_item_that_is_wrong_can_be_left_out() -> None:
    code = f'{CODE}        return {{"boxes": [[1, 1, 2 - index, 3]], "labels": [1]}}\n'
    with pytest.raises(UserError, match=r"2 of 3 train images cannot be used:\n  mine.train\[1\] has the box"):
        written(code, task="detect")
    assert len(written(code, task="detect", skip_bad=True).train) == 1


def test_a_pillow_image_that_exif_turns_can_be_left_out() -> None:
    """Its boxes may be in pixels of the image before or after that."""
    code = f"""{CODE}        return {{"boxes": [[1, 1, 2, 3]], "labels": [1]}}
    class Turned(Items):
        def __getitem__(self, index):
            image = Image.new("RGB", (12, 10))
            exif = image.getexif()
            exif[0x0112] = 1 + index
            image.info["exif"] = exif.tobytes()
            return image, target(index)
    train = Turned
    """
    with pytest.raises(UserError, match=r"2 of 3 train images .*\n  mine.train\[1\] is a Pillow image with"):
        written(code, task="detect")
    assert len(written(code, task="detect", skip_bad=True).train) == 1


def test_the_mask_of_a_pillow_image_that_exif_turns_is_rejected_when_it_is_read() -> None:
    class Turned(Changing):
        def __getitem__(self, index: int) -> tuple[object, object]:
            pixels, found = super().__getitem__(index)
            image, exif = Image.fromarray(pixels), Image.Exif()
            exif[0x0112] = 1 + index
            image.info["exif"] = exif.tobytes()
            return image, found

    Path("names.txt").write_text("a\nb\n")
    first, second, _ = load(Turned("segment"), task="segment", classes="names.txt").train.targets
    assert first.read().shape == (10, 12)
    with pytest.raises(UserError, match=r"item 1 of Turned is a Pillow image with an EXIF orientation\. For"):
        second.read()


OBJECT = "{'boxes': [[0, 0, 9, 9]], 'labels': [1], 'keypoints': [[[1, 2, 2], [3, 4, 1]]]}"
FACE = {"keypoints": "return np.array([[1, 2, 2], [3, 4, 2]])", "detect": f"return {OBJECT}"}


@pytest.mark.parametrize("task", FACE)
def test_names_or_settings_pair_points(task: str) -> None:
    code = f"{CODE}        {FACE[task]}\n"
    assert written(code, task=task).kind.flip_pairs is None, "unnamed points"
    assert written(code, task=task, flip_pairs=[[0, 1]]).kind.flip_pairs == ((0, 1),)
    assert written(code, task=task, flip_pairs=[]).kind.flip_pairs == ()
    found = written(code, task=task, targets=["left_eye", "right_eye"])
    assert found.kind.flip_pairs == ((0, 1),)
    assert "left_eye" in (*found.classes, *getattr(found.kind, "point_names", ()))
    with pytest.raises(UserError, match="data"):
        written(code, task=task, targets=["a", "b", "c"])


def test_labels_and_masks_that_a_conversion_changes_are_rejected() -> None:
    for target, why in (
        ('{"boxes": [[0, 0, 9, 9]], "labels": [1.5]}', r"label 1\.5"),
        ('{"boxes": [[0, 0, 9, 9]], "labels": [1], "image_id": 1.5}', r"image_id 1\.5"),
    ):
        with pytest.raises(UserError, match=why):
            written(f"{CODE}        return {target}\n", task="detect")
    opened = "from PIL import Image\n        mask = Image.open('mask.jpg')\n        mask.load()\n        return mask"
    lossy = f"{CODE}        {opened}\n"
    Image.fromarray(np.zeros((6, 5), np.uint8)).save("mask.jpg")
    with pytest.raises(UserError, match=r"lossy compression \(JPEG\).*PNG"):
        written(lossy, task="segment")
