"""Loaders of other libraries that train the same model."""

import json

import pytest
import torch
from PIL import Image

from augment.recipe.steps import parse_aug
from augment.tools.bench.command import main
from augment.tools.bench.peers import Training, peers
from augment.tools.bench.setup import Setup


@pytest.mark.parametrize("name", ["fixed", "fused", "dali"])
def test_peers_make_batches_for_the_same_model(name, photos, monkeypatch):
    seen = []
    monkeypatch.setattr(Training, "step", lambda training, images: seen.append(images))
    aug = parse_aug({"size": 32, "train": {"random_resized_crop": {}, "flip": {}, "rotate": {"p": 0.5}}})
    setup = Setup(aug, tuple(photos[:4]), 4, 4)
    (row,) = (row for row in peers("test_resnet") if row.name == name)
    assert row.obstacle(setup) == ""
    stream = row.start(setup)
    assert next(stream.batches) == 4
    stream.batches.close()
    assert (seen[0].shape, seen[0].dtype) == ((4, 3, 32, 32), torch.float32)
    assert 0.3 < seen[0].std() < 3


def test_without_a_model_there_is_no_fixed_batch():
    """It would be no work at all: 100 million images per second."""
    assert [row.name for row in peers("none")][:2] == ["fused", "cached"]


@pytest.mark.usefixtures("no_settling")
@pytest.mark.long
@pytest.mark.parametrize("recipe", ["imagenette", "rand_augment"])
def test_every_peer_trains_a_model(recipe, photos, tmp_path):
    folder, out = tmp_path / "photos", tmp_path / "out"
    folder.mkdir()
    for number, photo in enumerate(photos[:4]):
        with Image.open(photo) as image:
            image.convert("RGB").save(folder / f"{number}.jpg")
    arguments = [f"+aug={recipe}", "aug.size=32", "--photos", str(folder), "--batch-size", "4", "--workers", "1"]
    short = ["--rounds", "1", "--seconds", "0.02", "--threads", "1", "--out", str(out)]
    assert main([*arguments, *short, "--peers", "--model", "test_resnet"]) == 0
    rows = {row["name"]: row for row in json.loads((out / "bench.json").read_text())["rows"]}
    assert list(rows) == ["fixed", "fused", "cached", "dali", "torchvision", "torchvision_gpu", "kornia", "timm"]
    for name in ("fixed", "fused", "timm"):
        assert rows[name]["images_per_second"] > 0
    if recipe == "rand_augment":
        assert "no" in rows["dali"]["left_out"]
    for row in rows.values():
        assert row["left_out"] or row["of_fixed"] > 0
