"""A small picture set with several labels a picture: one to four things of the sample set in each scene.

As there, a picture is a pure function of its place in the set, and so are its labels.
"""

from pathlib import Path

import numpy as np
from numpy.random import Generator
from PIL import Image

from augment.drawn.drawn_set import draw_all, make_set
from augment.drawn.sample import OVERSAMPLING, begin, expose, put, view
from augment.drawn.things import CLASSES, THINGS

VERSION = 1
"""Part of the folder's name; raise it with any change of the drawing, here or in sample.py and things.py."""

TRAIN, VAL = 400, 300
MEAN_SIDE_RANGE = (150.0, 210.0)
RADIUS_RANGE = (0.4, 0.55)
"""Of a thing, over the short side of its quarter of the picture; it may reach beyond."""


def labels_of(split: str, index: int) -> tuple[str, ...]:
    """Return what a picture shows: one to four of `CLASSES`, each at most once, all as likely."""
    return _choose(_generator(split, index))


def draw_scene(split: str, index: int) -> Image.Image:
    """Return one picture of the set, RGB.

    Args:
        split: "train" or "val"; they differ in nothing but the seeds.
        index: which picture of that split, from 0.
    """
    rng = _generator(split, index)
    names = _choose(rng)
    scene, canvas = begin(rng, MEAN_SIDE_RANGE)
    quarter = scene.width // 2, scene.height // 2
    for name, place in zip(names, rng.permutation(4), strict=False):
        shift = np.eye(3)
        shift[:2, 2] = place % 2 * quarter[0], place // 2 * quarter[1]
        put(rng, canvas, THINGS[name](rng), shift @ view(rng, quarter, RADIUS_RANGE))
    return expose(rng, scene.reduce(OVERSAMPLING))


def make_scenes(root: Path, *, train: int = TRAIN, val: int = VAL) -> Path:
    """Draw the set into a folder of its own under `root`, unless it is there already.

    Args:
        root: where the folder goes; made when missing.
        train: pictures of the train split.
        val: pictures of the val split.

    Returns:
        The folder, with {train,val}/<index>.jpg, the lists train.txt and val.txt, and classes.txt.

    Raises:
        UserError: the folder cannot be written.
    """
    counts = {"train": train, "val": val}

    def fill(folder: Path) -> None:
        pictures = {f"{split}/{index:03d}.jpg": (split, index) for split in counts for index in range(counts[split])}
        draw_all(folder, pictures, draw_scene)
        for split in counts:
            lines = [" ".join([name, *labels_of(*place)]) for name, place in pictures.items() if place[0] == split]
            (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
        (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n")

    return make_set(root / f"scenes-v{VERSION}-{train}-{val}", fill)


def _generator(split: str, index: int) -> Generator:
    return Generator(np.random.Philox(np.random.SeedSequence(list(f"scene/{split}/{index}".encode()))))


def _choose(rng: Generator) -> tuple[str, ...]:
    count = int(rng.integers(1, 5))
    return tuple(CLASSES[place] for place in sorted(rng.permutation(len(CLASSES))[:count]))
