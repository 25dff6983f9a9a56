"""Crops in real DALI, on the CPU and on the GPU: against Pillow, and where random windows lie."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loaders import build_loader
from photos import draw_photo
from PIL import Image, ImageOps
from pipelines import SEED, SIZE, Pixels, assert_close, pixels, plan_of, run

from augment.data.dataset import Split
from augment.pipeline.graph.sample_order import RankShard
from augment.recipe.plan import Plan

# (width, height): strips in either direction, one pixel, smaller and larger than the result, and the result's size.
SIDES = ((48, 40), (40, 48), (200, 16), (16, 200), (500, 3), (2, 200), (1, 1), (5, 5), (33, 77), (SIZE, SIZE))


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    folder = tmp_path_factory.mktemp("shapes")
    files = tuple(folder / f"{width}x{height}.png" for width, height in SIDES)
    for seed, (file, (width, height)) in enumerate(zip(files, SIDES, strict=True)):
        Image.fromarray(draw_photo(width, height, seed)).save(file)
    return files


def resized(image: Image.Image, scale: float | None, rows: int, columns: int) -> Pixels:
    """Resize with Pillow: the whole image, or a centered window of `scale` times the largest of that shape."""
    width, height = image.size
    times = min(width / columns, height / rows) * (scale or 1)
    w, h = times * columns, times * rows
    window = ((width - w) / 2, (height - h) / 2, (width + w) / 2, (height + h) / 2)
    box = None if scale is None else window
    return np.asarray(image.convert("RGB").resize((columns, rows), Image.Resampling.BILINEAR, box=box)).astype(int)


CROPS: list[tuple[dict[str, Any], float | None]] = [
    ({}, None),
    ({"resize": {}}, None),
    ({"center_crop": {}}, 1.0),
    ({"center_crop": {"scale": 0.5}}, 0.5),
    ({"center_crop": {"scale": 0.875}}, 0.875),
]


@pytest.mark.parametrize(("steps", "scale"), CROPS, ids=["none", "resize", "center", "center half", "center 7/8"])
@pytest.mark.parametrize("size", [[24, 24], [24, 40]], ids=str)
def test_crop_against_pillow(
    steps: dict[str, Any], scale: float | None, size: list[int], shapes: tuple[Path, ...], device: torch.device
) -> None:
    expected = np.stack([resized(Image.open(file), scale, *size) for file in shapes])
    # All images are one batch: each has its own square. Pillow rounds between its two passes, DALI does not; where
    # a side shrinks eightfold, their antialiasing differs by some levels at its ends.
    assert_close(pixels(steps, shapes, device, size=size), expected, most=8, mean=0.25)


@pytest.mark.parametrize(("steps", "scale"), [CROPS[0], CROPS[3]], ids=["none", "center half"])
def test_jpeg_comes_out_upright(
    steps: dict[str, Any], scale: float | None, tmp_path: Path, device: torch.device
) -> None:
    photo = Image.fromarray(draw_photo(90, 60, 3))
    files = [tmp_path / "gray.jpg"]
    photo.convert("L").save(files[0], quality=95)
    for orientation in range(1, 9):
        files.append(tmp_path / f"orientation {orientation}.jpg")
        exif = Image.Exif()
        exif[0x0112] = orientation
        photo.save(files[-1], quality=95, exif=exif)
    result = pixels(steps, files, device, decode=True, size=32)
    expected = np.stack([resized(ImageOps.exif_transpose(Image.open(file)), scale, 32, 32) for file in files])
    # The GPU's decoder has another inverse transform and chroma upsampling.
    most, mean = (3, 0.3) if device.type == "cpu" else (27, 1.5)
    off = {file.stem: np.abs(one - other) for file, one, other in zip(files, result, expected, strict=True)}
    assert {name: (o.max(), o.mean()) for name, o in off.items() if o.max() > most or o.mean() > mean} == {}


@pytest.mark.parametrize(
    ("area", "aspect"), [((0.35, 1.0), (3 / 4, 4 / 3)), ((0.1, 0.2), (0.5, 2.0)), ((0.3, 0.4), (2.0, 2.0))]
)
def test_random_windows_stay_in_their_ranges(
    area: tuple[float, float], aspect: tuple[float, float], tmp_path: Path, device: torch.device
) -> None:
    """By their frames, which test_frames.py compares with pixels."""
    sides, count = np.array([250, 200]), 200
    Image.new("RGB", (250, 200)).save(tmp_path / "it.png")
    plan = plan_of({"random_resized_crop": {"area_range": area, "aspect_range": aspect}}, "train")
    split = Split((tmp_path / "it.png",) * count, (0,) * count)
    (batch,) = build_loader(plan, split, batch_size=count, seed=SEED, device=device, frames=True)
    scale, shift = (batch.frames[:, [0, 1], columns].numpy() for columns in ([0, 1], [2, 2]))
    extent, start = SIZE / scale, 0.5 - (0.5 + shift) / scale
    assert (start > -1e-3).all()
    assert (start + extent < sides + 1e-3).all()
    share, ratio = extent.prod(axis=1) / sides.prod(), extent[:, 0] / extent[:, 1]
    off = 0.03  # of sides that are whole pixels
    assert ((share > area[0] * (1 - off)) & (share < area[1] * (1 + off))).all()
    assert ((ratio > aspect[0] * (1 - off)) & (ratio < aspect[1] * (1 + off))).all()
    # They fill their ranges, and the image.
    assert np.ptp(share) >= 0.6 * (area[1] - area[0])
    assert np.ptp(np.log(ratio)) >= 0.8 * np.log(aspect[1] / aspect[0])
    room = 0.1 * (sides - extent.min(axis=0))
    assert (start.min(axis=0) < room).all()
    assert ((start + extent).max(axis=0) > sides - room).all()


def test_random_windows_have_the_seed_of_their_run_epoch_split_and_rank(
    photos: tuple[Path, ...], device: torch.device
) -> None:
    steps = {"random_resized_crop": {"area_range": [0.1, 0.2]}}
    train, val = (plan_of(steps, split, size=16) for split in ("train", "val"))
    ways: list[tuple[Plan, dict[str, Any]]] = [
        (train, {}),
        (train, {"seed": SEED + 1}),
        (train, {"epoch": 1}),
        (train, {"shard": RankShard(1, 2)}),
        (val, {}),
    ]
    firsts = np.concatenate(
        [run(plan, photos[:1] * 2, device, batch_size=1, **options)[0][:1] for plan, options in ways]
    )
    assert len(np.unique(firsts, axis=0)) == len(ways)
