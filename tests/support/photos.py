"""Small images that tests draw."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

# (width, height): both orientations, squares, narrow strips, odd sides.
SIZES = ((48, 32), (32, 48), (40, 40), (90, 24), (20, 70), (33, 57), (64, 64))

SQUARE = 32  # px, the side of `squares`


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
