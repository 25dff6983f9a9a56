"""The recipe for any number of channels trains on the drawn sets with ten channels of 16 bits."""

from pathlib import Path

import pytest
import torch
from documented import QUICK

import augment
from augment.cli.compose import compose_recipe
from augment.data.generated import bands
from trainer import train


def test_no_step_of_the_recipe_needs_rgb() -> None:
    recipe = compose_recipe(["aug=bands"]).aug
    assert {"channel_gain", "channel_drop"} <= {step.op.name for step in recipe.train}
    assert all(step.op.channels != "rgb" for step in (*recipe.train, *recipe.val))


def test_statistics_are_needed_without_training_images() -> None:
    with pytest.raises(augment.UserError, match=r"aug\.mean: measuring 10 channels"):
        augment.Transform(augment.load_recipe("bands"), pixels=augment.PixelFormat.of(10, "uint16"), device="cpu")


@pytest.mark.parametrize("given", [["data=sample_bands"], ["data=sample_bands_masks", "model=unet", "fit=segment"]])
def test_the_recipe_trains_on_ten_channels(given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bands, "TRAIN", 2)
    monkeypatch.setattr(bands, "VAL", 1)
    monkeypatch.chdir(tmp_path)
    summary = train("aug=bands", *given, *QUICK, "callbacks.plots=null", "callbacks.report=null")
    weights = torch.load(Path(summary.folder) / "best.pt", weights_only=True)["model"]
    assert next(value for value in weights.values() if value.ndim == 4).shape[1] == 10
