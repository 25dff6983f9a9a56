"""The preview command, its captions and its layout."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from augment.drawing.text import shorten, text_width, wrap
from augment.params import Range, Values
from augment.recipe import op as registry
from augment.recipe.captions import drawn_step, pin, pinned_values, value_at
from augment.recipe.op import OPS, numpy_op
from augment.recipe.plan import build_plan
from augment.recipe.sampler import Sampler
from augment.recipe.steps import Aug, parse_aug, parse_steps
from augment.support.console import progress_bar
from augment.tools.preview.command import main
from augment.tools.preview.gallery import DRAWS, Studio, ops_sheet, recipe_sheet
from augment.tools.preview.sheet import GAP, TEXT, Block, Sheet, SheetRow, TextLines, Tile, lay_out, line_height
from augment.tools.preview.shots import shoot

ROOT = Path(__file__).parents[3]
SIZE = 16


@pytest.fixture
def plugin() -> Iterator[str]:
    """An op of the user's own, for the time of a test."""
    declared: Any = registry._OPS
    before = dict(declared)

    @numpy_op(level_range=Range(default=(0, 200), within=(0, 255), unit="lx", doc="gray level"))
    def paint(image: Any, level: float) -> Any:
        """Paint everything over."""
        return np.full_like(image, round(level))

    yield "paint"
    declared.clear()
    declared.update(before)


def step(name: str, **params: object) -> Any:
    (parsed,) = parse_steps({name: params}, "test")
    return parsed


def aug(**train: object) -> Aug:
    return parse_aug({"size": SIZE, "train": train})


def sheet_of(recipe: Aug, photos: tuple[Path, ...], split: Any = "train") -> Sheet:
    return recipe_sheet(recipe, split, photos, progress_bar(quiet=True), seed=3)


def gallery_of(names: list[str], photos: tuple[Path, ...], count: int = 1) -> Sheet:
    return ops_sheet(aug(), names, photos, progress_bar(quiet=True), count=count, seed=3)


# --- captions ---


@pytest.mark.parametrize(
    ("given", "whole", "expected"),
    [
        ((-7.0, 7.0), False, (-7, 0, 7)),
        ((0.5, 2.0), False, (0.5, 1.25, 2)),
        ((0.0, 3.0), True, (0, 2, 3)),
        (Values((30.0, -30.0, 0.0, 30.0)), False, (-30, 0, 30)),
        (Values((8.0,)), True, (8, 8, 8)),
    ],
)
def test_levels_of_a_range(given: Any, whole: bool, expected: tuple[float, ...]) -> None:
    param = Range(doc="", whole=whole)
    assert tuple(value_at(param, given, level) for level in ("low", "middle", "high")) == expected


def test_pinned_steps_keep_everything_but_p() -> None:
    pinned = pin(step("rotate", p=0.2, angle_range=[-9, 5], border="wrap"), "high")
    assert (pinned.p, pinned.params["angle_range"], pinned.params["border"]) == (1, (5, 5), "wrap")


def test_pinned_values_have_units_and_names_if_there_are_several() -> None:
    assert pinned_values(step("rotate"), "low") == ["-7 deg"]
    assert pinned_values(step("affine"), "high") == ["translate 0.1", "scale 1.1", "shear 5 deg"]
    assert pinned_values(step("shear"), "low") == ["x -10 deg"]  # y_range is [0, 0]
    assert pinned_values(step("flip"), "low") == []


@pytest.mark.parametrize(
    ("name", "params", "drawn", "expected"),
    [
        ("rotate", {}, {"angle": -5.2349}, "rotate -5.2 deg"),
        ("rotate", {}, {"angle": -0.0004}, "rotate 0 deg"),
        ("brightness", {}, {"factor": 1.1234}, "brightness 1.12"),
        ("warp", {}, {"u": 0.03339, "v": -0.0801}, "warp (u 0.033, v -0.08)"),
        ("shear", {}, {"x": 4.44, "y": 0.0}, "shear x 4.4 deg"),
        ("erase", {"area_range": [0.001, 0.9]}, {"area": 0.00231, "aspect": 2}, "erase (area 0.0023, aspect 2)"),
        ("rotate", {"angle_range": {"values": [-44.7123, 90]}}, {"angle": -44.7123}, "rotate -45 deg"),
        ("flip", {}, {}, "flip"),
    ],
)
def test_drawn_values_are_rounded_to_suit_their_range(
    name: str, params: dict[str, object], drawn: dict[str, float], expected: str
) -> None:
    assert drawn_step(step(name, **params), {n: np.array([v]) for n, v in drawn.items()}, 0) == expected


# --- steps by themselves ---


def tiles_of(given: Any, photos: tuple[Path, ...]) -> tuple[Tile, ...]:
    (row,) = Studio(aug(), photos, 1, 0).rows(given, [])
    return row.tiles


def test_a_step_is_shown_at_the_ends_and_the_middle_of_its_range(photos: tuple[Path, ...]) -> None:
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


@pytest.mark.parametrize("name", ["flip", "grayscale", "center_crop"])
def test_a_deterministic_step_is_shown_once(name: str, photos: tuple[Path, ...]) -> None:
    assert [tile.caption for tile in tiles_of(step(name), photos)] == [("original",), (name,)]


def test_a_random_step_without_ranges_is_shown_in_draws(photos: tuple[Path, ...]) -> None:
    assert [tile.caption for tile in tiles_of(step("channel_shuffle", p=0.01), photos)] == [
        ("original",),
        ("draw 1",),
        ("draw 2",),
        ("draw 3",),
    ]


def test_captions_of_a_policy_name_the_choice(photos: tuple[Path, ...]) -> None:
    steps = {"brightness": {"factor_range": [0.5, 0.5]}, "invert": {}}
    original, *tiles = tiles_of(step("one_of", p=0.01, steps=steps), photos)
    pixels = original.image.astype(int)
    for number, tile in enumerate(tiles, 1):
        expected = {"brightness 0.5": np.rint(pixels / 2), "invert": 255 - pixels}
        (caption,) = tile.caption
        prefix, _, done = caption.partition(": ")
        assert prefix == f"draw {number}"
        assert np.abs(tile.image - expected[done]).max() <= 1
    assert len({tile.caption[0][6:] for tile in tiles}) > 1


# --- the whole recipe ---


def test_captions_describe_the_pixels(photos: tuple[Path, ...]) -> None:
    recipe = aug(brightness={"p": 0.5, "factor_range": [0.3, 0.9]}, invert={"p": 0.5}, rotate={"p": 0.0})
    plan = build_plan(recipe, "train")
    shots = shoot(plan, photos, seed=3, epochs=3)
    assert sorted((s.epoch, s.photo) for s in shots) == [(e, p) for e in range(3) for p in range(len(photos))]
    originals = {s.photo: s.image.astype(float) for s in shoot(build_plan(aug(), "train"), photos, seed=0, epochs=1)}
    for shot in shots:
        expected = originals[shot.photo]
        for done in shot.done:
            name, _, value = done.partition(" ")
            expected = 255 - expected if name == "invert" else expected * float(value)
        assert np.abs(shot.image - expected).max() <= 2
    assert {len(shot.done) for shot in shots} == {0, 1, 2}


def test_captions_show_the_draws_of_the_sampler(photos: tuple[Path, ...]) -> None:
    plan = build_plan(aug(rotate={}, hue={"p": 0.5}), "train")
    draws = Sampler(plan, 3).draw(1, 0, len(photos))
    shots = [shot for shot in shoot(plan, photos, seed=3, epochs=2) if shot.epoch == 1]
    expected = [f"rotate {round(angle, 1):g} deg" for angle in draws["rotate"]["angle"]]
    assert [shot.done[0] for shot in shots] == expected  # shots are in the order of the batch
    assert [len(shot.done) == 2 for shot in shots] == draws["hue"]["applied"].tolist()


def test_views_have_their_own_draws(photos: tuple[Path, ...]) -> None:
    recipe = parse_aug({"size": SIZE, "views": {"count": 2}, "train": {"brightness": {"factor_range": [0.2, 0.9]}}})
    block = sheet_of(recipe, photos[:2]).blocks[1]
    assert [tile.caption[0].split(": ")[0] for tile in block.rows[0].tiles] == [
        "original",
        "draw 1, view 1",
        "draw 1, view 2",
        "draw 2, view 1",
        "draw 2, view 2",
    ]
    for row in block.rows:
        for tile in row.tiles[1:]:
            factor = float(tile.caption[0].rpartition(" ")[2])
            assert tile.image.mean() == pytest.approx(row.tiles[0].image.mean() * factor, abs=2)


def test_all_views_are_mixed_alike_with_captions(photos: tuple[Path, ...]) -> None:
    recipe = parse_aug({"size": SIZE, "views": {"count": 2}, "train": {"mixup": {"p": 0.5}}})
    shots = shoot(build_plan(recipe, "train"), photos, seed=0, epochs=4)
    captions = {(shot.view, shot.epoch, shot.photo): shot.done for shot in shots}
    first, second = ({key[1:]: done for key, done in captions.items() if key[0] == view} for view in (0, 1))
    assert first == second
    # Samples that are not mixed have no caption, others show their share.
    assert {len(done) for done in first.values()} == {0, 2}


def test_captions_of_mixed_images_show_the_share(photos: tuple[Path, ...]) -> None:
    plan = build_plan(aug(mixup={"p": 0.7, "alpha": 1.0}), "train")
    originals = {s.photo: s.image.astype(float) for s in shoot(build_plan(aug(), "train"), photos, seed=0, epochs=1)}
    shots = shoot(plan, photos, seed=0, epochs=3)
    assert {shot.done[:1] for shot in shots} == {("mixup",), ()}
    for epoch in range(3):
        batch = [shot for shot in shots if shot.epoch == epoch]
        for shot, partner in zip(batch, [*batch[1:], batch[0]], strict=True):
            share = float(shot.done[1].removeprefix("share ")) if shot.done else 1
            expected = share * originals[shot.photo] + (1 - share) * originals[partner.photo]
            assert np.abs(shot.image - expected).max() <= 3


def test_a_recipe_is_shown_step_by_step_and_as_a_whole(photos: tuple[Path, ...]) -> None:
    recipe = aug(center_crop={}, turn={"op": "rotate", "p": 0.4}, invert={"p": 0.0}, flip={}, mixup={})
    steps, whole = sheet_of(recipe, photos[:3]).blocks
    assert [row.title for row in steps.rows] == ["center_crop", "turn (rotate)", "flip"]
    assert steps.rows[1].lines == ("p 0.4", "angle -7..7 deg")
    assert [len(row.tiles) for row in steps.rows] == [2, 4, 2]
    assert [len(row.tiles) for row in whole.rows] == [1 + DRAWS] * 3
    assert all("mixup" in tile.caption for row in whole.rows for tile in row.tiles[1:])


def test_validation_draws_once(photos: tuple[Path, ...]) -> None:
    recipe = parse_aug({"size": SIZE, "val": {"center_crop": {"scale": 0.9}}})
    steps, whole = sheet_of(recipe, photos[:2], "val").blocks
    assert [row.title for row in steps.rows] == ["center_crop"]
    assert [[tile.caption for tile in row.tiles] for row in whole.rows] == [[("original",), ("crop only",)]] * 2


# --- ops ---


def test_all_ops_are_shown_including_a_new_one(photos: tuple[Path, ...], plugin: str) -> None:
    sheet = gallery_of(list(OPS), photos[:2])
    shown = {row.title: row for block in sheet.blocks for row in block.rows}
    assert set(shown) == set(OPS)
    assert [block.title for block in sheet.blocks] == ["Crop", "Geometry", "Color", "Local", "Batch", "Policy"]
    for name, row in shown.items():
        assert len(row.tiles) in (2, 4), name
        assert {tile.image.shape for tile in row.tiles} == {(SIZE, SIZE, 3)}, name
    paint = shown[plugin]
    assert paint.lines == ("Paint everything over.", "level 0..200 lx")
    assert [tile.caption for tile in paint.tiles[1:]] == [("low: 0 lx",), ("middle: 100 lx",), ("high: 200 lx",)]
    assert [int(tile.image.mean()) for tile in paint.tiles[1:]] == [0, 100, 200]


def test_an_op_that_needs_parameters_says_so(photos: tuple[Path, ...], plugin: str) -> None:
    @registry.color(factor_range=Range(required=True, doc="how much"))
    def tint(factor: Any) -> Any:
        """Tint."""

    (row,) = gallery_of(["tint"], photos[:2]).blocks[0].rows
    assert row.tiles == ()
    assert row.lines[0] == "Tint."
    assert row.lines[1].startswith("not shown: tint.factor_range: missing. Allowed: [low, high]")


def test_several_photos_have_a_row_each(photos: tuple[Path, ...]) -> None:
    rows = gallery_of(["invert"], photos[:2], count=2).blocks[0].rows
    assert [row.title for row in rows] == ["invert", ""]
    for row in rows:
        assert (row.tiles[1].image == 255 - row.tiles[0].image).all()
    assert (rows[0].tiles[0].image != rows[1].tiles[0].image).any()


# --- layout ---


@pytest.mark.parametrize(
    ("phrases", "lines"),
    [
        (["rotate -5.2 deg", "flip"], ["rotate -5.2 deg,", "flip"]),
        (["flip", "invert", "hue"], ["flip, invert, hue"]),
        (["warp (u 0.05, v -0.08)"], ["warp (u 0.05,", "v -0.08)"]),
        (["low: magnitude -0.1"], ["low:", "magnitude -0.1"]),
        (["a word and another word"], ["a word and", "another word"]),
        ([], []),
    ],
)
def test_captions_wrap_between_phrases_and_not_next_to_a_number(phrases: list[str], lines: list[str]) -> None:
    assert wrap(phrases, text_width("low: magnitude -0", TEXT), TEXT) == lines


def test_words_that_are_too_long_are_shortened() -> None:
    assert wrap(["x" * 99], 50, TEXT) == [shorten("x" * 99, 50, TEXT)]
    (bold,) = wrap(["x" * 99], 50, TEXT, bold=True)
    assert text_width(bold, TEXT, bold=True) <= 50


def tile(side: int, *caption: str) -> Tile:
    return Tile(np.zeros((side, side, 3), np.uint8), caption)


LONG = ("affine (translate_x -0.008, translate_y -0.025, scale 0.902, shear_x -0.9 deg)", "color_jitter 7", "x" * 40)


def laid_out_boxes(sheet: Sheet) -> list[tuple[float, float, float, float]]:
    """Return left, top, right and bottom of every image and text."""
    layout = lay_out(sheet)
    boxes: list[tuple[float, float, float, float]] = []
    boxes += [(x, y, x + image.shape[1], y + image.shape[0]) for x, y, image in layout.images]
    for text in layout.texts:
        width = max(text_width(line, text.points, bold=text.bold) for line in text.lines)
        left = text.x - width / 2 if text.centered else text.x
        boxes.append((left, text.y, left + width, text.y + text.height))
    assert all(0 <= box[0] < box[2] <= layout.width and 0 <= box[1] < box[3] <= layout.height for box in boxes)
    return boxes


@pytest.mark.parametrize("names", ["before", "above", "nowhere"])
@pytest.mark.parametrize("panels", [1, 3])
def test_nothing_overlaps(names: Any, panels: int) -> None:
    rows = tuple(SheetRow((tile(16, *LONG[:n]), tile(16, "b")), f"step {n}", ("p 1", LONG[0])) for n in range(4))
    sheet = Sheet(tuple(Block(b, LONG[0], rows, panels, names) for b in ("one", "two")), 128, "A title " * 30, "a text")
    boxes = laid_out_boxes(sheet)
    for i, (left, top, right, bottom) in enumerate(boxes):
        for other in boxes[i + 1 :]:
            apart = right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
            assert apart, (boxes[i], other)


def test_images_are_aligned_on_a_grid() -> None:
    rows = tuple(SheetRow((tile(16, "a"), tile(16, *LONG)), str(n), ("one", "two") * n) for n in range(4))
    layout = lay_out(Sheet((Block("b", "", rows, 2, "above"),), title="t"))
    assert layout.side == 128  # eight times as large
    lefts = sorted({left for left, _, _ in layout.images})
    tops = sorted({top for _, top, _ in layout.images})
    assert (len(lefts), len(tops)) == (4, 2)
    assert lefts[1] - lefts[0] == lefts[3] - lefts[2] == 128 + GAP


def test_small_images_are_enlarged_by_integer_factors_and_large_ones_reduced() -> None:
    sheet = Sheet((Block("b", "", (SheetRow((tile(100, "a"),)),)),), 192)
    assert lay_out(sheet).images[0][2].shape == (200, 200, 3)
    sheet = Sheet((Block("b", "", (SheetRow((tile(1000, "a"),)),)),))
    assert lay_out(sheet).images[0][2].shape == (512, 512, 3)


def test_text_height_is_proportional_to_lines() -> None:
    assert TextLines(0, 0, ("one", "two"), TEXT).height == 2 * line_height(TEXT)


# --- the program ---


def test_the_program_writes_a_png(
    photos: tuple[Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = ["+aug=imagenette", "aug.size=32", "aug.train.hue.p=0.5"]
    assert main([*overrides, "--photos", str(photos[0].parent), "--count", "2", "--out", "new/recipe.png"]) == 0
    assert capsys.readouterr() == ("new/recipe.png\n", "")
    with Image.open("new/recipe.png") as image:
        width, height = image.size
    assert width > 5 * 192
    assert height > (7 + 1 + 2) * 192
    assert [file.name for file in Path("new").iterdir()] == ["recipe.png"]


def test_ops_of_plugins_are_known(
    photos: tuple[Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugin: str
) -> None:
    (tmp_path / "my_preview_ops.py").write_text(
        '"""Ops."""\nfrom augment.recipe.op import color\nimport numpy as np\n@color()\ndef blacken():\n'
        '    """Black."""\n    return np.zeros((3, 4))\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = ["aug.plugins=[my_preview_ops]", "aug.size=32", "--op", "blacken", "--photos", str(photos[0].parent)]
    assert main(arguments) == 0
    assert (tmp_path / "outputs" / "preview.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--op", "rotat"], "--op: unknown op 'rotat'. Did you mean 'rotate'?"),
        (["+aug=imagenete"], "aug: unknown name 'imagenete'. Did you mean 'imagenette'?"),
        ([], "aug.train: no steps. Allowed: +aug=NAME for a recipe, or --op NAME for an op."),
        (
            ["--op", "flip", "--count", "0"],
            "argument --count: '0' is not allowed. Allowed: a whole number from 1 to 64",
        ),
        (["--op", "flip", "--out", "a.jpg"], "'a.jpg' is not allowed. Allowed: the name of a file that ends in .png"),
        (["--op", "flip", "--seed", "-1"], "argument --seed: "),
        (["--op", "flip", "--photos", "nowhere"], "--photos nowhere: there is no such folder"),
        (["--op", "flip", "--photos", "."], "--photos .: the folder contains no images"),
        (["--ob", "flip"], "--ob: unknown flag. Did you mean '--op'?"),
    ],
)
def test_mistakes_give_one_message(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    captured = capsys.readouterr()
    assert stopped.value.code == 2
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert captured.out == ""
    assert not list(tmp_path.iterdir())


def test_mistakes_are_found_before_anything_heavy_is_loaded(tmp_path: Path) -> None:
    code = """
import sys
from augment.tools.preview.command import main
try:
    main(["+aug=imagenette", "--op", "rotat"])
except SystemExit as stopped:
    assert stopped.code == 2
heavy = {"torch", "nvidia", "trainer", "matplotlib", "PIL"}
print("loaded:", *sorted({name.split(".")[0] for name in sys.modules} & heavy))
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.stdout == "loaded:\n"
