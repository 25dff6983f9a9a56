"""Six small pictures that are drawn alike in every environment; `originals` has them as files."""

from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).parent
ORIGINALS = HERE / "originals"
NAMES = ["cat", "dog", "emu"]
TARGETS = [0, 1, 2, 0, 1, 2]
SIZES = [(32, 32), (48, 32), (40, 36), (32, 48), (33, 35), (36, 36)]  # width, height


def draw(number):
    """Return (height, width, 3) uint8 RGB; no channel, mirror image or turn is like another."""
    width, height = SIZES[number]
    y, x = np.mgrid[:height, :width]
    pixels = np.stack([4 * x + 20 * number, 5 * y, 250 - 3 * x - 2 * y], axis=-1).clip(0, 255).astype(np.uint8)
    pixels[3:9, 4 : 10 + 2 * number] = (230, 40 * number, 10)
    pixels[-12:-6, 2:7] = (20, 200, 255 - 30 * number)
    return pixels


def encoded():
    """Return the files' names and bytes: PNG and JPEG in turn."""
    names = [f"{number}.{'jpg' if number % 2 else 'png'}" for number in range(6)]
    return [(name, (ORIGINALS / name).read_bytes()) for name in names]


if __name__ == "__main__":
    ORIGINALS.mkdir(exist_ok=True)
    for number in range(6):
        image = Image.fromarray(draw(number))
        image.save(ORIGINALS / f"{number}.png", optimize=True)
        if number % 2:
            image.save(ORIGINALS / f"{number}.jpg", quality=85)
