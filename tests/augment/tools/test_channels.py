"""What the tools show of images that are not 8-bit RGB: each channel, its values, and the plan for their format."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image
from rasters import draw_raster, write_rasters

from augment import load_recipe, make_loader
from augment.cli.compose import compose_recipe
from augment.data.display import stretch
from augment.data.sources import load_dataset
from augment.recipe.steps import parse_aug
from augment.tools.bench.command import main as bench
from augment.tools.info.command import main as info
from augment.tools.info.figure import draw
from augment.tools.info.summary import Info
from augment.tools.plan import main as plan
from augment.tools.preview.command import main as preview
from augment.tools.preview.gallery import Photos, channel_blocks


@pytest.fixture
def four(own_folder: Path) -> list[str]:
    """Return overrides for images of four channels."""
    write_rasters(own_folder / "d", 4)
    return ["data=folder", "data.root=d"]


def test_the_channels_of_each_image_are_shown_before_and_after_the_recipe(four: list[str]) -> None:
    dataset = load_dataset(compose_recipe([*four, "data.rgb=[3,1,0]"]).source())
    aug = parse_aug({"size": [20, 24], "train": {"flip": {"p": 1}}})
    aug = replace(aug, pixels=dataset.pixels)
    (block,) = channel_blocks(aug, "train", Photos.of(dataset.train.files[:1]), seed=0)
    assert block.title == "ant/0.npy"
    assert block.text.startswith("4 channels of uint16")
    original, augmented = block.rows
    assert original.title == "original"
    assert augmented.title.startswith("train: resize")
    captions = [("channel 0, blue",), ("channel 1, green",), ("channel 2",), ("channel 3, red",)]
    expected = stretch(draw_raster(4, 0))
    for row, mirrored in ((original, expected), (augmented, expected[:, ::-1])):
        assert [tile.caption for tile in row.tiles] == captions
        for number, tile in enumerate(row.tiles):
            np.testing.assert_allclose(tile.image, mirrored[..., [number] * 3].astype(int), atol=1)


def test_many_channels_continue_in_further_rows(own_folder: Path) -> None:
    root = write_rasters(own_folder / "d", 12)
    assert preview(["--channels", "data=folder", f"data.root={root}", "aug.size=20", "--count", "1"]) == 0
    with Image.open("outputs/preview.png") as image:
        width, height = image.size
    assert 6 * 160 < width < 7 * 180
    assert height > 4 * 160


def test_ordinary_images_have_channels_too(photos: tuple[Path, ...], own_folder: Path) -> None:
    assert preview(["--channels", "--photos", str(photos[0].parent), "aug.size=16", "--count", "1"]) == 0
    assert Path("outputs/preview.png").exists()


def test_channels_of_single_ops_are_not_shown(own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        preview(["--channels", "--op", "hue"])
    assert "Remove --op or --channels" in capsys.readouterr().err
    assert not list(own_folder.iterdir())


def test_previews_show_images_of_any_format(four: list[str]) -> None:
    assert preview([*four, "aug.train={rotate: {}, brightness: {}}", "aug.size=16", "--count", "1"]) == 0
    with Image.open("outputs/preview.png") as image:
        assert np.asarray(image.convert("L"))[200:-100, 50:-50].std() > 10


def test_tools_and_loaders_measure_the_mean_of_rgb_images(own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split in ("train", "val"):
        for number in range(2):
            (file := own_folder / "d" / split / str(number) / "0.png").parent.mkdir(parents=True)
            Image.new("RGB", (8, 8), (51 * number, 102, 204)).save(file)
    recipe = load_recipe({"size": 8, "mean": "auto", "std": "auto"})
    loader = make_loader(recipe, data="folder", root="d", split="val", batch_size=2, device="cpu")
    assert loader.plan.mean == pytest.approx((0.1, 0.4, 0.8))
    assert loader.plan.std == pytest.approx((0.1, 1, 1))
    given = ["data=folder", "data.root=d", "aug.mean=auto", "aug.size=8"]
    assert plan(given) == 0
    assert "mean [0.1, 0.4, 0.8]" in capsys.readouterr().out
    assert preview([*given, "aug.train={flip: {}}", "--count", "1"]) == 0


def test_info_lists_the_values_of_each_channel(four: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert info([*four, "data.rgb=[0,1,2]"]) == 0
    text = re.sub(" +", " ", capsys.readouterr().out)
    assert text.startswith("folder: 18 images, 12 in train and 6 in val (33%); 2 classes; 4 channels of uint16\n")
    assert "\nformats 18 NPY; 18 uint16\n" in text
    lines = text.splitlines()
    start = lines.index("channel min 1% 50% 99% max mean std clipped data.range")
    rows = lines[start + 1 : start + 5]
    values = np.stack([draw_raster(4, seed) for seed in range(12)]).reshape(-1, 4).astype(float)
    for name, column, row in zip(("0, red", "1, green", "2, blue", "3"), values.T, rows, strict=True):
        assert row.startswith(f"{name} ")
        *numbers, clipped, limits = row.removeprefix(name).replace(",", "").split()
        found = [*np.percentile(column, (0, 1, 50, 99, 100)), column.mean(), column.std()]
        assert list(map(float, numbers)) == pytest.approx(found, abs=0.6)
        assert (clipped, limits) == ("0.0%", "0..65535")
    assert "a small part of the range from 0 to 65,535. Set data.range=auto." in text.split("Problems")[1]


@pytest.mark.parametrize(("most", "warns"), [(10_500, True), (16_000, True), (17_000, False)])
def test_info_warns_if_values_fill_less_than_a_quarter_of_the_range(
    most: int, warns: bool, own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "val"):
        for name in "ab":
            (own_folder / "d" / split / name).mkdir(parents=True)
            values = np.linspace(0, most, 1024, dtype=np.uint16).reshape(32, 32)
            Image.fromarray(values).save(own_folder / "d" / split / name / "0.tif")
    assert info(["data=folder", "data.root=d"]) == 0
    assert ("a small part of the range from 0 to 65,535. Set" in capsys.readouterr().out) == warns


def test_info_warns_about_clipped_values(four: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert info([*four, "data.range=[900,3200]"]) == 0
    problems = capsys.readouterr().out.split("Problems")[1]
    assert "clips more than 5% of the values of channels 2, 3. The values range from 1000 to 4500" in problems
    assert "a small part" not in problems


def test_the_figure_has_a_histogram_of_each_channel(four: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Info] = []
    monkeypatch.setattr("augment.tools.info.figure.draw", lambda given: drawn.append(given) or draw(given))
    assert info([*four, "data.range=[1200,5000]"]) == 0
    figure = draw(drawn[0])
    axes = {one.get_title(loc="left"): one for one in figure.findobj(Axes)}
    histograms = [axes[f"channel {number}"] for number in range(4)]
    assert all(one.get_xlabel() == "data.range 1,200..5,000" for one in histograms)
    assert [len(one.lines) for one in histograms] == [1, 0, 0, 0]  # only the first channel reaches an end
    with Image.open("outputs/info.png") as image:
        assert image.width == 1320


def test_plans_are_for_the_format_of_given_data(four: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(["aug.train={brightness: {}}"]) == 0
    rgb = capsys.readouterr().out
    assert plan(["aug.train={brightness: {}}", *four]) == 0
    bands = capsys.readouterr().out
    assert len(re.findall(r"mean \[(.*?)\]", rgb)[0].split(",")) == 3
    assert len(re.findall(r"mean \[(.*?)\]", bands)[0].split(",")) == 4
    assert re.findall("digest .*", rgb) != re.findall("digest .*", bands)
    with pytest.raises(SystemExit, match="2"):
        plan(["aug.train={hue: {}}", *four])
    assert "Set data.rgb" in capsys.readouterr().err


def test_bench_measures_only_rgb(four: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench([*four, "+aug=imagenette"])
    assert "4 channels of uint16, but bench measures 8-bit RGB" in capsys.readouterr().err
