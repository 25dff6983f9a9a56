"""What notebooks show: batches, plans and recipes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from photos import draw_photo
from PIL import Image

import augment
from augment.pipeline.batch import as_pixels
from augment.recipe.plan import build_plan

STEPS = {"random_resized_crop": {}, "flip": {"p": 0.5}, "rotate": {"angle_range": [5, 5]}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(6):
        file = tmp_path / "train" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw_photo(40, 40, number)).save(file)
    return tmp_path


def test_the_next_batch_is_shown_pixel_by_pixel_and_the_loader_stays(folder: Path) -> None:
    recipe = augment.load_recipe({"size": 64, "train": STEPS})
    loader = augment.make_loader(recipe, "folder", root=folder, batch_size=4, device="cpu")
    list(loader)
    picture = loader.show_batch(2)
    assert (loader.epoch, loader.batch) == (1, 0)
    batch = next(iter(loader))
    shown, drawn = np.asarray(picture.convert("RGB")), as_pixels(batch.images, loader.plan)
    top = next(row for row in range(80) if (shown[row : row + 128, 28:156] == drawn[0].repeat(2, 0).repeat(2, 1)).all())
    assert (shown[top : top + 128, 168:296] == drawn[1].repeat(2, 0).repeat(2, 1)).all()
    assert picture.width == 560 + 2 * 28
    assert (np.asarray(loader.show_batch(2, epoch=5)) != np.asarray(picture)).any()
    assert (loader.epoch, loader.batch) == (1, 1)


@pytest.mark.parametrize("data", ["sample_masks", "sample_boxes", "sample_points"])
def test_targets_are_drawn_on_the_images(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRAIN", "VAL"):
        monkeypatch.setattr(f"augment.data.generated.annotated.{name}", 4)
    given: dict[str, Any] = {"split": "val", "batch_size": 2, "device": "cpu", "dir": tmp_path}
    loader = augment.make_loader(augment.load_recipe({"size": 64}), data, **given)
    colors = {tuple(color) for color in np.asarray(loader.show_batch().convert("RGB")).reshape(-1, 3).tolist()}
    plain = as_pixels(next(iter(loader)).images, loader.plan).reshape(-1, 3).tolist()
    assert len(colors - {tuple(color) for color in plain}) > 40  # more than the grays of text


def test_plans_and_recipes_draw_themselves() -> None:
    recipe = augment.load_recipe({"size": 64, "train": STEPS, "val": {"center_crop": {}}})
    plan = build_plan(recipe.aug, "train")
    assert repr(plan) == "Plan(train, 64 x 64 px, 3 steps)"
    assert plan._repr_html_().count("<tr>") == 4
    assert "<td style='text-align:left'>flip</td><td style='text-align:left'>0.5</td>" in plan._repr_html_()
    assert recipe._repr_html_() == plan._repr_html_() + build_plan(recipe.aug, "val")._repr_html_()


def test_loaders_and_transforms_draw_their_plan(folder: Path) -> None:
    recipe = augment.load_recipe({"size": 64, "train": STEPS})
    plan = build_plan(recipe.aug, "train")._repr_html_()
    loader = augment.make_loader(recipe, "folder", root=folder, batch_size=4, device="cpu")
    assert loader._repr_html_() == f"<p>Loader(train, 6 samples, 2 batches, cpu)</p>{plan}"
    assert augment.Transform(recipe, device="cpu")._repr_html_() == f"<p>Transform(train, cpu)</p>{plan}"


def test_each_view_by_name_is_drawn() -> None:
    html = augment.load_recipe("byol", "aug.size=96")._repr_html_()
    assert [html.count(f"aug.views.{name}.steps, 96 x 96 px") for name in ("first", "second")] == [1, 1]
