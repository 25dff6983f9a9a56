"""Pascal VOC's folders."""

from pathlib import Path

import numpy as np
import pytest
from annotated import load, mask, photo

from augment.support.errors import UserError

pytestmark = pytest.mark.usefixtures("own_folder")

OBJECT = (
    "<object><name>{}</name><difficult>{}</difficult><bndbox>"
    "<xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"
)


def put(*objects: str, head: str = "", size: tuple[int, int] = (40, 20)) -> None:
    """Write an image with these objects, and another one with a dog; val has the second one."""
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main", "ImageSets/Segmentation"):
        Path(f"voc/{folder}").mkdir(parents=True, exist_ok=True)
    for name, found in (("a", objects), ("b", (OBJECT.format("dog", 0, 1, 1, 9, 9),))):
        photo(Path(f"voc/JPEGImages/{name}.jpg"), 40, 20)
        measures = f"<size><width>{size[0]}</width><height>{size[1]}</height></size>"
        content = f"{head}<annotation>{measures if name == 'a' else ''}{''.join(found)}</annotation>"
        Path(f"voc/Annotations/{name}.xml").write_text(content)
    for kind in ("Main", "Segmentation"):
        Path(f"voc/ImageSets/{kind}/train.txt").write_text("a\nb\n")
        Path(f"voc/ImageSets/{kind}/val.txt").write_text("b  1\n")


def test_images_and_annotations_in_one_folder() -> None:
    put(OBJECT.format("dog", 0, 1, 1, 40, 20))
    for folder in ("Annotations", "JPEGImages"):
        for file in Path("voc", folder).iterdir():
            file.rename(Path("voc", file.name))
        Path("voc", folder).rmdir()
    settings = {"root": "voc"}
    with pytest.raises(UserError, match=r"no folder JPEGImages\. .*set data\.images=\. data\.annotations=\.$"):
        load("voc", **settings)
    settings |= {"images": ".", "annotations": "."}
    Path("voc/ImageSets/Main/train.txt").unlink()
    with pytest.raises(UserError, match=r"Without lists, set data\.train=null data\.val_fraction=0\.2\.$"):
        load("voc", **settings)
    assert len(load("voc", **settings, train=None, val_fraction=0.5).val) == 1


def test_edges_count_from_one_and_include_the_last_pixel() -> None:
    put(OBJECT.format("dog", 0, 1, 1, 40, 20), OBJECT.format("cat", 1, 5, 2, 5, 3))
    dataset = load("voc", root="voc")
    first, second = dataset.train.targets
    assert dataset.classes == ("background", "cat", "dog")
    assert first.boxes.tolist() == [[0, 0, 40, 20], [4, 1, 5, 3]]
    assert (first.labels.tolist(), first.difficult.tolist()) == ([2, 1], [False, True])
    assert (len(second), len(dataset.val)) == (1, 1)
    Path("names.txt").write_text("dog\nemu\n")
    with pytest.raises(
        UserError, match=r"a.jpg has a bad object, object 2 of .*a.xml: the class cat is missing from data.classes"
    ):
        load("voc", root="voc", classes="names.txt")


def test_objects_may_lack_difficult_but_not_a_name() -> None:
    put(OBJECT.format("dog", 1, 1, 1, 4, 4).replace("<difficult>1</difficult>", ""))
    assert load("voc", root="voc").train.targets[0].difficult.tolist() == [False]
    put(OBJECT.format("dog", 0, 1, 1, 4, 4), OBJECT.format("", 0, 1, 1, 4, 4))
    dataset = load("voc", root="voc", skip_bad=True)
    assert (dataset.classes, len(dataset.train)) == (("background", "dog"), 1)


def test_without_lists_val_is_cut_of_all_annotations() -> None:
    put(OBJECT.format("dog", 0, 1, 1, 40, 20))
    with pytest.raises(UserError, match=r"images of data.val=val"):
        load("voc", root="voc", val_fraction=0.5)
    for file in Path("voc/ImageSets").rglob("*.txt"):
        file.unlink()
    dataset = load("voc", root="voc", train=None, val_fraction=0.5)
    assert (len(dataset.train), len(dataset.val)) == (1, 1)
    with pytest.raises(UserError, match=r"the file .*ImageSets/Main/train.txt does not exist"):
        load("voc", root="voc")


@pytest.mark.parametrize(
    ("head", "objects", "why"),
    [
        ('<!DOCTYPE a [<!ENTITY b "x"><!ENTITY c "&b;&b;">]>', (), "entity declarations"),
        (
            '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]>',
            (OBJECT.format("&b;", 0, 1, 1, 2, 2),),
            "declarations",
        ),
        ('<?xml version="1.0" encoding="rot13"?>', (), "not a text encoding"),
        ("<oops>", (), "mismatched tag|no element"),
        ("", (OBJECT.format("dog", 0, 5, 5, 4, 5),), "the box .* has no area, or its edges are reversed"),
        ("", (OBJECT.format("dog", 0, 50, 5, 60, 9),), r"the box \[49.0, 4.0, 60.0, 9.0\] is outside"),
        ("", (OBJECT.format("dog", 0, "nan", 5, 60, 9),), "is not finite"),
        ("", (OBJECT.format("dog", 0, "", 5, 60, 9),), "object 1 of .*a.xml: .* is not finite"),
        ("", (OBJECT.format("", 0, 1, 5, 6, 9),), "object 1 of .*a.xml: no name"),
    ],
)
def test_annotations_that_are_wrong_are_named(head: str, objects: tuple[str, ...], why: str) -> None:
    put(*objects, head=head)
    if head:
        Path("voc/Annotations/b.xml").write_text("<annotation/>")
    with pytest.raises(
        UserError, match=rf"1 of 2 train images cannot be used:\n  voc/JPEGImages/a.jpg has .*(\n.*)*{why}"
    ):
        load("voc", root="voc")
    assert len(load("voc", root="voc", skip_bad=True).train) == 1


def test_a_missing_annotation_and_another_size_are_named() -> None:
    put(size=(20, 41))
    with pytest.raises(UserError, match=r"a.jpg has 20 x 40 pixels, but 41 x 20 in voc/Annotations/a.xml"):
        load("voc", root="voc")
    put()
    Path("voc/Annotations/a.xml").unlink()
    with pytest.raises(UserError, match=r"a.jpg has no voc/Annotations/a.xml"):
        load("voc", root="voc")


def test_masks_of_classes_have_the_names_of_voc() -> None:
    put()
    for name in "ab":
        mask(Path(f"voc/SegmentationClass/{name}.png"), np.resize([0, 15, 20, 255], (20, 40)))
    dataset = load("voc", root="voc", task="segment")
    assert (len(dataset.classes), dataset.classes[15]) == (21, "person")
    assert np.unique(dataset.train.targets[0].read()).tolist() == [0, 15, 20, 255]
    mask(Path("voc/SegmentationClass/a.png"), np.full((20, 40), 21))
    with pytest.raises(UserError, match=r"a.jpg has the mask a.png with the label 21\. Allowed: 0 to 20"):
        load("voc", root="voc", task="segment")
    Path("voc/SegmentationClass/a.png").unlink()
    with pytest.raises(UserError, match=r"a.jpg has no mask: voc/SegmentationClass/a.png does not exist"):
        load("voc", root="voc", task="segment")


def test_names_in_lists_may_have_blanks_flags_and_endings_of_any_case() -> None:
    put(OBJECT.format("dog", 0, 1, 1, 40, 20))
    for name, ending in (("a 1", ".jpg"), ("IMG_2", ".JPG"), ("c", ".PNG")):
        photo(Path(f"voc/JPEGImages/{name}{ending}"), 40, 20)
        annotation = f"<annotation>{OBJECT.format('cat', 0, 1, 1, 9, 9)}</annotation>"
        Path(f"voc/Annotations/{name}.xml").write_text(annotation)
    Path("voc/ImageSets/Main/train.txt").write_text("a 1\na  -1\nIMG_2 1\nc.PNG\n", encoding="utf-8-sig")
    Path("voc/ImageSets/Main/val.txt").write_text("IMG_2\n")
    dataset = load("voc", root="voc")
    assert [file.name for file in dataset.train.files] == ["a 1.jpg", "a.jpg", "IMG_2.JPG", "c.PNG"]
    assert [target.labels.tolist() for target in dataset.train.targets] == [[1], [2], [1], [1]]
