"""A small picture set that the project draws itself: ten kinds of things, nothing to download.

Every picture is a pure function of its place in the set (split, class, index), so that the set is the same wherever and
in whatever order it is made. A thing is a list of colored polygons under a random homography, drawn large over a random
background and averaged down. The train split is small on purpose: a network that sees each picture one way only learns
them by heart.
"""

import os
import tempfile
from collections.abc import Callable, Mapping
from colorsys import hls_to_rgb
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter
from rich.console import Console
from rich.progress import track

from augment.errors import UserError

VERSION = 1
"""Part of the folder's name; raise it with any change of the drawing, so that no old set passes for the new one."""

TRAIN_PER_CLASS = 32
VAL_PER_CLASS = 50
MEAN_SIDE_RANGE = (115.0, 185.0)
"""Square root of a picture's area in pixels; with the aspects below the sides come to 96..219."""
ASPECT_RANGE = (0.7, 1.4)
OVERSAMPLING = 2
JPEG_QUALITY = 90

Points = NDArray[np.float64]
Tone = tuple[float, float, float]
"""Hue, lightness and saturation, each in 0..1."""
Part = tuple[Tone, Points]
"""A tone and a polygon, (n, 2), x to the right and y down in about -1..1."""

AMBER, BLACK, BRICK, BROWN = (0.14, 0.55, 0.95), (0.7, 0.12, 0.2), (0.02, 0.4, 0.7), (0.07, 0.28, 0.6)
BLUE, CREAM, CRIMSON, GLASS = (0.62, 0.5, 0.85), (0.12, 0.88, 0.55), (0.97, 0.48, 0.9), (0.53, 0.85, 0.5)
GREEN, NAVY, ORANGE, PINK = (0.33, 0.38, 0.7), (0.6, 0.3, 0.5), (0.07, 0.52, 0.95), (0.88, 0.6, 0.85)
RED, ROSE, SAND, TEAL = (0.0, 0.45, 0.85), (0.97, 0.8, 0.8), (0.11, 0.75, 0.6), (0.48, 0.45, 0.8)


def ellipse(x: float, y: float, rx: float, ry: float, start: float = 0, stop: float = 360) -> Points:
    """Return an ellipse, or its arc between two angles in degrees, clockwise from the right."""
    t = np.radians(np.linspace(start, stop, 40))
    return np.stack([x + rx * np.cos(t), y + ry * np.sin(t)], axis=1)


def polygon(*corners: tuple[float, float]) -> Points:
    """Return the corners as an array."""
    return np.array(corners, dtype=np.float64)


def box(left: float, top: float, right: float, bottom: float) -> Points:
    """Return an upright rectangle."""
    return polygon((left, top), (right, top), (right, bottom), (left, bottom))


def boat(rng: Generator) -> list[Part]:
    """Hull, mast and one or two sails."""
    mast, deck, flare = rng.uniform(-0.15, 0.15), rng.uniform(0.3, 0.5), rng.uniform(0.2, 0.4)
    parts = [
        (RED, polygon((-0.95, deck), (0.95, deck), (0.95 - flare, 0.9), (-0.95 + flare, 0.9))),
        (BROWN, box(mast - 0.04, -0.95, mast + 0.04, deck)),
        (CREAM, polygon((mast + 0.08, -0.9), (mast + 0.08, deck - 0.1), (0.8, deck - 0.1))),
    ]
    if rng.random() < 0.7:
        parts.append((CREAM, polygon((mast - 0.08, -0.7), (mast - 0.08, deck - 0.1), (-0.7, deck - 0.1))))
    return parts


def car(rng: Generator) -> list[Part]:
    """Cabin with two windows, body and two wheels."""
    roof, front, back = rng.uniform(-0.6, -0.4), rng.uniform(0.2, 0.5), rng.uniform(-0.7, -0.4)
    top, pillar = roof + 0.1, (back + front) / 2
    parts = [
        (BLUE, polygon((back, roof), (front, roof), (front + 0.3, 0), (back - 0.2, 0))),
        (GLASS, polygon((back + 0.08, top), (front - 0.04, top), (front + 0.16, -0.05), (back - 0.02, -0.05))),
        (BLUE, box(pillar - 0.05, roof, pillar + 0.05, 0)),
        (BLUE, polygon((-0.95, -0.02), (0.75, -0.02), (0.98, 0.12), (0.98, 0.42), (-0.95, 0.42))),
    ]
    for x in (-0.52, 0.52):
        parts += [(BLACK, ellipse(x, 0.44, 0.24, 0.24)), (GLASS, ellipse(x, 0.44, 0.12, 0.12))]
    return parts


def cup(rng: Generator) -> list[Part]:
    """A tapered body with a handle, seen a little from above."""
    foot, rim, reach = rng.uniform(0.35, 0.55), rng.uniform(0.55, 0.65), rng.uniform(0.3, 0.4)
    handle = np.concatenate([ellipse(0.3, 0.05, reach, 0.42, -90, 90), ellipse(0.3, 0.05, reach - 0.14, 0.28, 90, -90)])
    body = np.concatenate([polygon((-rim - 0.2, -0.6), (rim - 0.2, -0.6)), ellipse(-0.2, 0.7, foot, 0.14, 0, 180)])
    return [(TEAL, handle), (TEAL, body), (BROWN, ellipse(-0.2, -0.6, rim, rng.uniform(0.1, 0.2)))]


def fish(rng: Generator) -> list[Part]:
    """Tail, fins, body and eye."""
    girth, fork = rng.uniform(0.35, 0.5), rng.uniform(0.35, 0.55)
    return [
        (BRICK, polygon((-0.4, 0), (-0.98, -fork), (-0.82, 0), (-0.98, fork))),
        (BRICK, polygon((-0.2, -girth + 0.1), (0.05, -girth - 0.25), (0.4, -girth + 0.12))),
        (ORANGE, ellipse(0.2, 0, 0.75, girth)),
        (BRICK, polygon((-0.05, 0.08), (0.2, 0.14), (-0.08, 0.3))),
        (BLACK, ellipse(0.62, -0.1, 0.09, 0.09)),
    ]


def flower(rng: Generator) -> list[Part]:
    """Five to eight petals around a disc, on a stem with a leaf."""
    count, turn, width = int(rng.integers(5, 9)), rng.uniform(0, 2 * np.pi), rng.uniform(0.75, 1.05)
    leaf = ellipse(0, 0, 0.24, 0.1) @ np.array([[0.8, -0.6], [0.6, 0.8]]) + [0.22, 0.6]
    parts = [(GREEN, box(-0.05, 0, 0.05, 1)), (GREEN, leaf)]
    for angle in turn + 2 * np.pi / count * np.arange(count):
        c, s = np.cos(angle), np.sin(angle)
        parts.append((PINK, ellipse(0.38, 0, 0.25, width / count) @ np.array([[c, s], [-s, c]]) - [0, 0.35]))
    return [*parts, (AMBER, ellipse(0, -0.35, 0.2, 0.2))]


def heart(rng: Generator) -> list[Part]:
    """The curve of x = 16 sin^3 t, at times with a highlight."""
    t = np.linspace(0, 2 * np.pi, 60)
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    parts = [(CRIMSON, np.stack([0.95 * np.sin(t) ** 3, -rng.uniform(0.85, 1.05) * y / 16 - 0.1], axis=1))]
    return [*parts, (ROSE, ellipse(-0.45, -0.45, 0.16, 0.1))] if rng.random() < 0.5 else parts


def house(rng: Generator) -> list[Part]:
    """Often a chimney, walls, roof, door and window."""
    eaves, half, door = rng.uniform(-0.25, 0.0), rng.uniform(0.6, 0.75), rng.choice([-0.3, 0.0, 0.3])
    window = -0.35 if door > 0 else 0.35
    parts = [(NAVY, box(0.3, -0.85, 0.5, eaves))] if rng.random() < 0.7 else []
    return [
        *parts,
        (SAND, box(-half, eaves, half, 0.85)),
        (BRICK, polygon((-half - 0.2, eaves), (0, -0.95), (half + 0.2, eaves))),
        (NAVY, box(door - 0.13, 0.3, door + 0.13, 0.85)),
        (NAVY, box(window - 0.14, 0.12, window + 0.14, 0.4)),
    ]


def mushroom(rng: Generator) -> list[Part]:
    """A domed cap with three dots on a stem."""
    rim, stem = rng.uniform(-0.05, 0.2), rng.uniform(0.18, 0.3)
    dots = ((-0.45, -0.25, 0.12), (0.05, -0.5, 0.14), (0.5, -0.2, 0.1))
    return [
        (CREAM, polygon((-stem, rim - 0.1), (stem, rim - 0.1), (stem + 0.1, 0.9), (-stem - 0.1, 0.9))),
        (RED, ellipse(0, rim, 0.92, rng.uniform(0.75, 1.0), 180, 360)),
        *((CREAM, ellipse(x, rim + y, r, r)) for x, y, r in dots),
    ]


def star(rng: Generator) -> list[Part]:
    """Five points, fat or slim."""
    radius, angle = np.where(np.arange(10) % 2, rng.uniform(0.38, 0.55), 1.0), np.radians(36 * np.arange(10) - 90)
    return [(AMBER, np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1))]


def tree(rng: Generator) -> list[Part]:
    """A fir of three tiers or a round crown, on a trunk."""
    trunk = (BROWN, box(-0.1, 0.2, 0.1, 0.98))
    if rng.random() < 0.5:
        tiers = ((-0.05, 0.65, 0.8), (-0.45, 0.25, 0.62), (-0.95, -0.15, 0.45))
        return [trunk, *((GREEN, polygon((0, top), (half, foot), (-half, foot))) for top, foot, half in tiers)]
    puffs = ((-0.38, -0.1), (0.38, -0.1), (0, -0.5), (0, -0.15))
    return [trunk, *((GREEN, ellipse(x, y, 0.45, 0.42)) for x, y in puffs)]


THINGS: dict[str, Callable[[Generator], list[Part]]] = {
    f.__name__: f for f in (boat, car, cup, fish, flower, heart, house, mushroom, star, tree)
}
CLASSES = tuple(THINGS)


def shade(rng: Generator, tone: Tone, spread: Tone) -> tuple[int, int, int]:
    """Return RGB in 0..255 near a tone: each of hue, lightness and saturation at most its spread away."""
    hue, lightness, saturation = np.array(tone) + rng.uniform(-1, 1, 3) * spread
    r, g, b = hls_to_rgb(hue % 1, min(max(lightness, 0.06), 0.94), min(max(saturation, 0), 1))
    return round(255 * r), round(255 * g), round(255 * b)


def to_image(pixels: NDArray[np.float32]) -> Image.Image:
    """Return (height, width, 3) values around 0..255 as a picture."""
    return Image.fromarray(np.rint(pixels).clip(0, 255).astype(np.uint8))


def backdrop(rng: Generator, size: tuple[int, int], lightness: float) -> Image.Image:
    """Return a dull gradient of a few colors with a cloudy or striped texture; size is (width, height)."""
    tone, (rows, columns) = (rng.random(), lightness, 0.13), rng.integers(2, 5, 2)
    colors = [[shade(rng, tone, (0.12, 0.15, 0.13)) for _ in range(columns)] for _ in range(rows)]
    smooth = Image.fromarray(np.array(colors, np.uint8)).resize(size, Image.Resampling.BICUBIC)
    if rng.random() < 0.3:
        y, x = np.ogrid[: size[1], : size[0]]
        angle, frequency = rng.uniform(0, np.pi), 2 * np.pi / rng.uniform(6, 24)
        texture = np.sin(frequency * (x * np.cos(angle) + y * np.sin(angle)))
    else:
        cells = Image.fromarray(rng.integers(0, 256, rng.integers(6, 30, 2), np.uint8))
        texture = np.asarray(cells.resize(size, Image.Resampling.BICUBIC)) / 127.5 - 1
    return to_image(np.asarray(smooth) + np.float32(rng.uniform(5, 20)) * texture[..., None].astype(np.float32))


def strew(rng: Generator, canvas: ImageDraw.ImageDraw, size: tuple[int, int], lightness: float) -> None:
    """Strew sticks, shards and discs over the background, half of them see-through."""
    for _ in range(rng.integers(2, 7)):
        center, radius, count = rng.uniform(0, size), rng.uniform(0.06, 0.25) * min(size), rng.choice([2, 3, 4, 30])
        angle = np.sort(rng.uniform(0, 2 * np.pi, count))
        shape = center + radius * np.stack([np.cos(angle), rng.uniform(0.4, 1) * np.sin(angle)], axis=1)
        fill = (*shade(rng, (0, lightness, 0.2), (0.5, 0.25, 0.2)), int(rng.choice([110, 255])))
        if count == 2:
            canvas.line(shape.ravel().tolist(), fill=fill, width=round(rng.uniform(0.02, 0.06) * min(size)))
        else:
            canvas.polygon(shape.ravel().tolist(), fill=fill)


def view(rng: Generator, size: tuple[int, int], radius_range: tuple[float, float] = (0.28, 0.44)) -> Points:
    """Return the homography (3, 3) from a thing's coordinates to pixels: perspective, shear, mirror, tilt, place."""
    radius = rng.uniform(*radius_range) * min(size)
    x, y = np.array(size) / 2 + rng.uniform(-1, 1, 2) * (min(size) / 2 - 0.85 * radius)
    perspective = np.array([[1, 0, 0], [0, 1, 0], [*rng.uniform(-0.15, 0.15, 2), 1]])
    shear = np.array([[rng.choice([-1, 1]), rng.uniform(-0.2, 0.2), 0], [rng.uniform(-0.15, 0.15), 1, 0], [0, 0, 1]])
    tilt, stretch = np.radians(rng.uniform(-20, 20)), np.exp(rng.uniform(-0.12, 0.12))
    c, s = np.cos(tilt), np.sin(tilt)
    rotate = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    place = np.array([[radius * stretch, 0, x], [0, radius / stretch, y], [0, 0, 1]])
    return np.asarray(place @ rotate @ shear @ perspective)


def put(rng: Generator, canvas: ImageDraw.ImageDraw, parts: list[Part], matrix: Points) -> None:
    """Draw a thing over what is there, at times with a shadow or an outline."""
    faded = rng.uniform(-0.1, 0.1)
    paint = {tone: shade(rng, (tone[0], tone[1] + faded, tone[2]), (0.04, 0.05, 0.15)) for tone, _ in parts}
    shapes = []
    for tone, points in parts:
        x, y, w = matrix @ np.append(points, np.ones((len(points), 1)), axis=1).T
        shapes.append((paint[tone], np.stack([x / w, y / w], axis=1)))
    scale = np.sqrt(abs(np.linalg.det(matrix[:2, :2])))
    if rng.random() < 0.5:
        offset = rng.uniform(-0.14, 0.14, 2) * scale
        for _, shape in shapes:
            canvas.polygon((shape + offset).ravel().tolist(), fill=(0, 0, 0, 60))
    outline = shade(rng, (0, rng.choice([0.12, 0.88]), 0.3), (0.5, 0.05, 0.3)) if rng.random() < 0.35 else None
    for fill, shape in shapes:
        canvas.polygon(shape.ravel().tolist(), fill=fill)
        if outline:
            closed = np.append(shape, shape[:2], axis=0)
            canvas.line(closed.ravel().tolist(), fill=outline, width=max(1, round(0.035 * scale)), joint="curve")


def expose(rng: Generator, image: Image.Image) -> Image.Image:
    """Light the scene from one side, blur it a little and add the noise of a sensor."""
    width, height = image.size
    slope_x, slope_y = rng.uniform(-0.25, 0.25, 2)
    light = 1 + slope_x * np.linspace(-1, 1, width) + slope_y * np.linspace(-1, 1, height)[:, None]
    light = np.float32(rng.uniform(0.8, 1.1)) * light[..., None].astype(np.float32)
    noise = rng.standard_normal((height, width, 3), np.float32) * np.float32(rng.uniform(2, 10))
    return to_image(np.asarray(image.filter(ImageFilter.GaussianBlur(rng.uniform(0, 0.9)))) * light + noise)


def draw(name: str, split: str, index: int) -> Image.Image:
    """Return one picture of the set, RGB.

    Args:
        name: one of `CLASSES`.
        split: "train" or "val"; they differ in nothing but the seeds.
        index: which picture of that class and split, from 0.
    """
    rng = Generator(np.random.Philox(np.random.SeedSequence(list(f"{split}/{name}/{index}".encode()))))
    side, aspect = rng.uniform(*MEAN_SIDE_RANGE), np.exp(rng.uniform(*np.log(ASPECT_RANGE)))
    width, height = round(side * np.sqrt(aspect)), round(side / np.sqrt(aspect))
    lightness = rng.uniform(0.1, 0.9)
    scene = backdrop(rng, (width, height), lightness).resize((width * OVERSAMPLING, height * OVERSAMPLING))
    canvas = ImageDraw.Draw(scene, "RGBA")
    strew(rng, canvas, scene.size, lightness)
    put(rng, canvas, THINGS[name](rng), view(rng, scene.size))
    return expose(rng, scene.reduce(OVERSAMPLING))


def make_sample(root: Path, *, train_per_class: int = TRAIN_PER_CLASS, val_per_class: int = VAL_PER_CLASS) -> Path:
    """Draw the set into a folder of its own under `root`, unless it is there already.

    The set appears whole or not at all: it is drawn beside and renamed. An interrupted call leaves nothing, and of
    several processes the first to finish wins.

    Args:
        root: where the folder goes; made when missing.
        train_per_class: pictures of each class in the train split.
        val_per_class: pictures of each class in the val split.

    Returns:
        The folder, with {train,val}/<class>/<index>.jpg.

    Raises:
        UserError: the folder cannot be written.
    """
    folder = root / f"sample-v{VERSION}-{train_per_class}-{val_per_class}"
    counts = {"train": train_per_class, "val": val_per_class}
    places = [(split, name, index) for split, count in counts.items() for name in CLASSES for index in range(count)]
    pictures = {f"{split}/{name}/{index:03d}.jpg": (name, split, index) for split, name, index in places}
    return make_set(folder, lambda made: draw_all(made, pictures, draw))


def make_set(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Make a folder by a function that fills it, unless it is there already; it appears whole or not at all.

    Raises:
        UserError: it cannot be written.
    """
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as beside:
            made = Path(beside) / "set"
            made.mkdir()
            fill(made)
            _publish(made, folder)
    except OSError as error:
        raise UserError(
            f"Cannot write the sample set to {folder}: {error.strerror or error}. "
            "It needs a folder that can be written to, with some 10 MB of space."
        ) from error
    return folder


def draw_all(folder: Path, pictures: Mapping[str, tuple[Any, ...]], draw: Callable[..., Image.Image]) -> None:
    """Draw pictures into files.

    Args:
        folder: where they go.
        pictures: for each file, relative to the folder, what it is drawn from.
        draw: draws one.
    """
    for parent in sorted({(folder / name).parent for name in pictures}):
        parent.mkdir(parents=True, exist_ok=True)

    def save(name: str) -> None:
        draw(*pictures[name]).save(folder / name, quality=JPEG_QUALITY)

    # Threads, as most of the time goes into Pillow and NumPy calls that release the GIL.
    pool = ThreadPoolExecutor(min(os.cpu_count() or 1, 8))
    try:
        done = pool.map(save, pictures)
        for _ in track(done, "Drawing the sample set", len(pictures), console=Console(stderr=True), transient=True):
            pass
    finally:
        pool.shutdown(cancel_futures=True)


def _publish(made: Path, folder: Path) -> None:
    """Rename a finished set to its place, unless another process was first."""
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
