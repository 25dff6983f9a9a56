"""Fixtures for every test: a handful of small pictures, and the devices that augmentation runs on."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter
from rich.console import Console

from augment.dataset import Split
from augment.registry import _OPS

# What tests share checks too, and is to say what it found as they do.
pytest.register_assert_rewrite("op_checks", "passes", "pipelines", "rendering")

# (width, height): both orientations, squares, narrow strips, odd sides.
SIZES = ((48, 32), (32, 48), (40, 40), (90, 24), (20, 70), (33, 57), (64, 64))

SQUARE = 32  # px, the side of `squares`


@pytest.fixture(
    params=[
        pytest.param("cpu", id="cpu"),
        pytest.param(
            "cuda",
            id="gpu",
            marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")],
        ),
    ]
)
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where batches are made: the CPU, and the GPU where there is one."""
    return torch.device(request.param)


def draw_photo(width: int, height: int, seed: int) -> NDArray[np.uint8]:
    """Draw discs of several colors on a colored ground, blurred with sigma 2 px: (height, width, 3), RGB in 70..190.

    Like a photo it is smooth but for a few soft edges, it looks different in every mirror image, and mild color
    changes do not clip it.
    """
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (width, height), tuple(rng.integers(70, 190, 3).tolist()))
    draw = ImageDraw.Draw(image)
    for _ in range(12):
        x, y = int(rng.integers(width)), int(rng.integers(height))
        radius = 3 + int(rng.integers(max(1, min(width, height) // 3)))
        color = tuple(rng.integers(70, 190, 3).tolist())
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=color)
    return np.asarray(image.filter(ImageFilter.GaussianBlur(2)))


@pytest.fixture(scope="session")
def squares(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """24 PNGs, which no decoder and no resize to their own size changes, of levels 20..235."""
    folder = tmp_path_factory.mktemp("squares")
    files = tuple(folder / f"{seed}.png" for seed in range(24))
    for seed, file in enumerate(files):
        photo = draw_photo(SQUARE, SQUARE, seed).astype(float)
        stretched = 20 + (photo - photo.min()) / np.ptp(photo) * 215
        Image.fromarray(stretched.astype(np.uint8)).save(file)
    return files


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """One pixel, strips in both directions, an odd rectangle, a gray picture and a black one."""
    folder = tmp_path_factory.mktemp("shapes")
    files = []
    for width, height in ((1, 1), (1, 200), (200, 1), (33, 57)):
        files.append(folder / f"{width}x{height}.png")
        Image.fromarray(draw_photo(width, height, 3)).save(files[-1])
    files += [folder / "gray.png", folder / "black.png"]
    Image.fromarray(draw_photo(40, 50, 4)).convert("L").save(files[-2])
    Image.new("RGB", (40, 40)).save(files[-1])
    return tuple(files)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Split:
    """Seven JPEGs of varied size and aspect, of three classes in mixed order."""
    folder = tmp_path_factory.mktemp("pictures")
    files = tuple(folder / f"{width}x{height}.jpg" for width, height in SIZES)
    for seed, (file, (width, height)) in enumerate(zip(files, SIZES, strict=True)):
        Image.fromarray(draw_photo(width, height, seed)).save(file, quality=90)
    return Split(files, targets=(2, 0, 1, 1, 2, 0, 2))


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Six smooth PNGs of 64 x 64 px (`draw_photo`), which every decoder reads alike."""
    folder = tmp_path_factory.mktemp("photos")
    files = tuple(folder / f"{seed}.png" for seed in range(6))
    for seed, file in enumerate(files):
        Image.fromarray(draw_photo(64, 64, seed)).save(file)
    return files


@pytest.fixture(scope="session")
def grays(tmp_path_factory: pytest.TempPathFactory) -> Split:
    """Plain gray PNGs: the level of a picture tells its index, and its target is neither."""
    from passes import FILES, SIZE, level

    folder = tmp_path_factory.mktemp("grays")
    files = tuple(folder / f"{index}.png" for index in range(FILES))
    for index, file in enumerate(files):
        Image.new("RGB", (SIZE, SIZE), (level(index),) * 3).save(file)
    return Split(files, tuple(7 * index % 5 for index in range(FILES)))


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of three epochs on red, green and blue pictures, whose own pictures are gone since."""
    from augment.compose import compose
    from trainer.config import parse_config
    from trainer.run import train

    root = tmp_path_factory.mktemp("run")
    for split in ("train", "val"):
        for channel, name in enumerate(("red", "green", "blue")):
            (root / "data" / split / name).mkdir(parents=True)
            for seed in range(6):
                photo = draw_photo(40, 30, 100 * channel + seed) // 2
                photo[..., channel] += 120
                Image.fromarray(photo).save(root / "data" / split / name / f"{seed}.png")
    given = ["data=folder", f"data.root={root / 'data'}", "aug.size=16", "fit.batch_size=6", "fit.epochs=3"]
    aug = [
        "aug.val.center_crop.scale=0.9",
        "fit.device=cpu",
        "fit.threads=1",
        "callbacks.plots=null",
        "callbacks.progress_bar=null",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)  # the check of the files is kept below outputs/
        train(parse_config(compose([*given, *aug])), root / "run", console=Console(quiet=True))
    shutil.rmtree(root / "data")
    return root / "run"


@pytest.fixture
def clean_registry() -> Iterator[None]:
    """Take out of the registry, and of the imported modules, whatever the test put there."""
    ops, modules = dict(_OPS), set(sys.modules)
    yield
    _OPS.clear()
    _OPS.update(ops)
    for module in set(sys.modules) - modules:
        del sys.modules[module]
