"""Loaders of masks and boxes: every sample once, the same after a resume, and files that turn out bad."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from raster_bytes import tiff

from augment import UserError, load_recipe, make_loader
from augment.data.dataset import Split
from augment.data.targets.boxes import BOXES, Objects
from augment.data.targets.masks import MASKS, MaskFile
from augment.pipeline.batch import Batch
from augment.pipeline.graph.decoding import Placement
from augment.pipeline.graph.sample_order import Order, RankShard
from augment.pipeline.loader import Loader
from augment.recipe.plan import build_plan
from augment.recipe.steps import parse_aug

RECIPE = {
    "size": 32,
    "train": {"random_resized_crop": {}, "flip": {"p": 0.5}, "rotate": {"p": 0.5, "border": "constant"}},
}
COUNT = 11


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Return images, each with a mask beside it that has one label all over, its number."""
    made = []
    for number in range(COUNT):
        size = (40 + number, 50 - number)
        Image.new("RGB", size, (20 * number, 0, 0)).save(tmp_path / f"{number}.jpg")
        Image.new("L", size, number).save(tmp_path / f"{number}.png")
        made.append(tmp_path / f"{number}.jpg")
    return made


def masks(files: list[Path]) -> Split:
    targets = tuple(MaskFile(file.with_suffix(".png"), classes=COUNT) for file in files)
    return Split(tuple(files), targets, MASKS)


def loader(split: Split, shard: RankShard = RankShard(), batch_size: int = 4) -> Loader:  # noqa: B008  (frozen)
    plan = build_plan(parse_aug(RECIPE), "train")
    return Loader(plan, split, Order(batch_size, 3, shard), Placement(threads=2), classes=list(map(str, range(COUNT))))


def same(some: list[Batch], others: list[Batch]) -> bool:
    return len(some) == len(others) and all(
        torch.equal(one.images, other.images) and torch.equal(one.targets, other.targets)
        for one, other in zip(some, others, strict=True)
    )


def test_each_mask_comes_with_its_image(files: list[Path]) -> None:
    found = []
    for batch in loader(masks(files)):
        assert batch.targets.dtype == torch.int64
        for index, mask in zip(batch.indices.tolist(), batch.targets, strict=True):
            assert set(mask.unique().tolist()) <= {index, 255}
            found.append(index)
    assert sorted(found) == list(range(COUNT))


def test_masks_are_read_once_and_kept(files: list[Path]) -> None:
    own, expected = loader(masks(files)), loader(masks(files))
    assert same(list(own), list(expected))
    for file in files:
        file.with_suffix(".png").write_bytes(b"")
    second = list(own)
    assert len(second) == 3
    assert {label for batch in second for label in batch.targets.unique().tolist()} - {255} == set(range(COUNT))


def test_a_mask_that_cannot_be_read_is_named(files: list[Path]) -> None:
    files[5].with_suffix(".png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"5\.png: the mask cannot be read"):
        list(loader(masks(files)))


def test_an_image_that_cannot_be_read_is_named(files: list[Path]) -> None:
    files[5].write_bytes(b"words")
    with pytest.raises(UserError, match=r"an image became unreadable: \S+5\.jpg is not an image that DALI decodes"):
        list(loader(masks(files)))


def test_a_label_beyond_the_classes_is_named(files: list[Path]) -> None:
    Image.new("L", (42, 48), 200).save(files[2].with_suffix(".png"))
    with pytest.raises(UserError, match=r"2\.png: the mask has the label 200\. Allowed: 0 to 10, and 255"):
        list(loader(masks(files)))


def test_images_without_objects_and_batches_without_any_box(files: list[Path]) -> None:
    objects = [Objects.of([[1, 1, 30, 30]], [1]) if number == 0 else Objects.of([], []) for number in range(COUNT)]
    batches = list(loader(Split(tuple(files), tuple(objects), BOXES), batch_size=1))
    assert sorted(len(batch.targets[0]["boxes"]) for batch in batches) in ([0] * COUNT, [0] * (COUNT - 1) + [1])
    assert all(batch.targets[0]["boxes"].shape[1:] == (4,) for batch in batches)
    assert batches[0].frames is not None


@pytest.mark.parametrize("orientation", [3, 6, 8])
@pytest.mark.parametrize("channels", [1, 5])  # Pillow does not open the second
def test_keypoints_follow_the_orientation_of_16_bit_images(tmp_path: Path, channels: int, orientation: int) -> None:
    pixels = np.zeros((40, 60, channels), np.uint16)
    pixels[10:14, 48:52] = 60_000
    (tmp_path / "0.tif").write_bytes(tiff(pixels, extratags=[(274, "H", 1, orientation, True)]))
    x, y = {3: (60 - 50, 40 - 12), 6: (40 - 12, 50), 8: (12, 60 - 50)}[orientation]  # in the upright image
    table = tmp_path / "points.csv"
    table.write_text(f"path,x_a,y_a\n0.tif,{x - 0.5},{y - 0.5}\n")
    made = make_loader(
        load_recipe({"size": 32}), data="points", train=str(table), val=str(table), split="val", batch_size=1
    )
    batch = next(iter(made))
    weights = batch.images[0, 0].clamp(min=0)
    rows, columns = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    middle = [(weights * places).sum() / weights.sum() for places in (columns, rows)]
    torch.testing.assert_close(batch.targets[0, 0, :2], torch.stack(middle), atol=0.5, rtol=0)
