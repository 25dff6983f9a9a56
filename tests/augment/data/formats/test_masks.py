"""Folders of images and masks."""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from annotated import load, mask, photo
from PIL import Image

from augment.data.targets.masks import MaskFile
from augment.support.errors import UserError

pytestmark = pytest.mark.usefixtures("own_folder")


def put(split: str = "train", count: int = 2, *, labels: Any = None) -> list[Path]:
    """Write images of 12 x 8 with masks of labels 0, 1, 2 and 255."""
    for number in range(count):
        photo(Path(f"set/{split}/images/{number}.jpg"), 12, 8 + number)
    default = np.array([0, 1, 2, 255] * 3)
    return [
        mask(
            Path(f"set/{split}/masks/{number}.png"), np.resize(default if labels is None else labels, (8 + number, 12))
        )
        for number in range(count)
    ]


def test_masks_are_found_by_stem_and_their_labels_are_the_classes() -> None:
    put()
    put("val")
    dataset = load("masks", root="set")
    assert (dataset.classes, dataset.task, len(dataset.train), len(dataset.val)) == (("0", "1", "2"), "segment", 2, 2)
    assert dataset.train.targets[1].read().shape == (9, 12)
    assert np.unique(dataset.train.targets[0].read()).tolist() == [0, 1, 2, 255]
    assert str(dataset.train.targets[0]) == "masks/0.png"


def test_folders_may_be_in_another_order_and_names_have_endings() -> None:
    for number in range(4):
        photo(Path(f"set/left/city/{number}_left.jpg"), 12, 8)
        mask(Path(f"set/fine/city/{number}_ids.png"), np.full((8, 12), number % 2))
        mask(Path(f"set/fine/city/{number}_instances.png"), np.full((8, 12), 9))
    names = {"images": "left", "masks": "fine", "image_suffix": "_left", "mask_suffix": "_ids"}
    dataset = load("masks", root="set", val_fraction=0.25, **names)
    assert (len(dataset.train), len(dataset.val), dataset.classes) == (3, 1, ("0", "1"))
    Path("set/left/val").mkdir()
    Path("set/fine/val").mkdir()
    for kind, folder in (("left", "train"), ("fine", "train")):
        Path(f"set/{kind}/city").rename(f"set/{kind}/{folder}")
    photo(Path("set/left/val/9_left.jpg"), 12, 8)
    mask(Path("set/fine/val/9_ids.png"), np.ones((8, 12)))
    dataset = load("masks", root="set", **names)
    assert (len(dataset.train), len(dataset.val)) == (4, 1)
    with pytest.raises(UserError, match=r"val_fraction=0\.5 would ignore the images of set/left/val"):
        load("masks", root="set", val_fraction=0.5, **names)
    dataset = load("masks", root="set", val_fraction=0.5, val_dir=None, **names)
    assert (len(dataset.train), len(dataset.val)) == (2, 2), "the remedy"


def test_colors_and_values_of_a_palette_are_classes_in_its_order() -> None:
    put(labels=[0, 100, 7, 200])
    Path("values.csv").write_text("name,value\nroad,100\nsky,0\nroad,200\n,7\n")
    dataset = load("masks", root="set", val_fraction=0.5, palette="values.csv")
    target = min(dataset.train.targets + dataset.val.targets, key=str)
    assert dataset.classes == ("road", "sky")
    assert target.read()[0, :4].tolist() == [1, 0, 255, 0]
    colors = np.array([[9, 9, 9], [200, 0, 0], [0, 0, 1], [0, 200, 0]], np.uint8)
    for number in range(2):
        pixels = np.resize(np.arange(4), (8 + number, 12))
        Image.fromarray(colors[pixels]).save(f"set/train/masks/{number}.png")
    Path("colors.csv").write_text("sky,0,0,1\nroad, 200, 0, 0\ncar,0,200,0\n,9,9,9\n")
    dataset = load("masks", root="set", val_fraction=0.5, palette="colors.csv")
    target = min(dataset.train.targets + dataset.val.targets, key=str)
    assert (dataset.classes, target.read()[0, :4].tolist()) == (("sky", "road", "car"), [255, 1, 0, 2])
    with pytest.raises(UserError, match=r"the mask has mode RGB.* set data=masks data.palette=FILE"):
        load("masks", root="set", val_fraction=0.5)
    Path("colors.csv").write_text("sky,0,0,1\nroad,200,0,0\ncar,0,200,0\n")
    with pytest.raises(UserError, match=r"0.jpg has a bad mask: .*0.png: the mask has the color \(9, 9, 9\)"):
        load("masks", root="set", val_fraction=0.5, palette="colors.csv")


@pytest.mark.parametrize("line", ["a,1,2", "b,300", "b,1,2,3,4", "b,x", "b,1,2,3", "c,1"])
def test_a_line_of_a_palette_that_is_wrong_is_named(line: str) -> None:
    put()
    Path("p.csv").write_text(f"a,1\n{line}\n")
    with pytest.raises(UserError, match=rf"data.palette=p.csv: line 2 is {line}. Allowed: lines name,red"):
        load("masks", root="set", val_fraction=0.5, palette="p.csv")


def test_another_value_can_be_ignored() -> None:
    put(labels=[0, 1, 2, 3])
    dataset = load("masks", root="set", val_fraction=0.5, ignore_index=3)
    assert dataset.classes == ("0", "1", "2")
    assert np.unique(dataset.train.targets[0].read()).tolist() == [0, 1, 2, 255]


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        (np.zeros((8, 13)), r"0.jpg has 8 x 12 pixels, but its mask .*0.png has 8 x 13"),
        (np.full((8, 12), 3), r"0.jpg has the mask 0.png with the label 3\. Allowed: 0 to 2"),
        (np.zeros((8, 12, 4)), r"0.jpg has a bad mask: .*0.png: the mask has mode RGBA"),
        (None, r"0.jpg has no mask: no 0.png in set/train/masks"),
        (b"", r"0.jpg has a bad mask: .*0.png: the mask cannot be read"),
    ],
)
def test_a_mask_that_does_not_fit_is_named_and_its_image_left_out(labels: Any, why: str) -> None:
    first, *_ = put()
    put("val")
    Path("classes.txt").write_text("a\nb\nc\n")
    if isinstance(labels, np.ndarray):
        mask(first, labels)
    else:
        first.unlink()
        if labels is not None:
            first.write_bytes(labels)
    settings = {"root": "set", "classes": "classes.txt"}
    for _ in range(2):  # the second time from the cache
        with pytest.raises(UserError, match=why):
            load("masks", **settings)
    dataset = load("masks", skip_bad=True, **settings)
    assert [file.name for file in dataset.train.files] == ["1.jpg"]
    put()  # repaired
    assert len(load("masks", **settings).train) == 2


def png(values: np.ndarray, bits: int, palette: bytes = b"") -> bytes:
    """Encode values as PNG with a number of bits each, as gray or as indices of a palette."""
    height, width = values.shape
    lines = np.packbits(np.unpackbits(values[..., None], axis=2)[..., 8 - bits :].reshape(height, -1), axis=1)
    header = struct.pack(">IIBBBBB", width, height, bits, 3 if palette else 0, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + line.tobytes() for line in lines))
    chunks = [(b"IHDR", header), *([(b"PLTE", palette)] if palette else []), (b"IDAT", pixels), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def test_gray_values_of_few_bits_are_rejected(tmp_path: Path) -> None:
    """Pillow would read the label 1 of 4 bits as 17, and 15 as 255, which is ignored."""
    labels = np.resize(np.arange(4, dtype=np.uint8), (8, 12))
    pgm = b"P5 12 8 15\n" + labels.tobytes()
    for name, content in {"2.png": png(labels, 2), "4.png": png(labels, 4), "15.pgm": pgm}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=rf"{name}: the mask stores less than 8 bits per pixel"):
            MaskFile(tmp_path / name).read()
    Image.fromarray(labels).save(tmp_path / "inverted.tif", tiffinfo={262: 0})
    with pytest.raises(UserError, match="or 0 as white"):
        MaskFile(tmp_path / "inverted.tif").read()
    listed = tuple(value // 85 if value % 85 == 0 else 254 for value in range(256))
    np.testing.assert_array_equal(MaskFile(tmp_path / "2.png", labels=listed, classes=4).read(), labels)
    good = {"palette.png": png(labels, 2, bytes(range(12))), "8.pgm": pgm.replace(b" 15", b" 255")}
    for name, content in (good | {"1.png": png(labels % 2, 1)}).items():
        (tmp_path / name).write_bytes(content)
        np.testing.assert_array_equal(MaskFile(tmp_path / name).read(), labels % 2 if name == "1.png" else labels)


def test_two_masks_of_an_image_and_masks_of_nothing_are_rejected() -> None:
    put(labels=[0, 255])
    Path("classes.txt").write_text("background\nobject\n")
    nothing = r"have no label except 0, so there is nothing to learn. 255 is ignored.*palette"
    for settings in ({}, {"classes": "classes.txt"}):
        with pytest.raises(UserError, match=nothing):
            load("masks", root="set", val_fraction=0.5, **settings)
    put()
    mask(Path("set/train/masks/0.bmp"), np.zeros((8, 12)))
    with pytest.raises(UserError, match=r"0.jpg has several masks: 0.bmp and 0.png"):
        load("masks", root="set", val_fraction=0.5)
    with pytest.raises(UserError, match=r"the folder set/train/mask does not exist\. Did you mean set/train/masks"):
        load("masks", root="set", masks="mask", val_fraction=0.5)
    put("val")
    with pytest.raises(UserError, match=r"set/train: no folder train\. Did you mean data\.root=/.*/set\?$"):
        load("masks", root="set/train")


def test_masks_with_other_names_and_folders_are_explained() -> None:
    put()
    for file in Path("set/train/masks").iterdir():
        file.rename(file.with_stem(f"{file.stem}_mask"))
    with pytest.raises(UserError, match=r"no image has exactly one mask\. .*contains 0_mask\.png.*data\.mask_suffix"):
        load("masks", root="set", val_fraction=0.5)
    assert len(load("masks", root="set", val_fraction=0.5, mask_suffix="_mask").val) > 0
    Path("set/train").rename("set/training")
    with pytest.raises(UserError, match=r"no folder images\. set contains training/\. Set .*data\.train_dir"):
        load("masks", root="set", val_fraction=0.5)
    assert len(load("masks", root="set", val_fraction=0.5, mask_suffix="_mask", train_dir="training").val) > 0


def test_a_mask_of_the_image_as_it_is_shown_is_turned_to_its_file() -> None:
    put()
    photo(Path("set/train/images/0.jpg"), 12, 8, orientation=6)
    upright = np.zeros((12, 8), np.uint8)
    upright[0, :] = 1  # the top row of the upright image is the left column of the file
    mask(Path("set/train/masks/0.png"), upright)
    dataset = load("masks", root="set", val_fraction=0.5)
    target = min(dataset.train.targets + dataset.val.targets, key=str)
    expected = np.zeros((8, 12))
    expected[:, 0] = 1
    np.testing.assert_array_equal(target.read(), expected)


def test_a_mask_of_more_pixels_than_pillow_opens_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    file = mask(Path("0.png"), np.zeros((8, 12)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40)
    with pytest.raises(UserError, match=r"0.png: the mask cannot be read: .*exceeds limit"):
        MaskFile(file).read()


@pytest.mark.parametrize(
    ("ending", "options"),
    [("jpg", {}), ("webp", {}), ("tif", {"compression": "jpeg"}), ("jp2", {"irreversible": True})],
)
def test_masks_with_lossy_compression_are_rejected(ending: str, options: dict[str, Any]) -> None:
    put(labels=[0, 1, 1, 2])
    Path("colors.csv").write_text("a,0,0,0\nb,1,1,1\nc,2,2,2\n")
    settings = {"palette": "colors.csv"} if ending == "webp" else {}
    for file in Path("set/train/masks").iterdir():
        Image.open(file).save(file.with_suffix(f".{ending}"), **options)
        file.unlink()
    with pytest.raises(UserError, match=r"lossy compression \(\w+\).* \d+ values?\. Save the original mask as PNG"):
        load("masks", root="set", val_fraction=0.5, **settings)


@pytest.mark.parametrize(("ending", "options"), [("bmp", {}), ("tif", {})])
def test_masks_with_lossless_compression_are_read(ending: str, options: dict[str, Any]) -> None:
    put(labels=[0, 1, 1, 2])
    Path("colors.csv").write_text("a,0,0,0\nb,1,1,1\nc,2,2,2\n")
    for file in Path("set/train/masks").iterdir():
        Image.open(file).convert("RGB").save(file.with_suffix(f".{ending}"), **options)
        file.unlink()
    dataset = load("masks", root="set", val_fraction=0.5, palette="colors.csv")
    assert np.unique(dataset.train.targets[0].read()).tolist() == [0, 1, 2]


def test_values_that_mean_something_else_in_another_mask_are_rejected() -> None:
    put(labels=[0, 1])
    put("val", labels=[0, 255])
    with pytest.raises(UserError, match=r"has the values 0 and 255, but .* has 1.*data.palette=FILE"):
        load("masks", root="set")
    Path("p.csv").write_text("background,0\nobject,1\nobject,255\n")
    assert load("masks", root="set", palette="p.csv").classes == ("background", "object"), "the remedy"


def test_palettes_that_differ_are_rejected() -> None:
    files = put(labels=[0, 1])
    for file, palette in zip(files, ([0, 0, 0, 200, 0, 0], [0, 0, 0, 0, 200, 0]), strict=True):
        image = Image.open(file)
        image.putpalette(palette)
        image.save(file)
    with pytest.raises(UserError, match=r"the label 1 is #c80000 .* but #00c800"):
        load("masks", root="set", val_fraction=0.5)
    Path("p.csv").write_text("background,0,0,0\nobject,200,0,0\nobject,0,200,0\n")
    assert load("masks", root="set", val_fraction=0.5, palette="p.csv").classes == ("background", "object"), (
        "the remedy"
    )
    mask(files[0], np.resize([0, 1], (8, 12)))  # a mask without a palette agrees with all
    assert load("masks", root="set", val_fraction=0.5).notices == ()


def test_values_with_gaps_are_noticed() -> None:
    put(labels=range(0, 240, 20))
    dataset = load("masks", root="set", val_fraction=0.5)
    assert len(dataset.classes) == 221
    assert any("12 values" in notice and "data.palette=FILE" in notice for notice in dataset.notices)
    Path("p.csv").write_text("".join(f"c{value},{value}\n" for value in range(0, 240, 20)))
    dataset = load("masks", root="set", val_fraction=0.5, palette="p.csv")
    assert (len(dataset.classes), dataset.notices) == (12, ()), "the remedy"


def test_the_layout_of_camvid_is_read() -> None:
    for split in ("train", "val"):
        put(split)
        Path(f"set/{split}/masks").rename(f"set/{split}annot")
        for file in Path(f"set/{split}/images").iterdir():
            file.rename(f"set/{split}/{file.name}")
        Path(f"set/{split}/images").rmdir()
    dataset = load("masks", root="set", images=".", masks="annot")
    assert (len(dataset.train), len(dataset.val), dataset.classes) == (2, 2, ("0", "1", "2"))


def test_no_mask_is_decoded_by_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    put()
    head = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 12 8\n%%EndComments\n"
    Path("set/train/masks/1.png").write_bytes(head + b"showpage\n%%EOF\n")
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_: pytest.fail("Ghostscript was started"))
    Path("palette.csv").write_text("background,0,0,0\nobject,255,255,255\n")
    with pytest.raises(UserError, match=r"1.jpg has a bad mask: .*EPS"):
        load("masks", root="set", palette="palette.csv", val_fraction=0.5)
