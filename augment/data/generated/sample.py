"""Small generated datasets: ten kinds of things, one per image, or one to four per scene.

Every image is a pure function of its split, class and index, so a dataset is the same on every machine. A thing (see
`shapes`) is moved by a random homography, drawn enlarged over a random background, and averaged down. The train split
is small on purpose: a network without augmentation overfits it.
"""

from collections.abc import Callable, Mapping
from colorsys import hls_to_rgb
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from augment.data.generated.shapes import THING_NAMES, THINGS, Part, Points, Tone
from augment.support.background import in_threads
from augment.support.console import progress_bar
from augment.support.errors import UserError
from augment.support.files import atomic_path
from augment.support.nested import grouped
from augment.support.process import cores

# Part of the folders' names. Increase it when images change, so that old folders are not used for new datasets.
VERSION = 1

SCENES = {"train": 400, "val": 300}  # of each split
OVERSAMPLING = 2
JPEG_QUALITY = 90

R = TypeVar("R")


def shade(rng: Generator, tone: Tone, spread: Tone) -> tuple[int, int, int]:
    """Return RGB in 0..255, whose hue, lightness and saturation differ from a tone by at most their spread."""
    hue, lightness, saturation = np.array(tone) + rng.uniform(-1, 1, 3) * spread
    r, g, b = hls_to_rgb(hue % 1, min(max(lightness, 0.06), 0.94), min(max(saturation, 0), 1))
    return round(255 * r), round(255 * g), round(255 * b)


def to_image(pixels: NDArray[np.float32]) -> Image.Image:
    """Convert (height, width, 3) values around 0..255 to an image."""
    return Image.fromarray(np.rint(pixels).clip(0, 255).astype(np.uint8))


def textured_gradient(rng: Generator, size: tuple[int, int], lightness: float) -> Image.Image:
    """Return a dull gradient of a few colors with a cloudy or striped texture. `size` is (width, height)."""
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


def scatter_shapes(rng: Generator, canvas: ImageDraw.ImageDraw, size: tuple[int, int], lightness: float) -> None:
    """Draw sticks, triangles and discs on the background, half of them translucent."""
    for _ in range(rng.integers(2, 7)):
        center, radius, count = rng.uniform(0, size), rng.uniform(0.06, 0.25) * min(size), rng.choice([2, 3, 4, 30])
        angle = np.sort(rng.uniform(0, 2 * np.pi, count))
        shape = center + radius * np.stack([np.cos(angle), rng.uniform(0.4, 1) * np.sin(angle)], axis=1)
        fill = (*shade(rng, (0, lightness, 0.2), (0.5, 0.25, 0.2)), int(rng.choice([110, 255])))
        if count == 2:
            canvas.line(shape.ravel().tolist(), fill=fill, width=round(rng.uniform(0.02, 0.06) * min(size)))
        else:
            canvas.polygon(shape.ravel().tolist(), fill=fill)


def homography(rng: Generator, size: tuple[int, int], radius_range: tuple[float, float] = (0.28, 0.44)) -> Points:
    """Return a homography (3, 3) from a thing's coordinates to pixels: perspective, shear, mirror, tilt and shift."""
    radius = rng.uniform(*radius_range) * min(size)
    x, y = np.array(size) / 2 + rng.uniform(-1, 1, 2) * (min(size) / 2 - 0.85 * radius)
    perspective = np.array([[1, 0, 0], [0, 1, 0], [*rng.uniform(-0.15, 0.15, 2), 1]])
    shear = np.array([[rng.choice([-1, 1]), rng.uniform(-0.2, 0.2), 0], [rng.uniform(-0.15, 0.15), 1, 0], [0, 0, 1]])
    tilt, stretch = np.radians(rng.uniform(-20, 20)), np.exp(rng.uniform(-0.12, 0.12))
    c, s = np.cos(tilt), np.sin(tilt)
    rotate = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    shift = np.array([[radius * stretch, 0, x], [0, radius / stretch, y], [0, 0, 1]])
    return np.asarray(shift @ rotate @ shear @ perspective)


def corner_homography(rng: Generator, size: tuple[int, int], corner: int, radius_range: tuple[float, float]) -> Points:
    """Return a homography for a thing in one of the four quarters of an image. The thing may extend beyond it."""
    quarter = size[0] // 2, size[1] // 2
    shift = np.eye(3)
    shift[:2, 2] = corner % 2 * quarter[0], corner // 2 * quarter[1]
    return np.asarray(shift @ homography(rng, quarter, radius_range))


def draw_thing(
    rng: Generator,
    canvas: ImageDraw.ImageDraw,
    parts: list[Part],
    matrix: Points,
    stencil: tuple[ImageDraw.ImageDraw, int] | None = None,
) -> None:
    """Draw a thing, sometimes with a shadow or an outline.

    `stencil` is a second canvas of the same size, and a gray value. The thing is also drawn on this canvas, in this
    gray value and without its shadow.
    """
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
        closed, width = np.append(shape, shape[:2], axis=0).ravel().tolist(), max(1, round(0.035 * scale))
        if outline:
            canvas.line(closed, fill=outline, width=width, joint="curve")
        if stencil:
            stencil[0].polygon(shape.ravel().tolist(), fill=stencil[1])
            if outline:
                stencil[0].line(closed, fill=stencil[1], width=width, joint="curve")


def add_camera_effects(rng: Generator, image: Image.Image) -> Image.Image:
    """Light the scene from one side, blur it a little and add sensor noise."""
    width, height = image.size
    slope_x, slope_y = rng.uniform(-0.25, 0.25, 2)
    light = 1 + slope_x * np.linspace(-1, 1, width) + slope_y * np.linspace(-1, 1, height)[:, None]
    light = np.float32(rng.uniform(0.8, 1.1)) * light[..., None].astype(np.float32)
    noise = rng.standard_normal((height, width, 3), np.float32) * np.float32(rng.uniform(2, 10))
    return to_image(np.asarray(image.filter(ImageFilter.GaussianBlur(rng.uniform(0, 0.9)))) * light + noise)


def random_background(rng: Generator, mean_side_range: tuple[float, float]) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    """Return a background of a random size, enlarged by `OVERSAMPLING`, and its canvas.

    The mean side is the square root of the image's area, in pixels.
    """
    side, aspect = rng.uniform(*mean_side_range), np.exp(rng.uniform(*np.log((0.7, 1.4))))
    return background(rng, (round(side * np.sqrt(aspect)), round(side / np.sqrt(aspect))))


def background(rng: Generator, size: tuple[int, int]) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    """Return a background of the given size, (width, height), enlarged by `OVERSAMPLING`, and its canvas."""
    lightness = rng.uniform(0.1, 0.9)
    scene = textured_gradient(rng, size, lightness).resize((size[0] * OVERSAMPLING, size[1] * OVERSAMPLING))
    canvas = ImageDraw.Draw(scene, "RGBA")
    scatter_shapes(rng, canvas, scene.size, lightness)
    return scene, canvas


def seeded(*parts: object) -> Generator:
    """Return the random generator of an image, given values that identify the image."""
    return Generator(np.random.Philox(np.random.SeedSequence(list("/".join(map(str, parts)).encode()))))


def draw(name: str, split: str, index: int) -> Image.Image:
    """Return one RGB image of a class. Splits differ only in their seeds."""
    rng = seeded(split, name, index)
    scene, canvas = random_background(rng, (115.0, 185.0))  # sides are 96 to 219 pixels long
    draw_thing(rng, canvas, THINGS[name](rng), homography(rng, scene.size))
    return add_camera_effects(rng, scene.reduce(OVERSAMPLING))


def generate_sample(root: Path, *, train_per_class: int = 32, val_per_class: int = 50) -> Path:
    """Generate `{train,val}/<class>/<index>.jpg` in a new folder below `root`, see `generate_dataset`."""
    images = {
        f"{split}/{name}/{index:03d}.jpg": (name, split, index)
        for split, count in {"train": train_per_class, "val": val_per_class}.items()
        for name in THING_NAMES
        for index in range(count)
    }
    folder = root / f"sample-v{VERSION}-{train_per_class}-{val_per_class}"
    return generate_dataset(folder, images, lambda file, *args: save(draw(*args), file))


def labels_of(split: str, index: int) -> tuple[str, ...]:
    """Return the things in a scene: one to four of `THING_NAMES`, each at most once and equally likely."""
    return _choose(seeded("scene", split, index))


def draw_scene(split: str, index: int) -> Image.Image:
    """Return one RGB scene. Splits differ only in their seeds."""
    rng = seeded("scene", split, index)
    names = _choose(rng)
    scene, canvas = random_background(rng, (150.0, 210.0))
    for name, corner in zip(names, rng.permutation(4), strict=False):
        draw_thing(rng, canvas, THINGS[name](rng), corner_homography(rng, scene.size, corner, (0.4, 0.55)))
    return add_camera_effects(rng, scene.reduce(OVERSAMPLING))


def generate_scenes(root: Path) -> Path:
    """Generate `{train,val}/<index>.jpg` and lists of labels in a new folder below `root`, see `generate_dataset`."""
    images = {f"{split}/{index:03d}.jpg": (split, index) for split, count in SCENES.items() for index in range(count)}
    lines = grouped((split, " ".join([name, *labels_of(split, n)]) + "\n") for name, (split, n) in images.items())
    texts = {f"{split}.txt": "".join(lines[split]) for split in SCENES} | {"classes.txt": "\n".join(THING_NAMES)}
    folder = root / f"scenes-v{VERSION}-{SCENES['train']}-{SCENES['val']}"
    return generate_dataset(folder, images, lambda file, *args: save(draw_scene(*args), file), lambda _: texts)


def _choose(rng: Generator) -> tuple[str, ...]:
    count = int(rng.integers(1, 5))
    return tuple(THING_NAMES[index] for index in sorted(rng.permutation(len(THING_NAMES))[:count]))


def save(image: Image.Image, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    image.save(file, quality=JPEG_QUALITY)


def generate_dataset(
    folder: Path,
    images: Mapping[str, tuple[Any, ...]],
    draw: Callable[..., R],
    texts: Callable[[list[R]], Mapping[str, str]] = lambda _: {},
) -> Path:
    """Generate a dataset in a folder, unless the folder exists.

    The folder exists only when it is complete. An interrupted call leaves no files. If several processes generate the
    dataset, the first to finish wins.

    Args:
        folder: the folder.
        images: the arguments of `draw` for each image, by the image's path in the folder.
        draw: draws and saves an image, given its file and these arguments.
        texts: returns the content of text files by their paths, given the results of `draw`.

    Raises:
        UserError: the folder cannot be written.
    """
    try:
        if not folder.is_dir():
            with atomic_path(folder) as part:
                with (
                    progress_bar() as progress,
                    # Threads are enough: Pillow and NumPy release the GIL most of the time.
                    in_threads(lambda name: draw(part / name, *images[name]), images, min(cores(), 8)) as done,
                ):
                    found = list(progress.track(done, len(images), description="Generating the sample dataset"))
                for name, text in texts(found).items():
                    (part / name).write_text(text)
    except OSError as error:
        if not folder.is_dir():  # no other process has generated the dataset
            raise UserError(
                f"The sample dataset cannot be written to {folder}: {error.strerror or error}. "
                "Set data.dir to a writable folder with about 60 MB of free space."
            ) from error
    return folder
