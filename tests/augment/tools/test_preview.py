"""What previews show: steps by themselves, whole recipes, and ops."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from augment.data.dataset import Split
from augment.data.targets.masks import MASKS
from augment.drawing.contact_sheet import SheetBlock, Tile
from augment.recipe.op import OPS
from augment.recipe.plan import build_plan
from augment.recipe.step import parse_steps
from augment.recipe.steps import Aug, parse_aug
from augment.support.console import progress_bar
from augment.tools.preview.gallery import DRAWS, Photos, StepRenderer, model_inputs, ops_blocks, recipe_blocks

SIZE = 16
Files = tuple[Path, ...]


def step(name: str, **params: object) -> Any:
    (parsed,) = parse_steps({name: params}, "test")
    return parsed


def aug(**train: object) -> Aug:
    return parse_aug({"size": SIZE, "train": train})


def blocks_of(recipe: Aug, photos: Files, split: Any = "train") -> list[SheetBlock]:
    return recipe_blocks(recipe, split, Photos.of(photos), progress_bar(quiet=True), seed=3)


def gallery_of(names: list[str], photos: Files) -> list[SheetBlock]:
    return ops_blocks(aug(), names, Photos.of(photos), progress_bar(quiet=True), seed=3)


def tiles_of(given: Any, photos: Files) -> tuple[Tile, ...]:
    return StepRenderer(aug(), Photos.of(photos), 0).row(given, []).tiles


def test_a_step_is_shown_at_the_ends_and_the_middle_of_its_range(photos: Files) -> None:
    original, *tiles = tiles_of(step("brightness", p=0.1, factor_range=[0, 2]), photos)
    assert [tile.caption for tile in tiles] == [("low: 0",), ("middle: 1",), ("high: 2",)]
    low, middle, high = (tile.image for tile in tiles)
    assert (low == 0).all()
    assert (middle == original.image).all()
    assert (high == np.minimum(2 * original.image.astype(int), 255)).all()


def test_a_crop_is_shown_next_to_the_whole_photo(tmp_path: Path) -> None:
    ramp = np.broadcast_to(np.arange(0, 192, 2, dtype=np.uint8)[None, :, None], (64, 96, 3))
    Image.fromarray(ramp).save(tmp_path / "ramp.png")
    given = step("random_resized_crop", area_range=[0.1, 0.9])
    original, *tiles = tiles_of(given, (tmp_path / "ramp.png",))
    assert (original.image[0] == 255).all()
    assert original.image[SIZE // 2].max() < 192
    assert [tile.caption for tile in tiles] == [
        ("low: area 0.1", "aspect 0.75"),
        ("middle: area 0.5", "aspect 1.042"),
        ("high: area 0.9", "aspect 1.333"),
    ]
    widths = [np.ptp(tile.image) / np.ptp(ramp) for tile in tiles]
    asked = [np.sqrt(area * aspect / 1.5) for area, aspect in ((0.1, 0.75), (0.5, 1.042), (0.9, 1.333))]
    assert widths == pytest.approx(asked, abs=0.1)


def test_captions_describe_the_pixels(photos: Files) -> None:
    recipe = aug(brightness={"p": 0.5, "factor_range": [0.3, 0.9]}, invert={"p": 0.5}, rotate={"p": 0.0})
    shots = model_inputs(build_plan(recipe, "train"), Photos.of(photos), seed=3, epochs=3)
    assert sorted((s.epoch, s.photo) for s in shots) == [(e, p) for e in range(3) for p in range(len(photos))]
    originals = {
        s.photo: s.image.astype(float)
        for s in model_inputs(build_plan(aug(), "train"), Photos.of(photos), seed=0, epochs=1)
    }
    for shot in shots:
        expected = originals[shot.photo]
        for done in shot.done:
            name, _, value = done.partition(" ")
            expected = 255 - expected if name == "invert" else expected * float(value)
        assert np.abs(shot.image - expected).max() <= 2
    assert {len(shot.done) for shot in shots} == {0, 1, 2}


@pytest.mark.parametrize(
    ("views", "names"),
    [
        ({"count": 2}, ["draw 1, view 1", "draw 1, view 2", "draw 2, view 1", "draw 2, view 2"]),
        (
            {"large": {}, "small": {"count": 2}},
            ["draw 1, view 1 large", "draw 1, view 2 small", "draw 1, view 3 small"],
        ),
    ],
)
def test_views_have_their_own_draws_and_names(views: dict[str, Any], names: list[str], photos: Files) -> None:
    recipe = parse_aug({"size": SIZE, "views": views, "train": {"brightness": {"factor_range": [0.2, 0.9]}}})
    for row in blocks_of(recipe, photos[:2])[1].rows:
        original, *tiles = row.tiles
        assert [tile.caption[0].split(": ")[0] for tile in tiles] == names
        for tile in tiles:
            factor = float(tile.caption[0].rpartition(" ")[2])
            assert tile.image.mean() == pytest.approx(original.image.mean() * factor, abs=2)


def test_a_recipe_is_shown_step_by_step_and_as_a_whole(photos: Files) -> None:
    recipe = aug(center_crop={}, turn={"op": "rotate", "p": 0.4}, invert={"p": 0.0}, flip={}, mixup={})
    steps, whole = blocks_of(recipe, photos[:3])
    assert [row.title for row in steps.rows] == ["center_crop", "turn (rotate)", "flip"]
    assert steps.rows[1].lines == ("p 0.4, angle -7..7 deg",)
    assert [len(row.tiles) for row in steps.rows] == [2, 4, 2]
    assert [len(row.tiles) for row in whole.rows] == [1 + DRAWS] * 3
    assert all("mixup" in tile.caption for row in whole.rows for tile in row.tiles[1:])
    _, whole = blocks_of(recipe, photos[:2], "val")  # which is the same in every epoch
    assert [[tile.caption for tile in row.tiles] for row in whole.rows] == [[("original",), ("only resize",)]] * 2


def test_ops_of_each_kind_are_shown_and_a_new_one(photos: Files, plugin: str) -> None:
    names = [*{op.kind: op.name for op in OPS.values() if op.name != plugin}.values(), plugin]
    blocks = gallery_of(names, photos[:2])
    shown = {row.title: row for block in blocks for row in block.rows}
    assert set(shown) == set(names)
    for name, row in shown.items():
        assert len(row.tiles) in (2, 4), name
        assert {tile.image.shape for tile in row.tiles} == {(SIZE, SIZE, 3)}, name
    paint = shown[plugin]
    assert paint.lines == ("Paint everything over.", "level 0..200 lx")
    assert [tile.caption for tile in paint.tiles[1:]] == [("low: 0 lx",), ("middle: 100 lx",), ("high: 200 lx",)]
    assert [int(tile.image.mean()) for tile in paint.tiles[1:]] == [0, 100, 200]


# --- with targets ---


def test_targets_are_drawn_as_they_follow(photos: Files) -> None:
    """The mask is the left half; after a flip its color is on the right."""
    labels = np.zeros((1, 1), np.uint8)

    class Half:
        name = "half"

        def __init__(self, file: Path) -> None:
            with Image.open(file) as image:
                self.width, self.height = image.size

        def read(self) -> Any:
            mask = np.broadcast_to(labels, (self.height, self.width)).copy()
            mask[:, : self.width // 2] = 1
            return mask

    split = Split(photos[:1], (Half(photos[0]),), MASKS)
    drawn = Photos.of(photos[:1], split, ("background", "half"))
    plain = Photos.of(photos[:1])
    for recipe, side in ((aug(), 0), (aug(flip={"p": 1}), 1)):
        (with_mask,), (without,) = (
            model_inputs(build_plan(recipe, "train"), given, seed=0) for given in (drawn, plain)
        )
        assert with_mask.image.shape == (256, 256, 3)
        scale = 256 // SIZE
        changed = (with_mask.image != without.image.repeat(scale, axis=0).repeat(scale, axis=1)).any(axis=-1)
        assert changed[:, :120].mean() == (side == 0)
        assert changed[:, 136:].mean() == (side == 1)
