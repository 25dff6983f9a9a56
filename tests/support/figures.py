"""Draw figures without a file, and check that they are whole and legible."""

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from numpy.typing import NDArray
from PIL import Image

from trainer.figures import batches as style

LONG = "n02979186_a_cassette_player_with_an_uncommonly_long_name_and_a_tail"


def confusion(size: int) -> NDArray[np.int64]:
    return np.random.default_rng(0).integers(1, 400, (size, size)) + np.diag(np.full(size, 1000))


def image_files(count: int, height: int, width: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def read_png(path: Path) -> NDArray[np.uint8]:
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def figure_of(plot: Callable[..., None], *args: Any, **options: Any) -> Figure:
    """Return the figure that a function draws, without writing a file."""
    figures: list[Figure] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "save_figure", lambda figure, *_, **__: figures.append(figure))
        plot(*args, path=Path("unwritten.png"), **options)
    (figure,) = figures
    return figure


def draw(figure: Figure) -> NDArray[np.uint8]:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    return np.asarray(canvas.buffer_rgba())[..., :3]  # type: ignore[no-untyped-call]


def assert_whole(pixels: NDArray[np.uint8]) -> None:
    """Nothing touches the border of the image, and there is something in it."""
    inside = pixels[2:-2, 2:-2]
    assert inside.std() > 1
    assert pixels.sum(dtype=np.int64) - inside.sum(dtype=np.int64) == (pixels.size - inside.size) * 255


def extents(texts: Sequence[Text]) -> list[Bbox]:
    return [text.get_window_extent() for text in texts if text.get_text()]


def assert_apart(boxes: Sequence[Bbox]) -> None:
    assert not [pair for pair in combinations(boxes, 2) if pair[0].padded(-1).overlaps(pair[1].padded(-1))]
