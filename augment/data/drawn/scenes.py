"""A small image set with several labels per image: one to four things of the sample set in each scene.

An image and its labels are a pure function of its split and index.
"""

from pathlib import Path

import numpy as np
from numpy.random import Generator
from PIL import Image

from augment.data.drawn.sample import OVERSAMPLING, begin, expose, make_set, put, seeded, view
from augment.data.drawn.things import CLASSES, THINGS

# Part of the folder's name; raise it with any change of the drawing, here or in sample.py and things.py.
VERSION = 1

TRAIN, VAL = 400, 300
MEAN_SIDE_RANGE = (150.0, 210.0)
# Of a thing, over the short side of its quarter of the image; it may reach beyond.
RADIUS_RANGE = (0.4, 0.55)


def labels_of(split: str, index: int) -> tuple[str, ...]:
    """Return the things that an image shows: one to four of `CLASSES`, each at most once, all equally likely."""
    return _choose(seeded("scene", split, index))


def draw_scene(split: str, index: int) -> Image.Image:
    """Return one image of the set, RGB; train and val differ in nothing but the seeds."""
    rng = seeded("scene", split, index)
    names = _choose(rng)
    scene, canvas = begin(rng, MEAN_SIDE_RANGE)
    quarter = scene.width // 2, scene.height // 2
    for name, corner in zip(names, rng.permutation(4), strict=False):
        shift = np.eye(3)
        shift[:2, 2] = corner % 2 * quarter[0], corner // 2 * quarter[1]
        put(rng, canvas, THINGS[name](rng), shift @ view(rng, quarter, RADIUS_RANGE))
    return expose(rng, scene.reduce(OVERSAMPLING))


def make_scenes(root: Path) -> Path:
    """Draw the set into a folder of its own under `root`, with {train,val}/<index>.jpg and lists; see `make_set`."""
    counts = {"train": TRAIN, "val": VAL}
    images = {f"{split}/{index:03d}.jpg": (split, index) for split in counts for index in range(counts[split])}
    lines = {name: " ".join([name, *labels_of(*of)]) + "\n" for name, of in images.items()}
    texts = {f"{split}.txt": "".join(lines[name] for name, of in images.items() if of[0] == split) for split in counts}
    folder = root / f"scenes-v{VERSION}-{TRAIN}-{VAL}"
    return make_set(folder, images, draw_scene, texts | {"classes.txt": "\n".join(CLASSES)})


def _choose(rng: Generator) -> tuple[str, ...]:
    count = int(rng.integers(1, 5))
    return tuple(CLASSES[index] for index in sorted(rng.permutation(len(CLASSES))[:count]))
