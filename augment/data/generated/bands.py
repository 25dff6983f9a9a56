"""A small generated dataset of satellite images with ten 16-bit channels, for classification and segmentation.

An image shows a few fields, each with one of ten kinds of land cover. Its class is the cover around the fields. Six
covers differ only outside red, green and blue: four kinds of vegetation look the same, and snow looks like clouds. So a
model that sees only these three channels cannot tell them apart. An image is a pure function of its split, class and
index.
"""

from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from augment.data.generated.sample import generate_dataset, save, seeded

# Part of the folder's name. Increase it when images change.
VERSION = 1

TRAIN, VAL = 32, 30  # images per class
SIDE = 64  # pixels

# Reflectance times 10,000 in the bands of Sentinel-2 with at least 20 m resolution. Values are typical, not measured.
BANDS = ("B2", "B3", "B4", "B5", "B6", "B7", "B8", "B8A", "B11", "B12")
RGB_BANDS = (2, 1, 0)
SPECTRA = {
    "broadleaf": (350, 650, 400, 1000, 2400, 3000, 3200, 3400, 1700, 800),
    "city": (1400, 1500, 1650, 1750, 1850, 1950, 2050, 2100, 2300, 2100),
    "cloud": (8000, 8200, 8000, 7900, 8000, 8000, 7900, 7800, 5000, 4000),
    "conifer": (350, 650, 400, 800, 1700, 2000, 2100, 2300, 1000, 450),
    "crop": (350, 650, 400, 1200, 3400, 4400, 4700, 4800, 2400, 1200),
    "meadow": (350, 650, 400, 1200, 2100, 2400, 2600, 2800, 2700, 1600),
    "sand": (1600, 2100, 2600, 2800, 2900, 3000, 3100, 3200, 3800, 3500),
    "snow": (8000, 8200, 8000, 7900, 7700, 7500, 7200, 7000, 1000, 800),
    "soil": (900, 1200, 1600, 1900, 2100, 2300, 2500, 2600, 3200, 2800),
    "water": (600, 550, 400, 350, 300, 280, 260, 250, 220, 200),
}
COVER_NAMES = tuple(SPECTRA)


def draw_bands(split: str, name: str, index: int) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
    """Return an image of a class, (height, width, channels), and the cover of each pixel, (height, width)."""
    rng = seeded("bands", split, name, index)
    covers = _draw_fields(rng, COVER_NAMES.index(name))
    # Brightness and color of a cover vary between images.
    varied = rng.uniform(0.85, 1.15, (len(COVER_NAMES), 1)) * rng.uniform(0.92, 1.08, (len(COVER_NAMES), len(BANDS)))
    spectra = np.array(list(SPECTRA.values())) * varied
    cells = Image.fromarray(rng.integers(0, 256, rng.integers(4, 17, 2), np.uint8))
    texture = np.asarray(cells.resize((SIDE, SIDE), Image.Resampling.BILINEAR)) / 255
    light = rng.uniform(0.75, 1.05) * (0.85 + 0.3 * texture)
    noise = rng.standard_normal((SIDE, SIDE, len(BANDS))) * rng.uniform(20, 120)
    values = spectra[covers] * light[..., None] + noise
    return np.rint(values).clip(1, 65535).astype(np.uint16), covers


def _draw_fields(rng: Generator, main: int) -> NDArray[np.uint8]:
    """Return covers, (height, width): a few polygons of random covers in the main cover."""
    covers = Image.new("L", (SIDE, SIDE), main)
    canvas = ImageDraw.Draw(covers)
    for _ in range(rng.integers(3, 6)):
        center, radius, corners = rng.uniform(0, SIDE, 2), rng.uniform(9, 18), rng.integers(3, 9)
        angle = np.sort(rng.uniform(0, 2 * np.pi, corners))
        shape = center + radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        canvas.polygon(shape.ravel().tolist(), fill=int(rng.integers(len(COVER_NAMES))))
    return np.asarray(covers)


def generate_bands(root: Path) -> Path:
    """Generate the dataset in a new folder below `root`, see `generate_dataset`.

    It holds images in `{train,val}/<class>/<index>.npy`, and their masks in `masks/{train,val}/<class>/<index>.png`.
    """
    images = {
        f"{split}/{name}/{index:03d}.npy": (split, name, index)
        for split, count in {"train": TRAIN, "val": VAL}.items()
        for name in COVER_NAMES
        for index in range(count)
    }
    return generate_dataset(root / f"bands-v{VERSION}-{TRAIN}-{VAL}", images, _save_bands)


def _save_bands(file: Path, split: str, name: str, index: int) -> None:
    pixels, covers = draw_bands(split, name, index)
    file.parent.mkdir(parents=True, exist_ok=True)
    np.save(file, pixels)
    save(Image.fromarray(covers), mask_of(file))


def mask_of(file: Path) -> Path:
    """Return the file of an image's mask."""
    folder, split, name = file.parents[2], file.parts[-3], file.parts[-2]
    return folder / "masks" / split / name / f"{file.stem}.png"
