"""A small image set with five points of a house in each image, of which two pairs are left and right of each other.

An image and its points are a pure function of its split and index. The folder has COCO's keypoints, too.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from augment.data.drawn.objects import SIZES, coco_of, reduced
from augment.data.drawn.sample import JPEG_QUALITY, OVERSAMPLING, draw_all, expose, make_once, put, seeded, strewn, view
from augment.data.drawn.things import CLASSES, THINGS

# Part of the folder's name; raise it with any change of the drawing, here or in objects.py, sample.py and things.py.
VERSION = 1

TRAIN, VAL = 400, 100
NAMES = ("top", "left_eave", "right_eave", "left_foot", "right_foot")
FLIP_PAIRS = ((1, 2), (3, 4))
# Of what may hide a part of the house, over the short side of the image.
OTHER_RADIUS_RANGE = (0.08, 0.14)
_OTHERS = tuple(name for name in CLASSES if name != "house")


def draw_points(split: str, index: int) -> tuple[Image.Image, NDArray[np.float64]]:
    """Return one image of the set, and its points, (5, 3): x, y and visibility, 1 where another thing hides it."""
    rng = seeded("points", split, index)
    scene, canvas = strewn(rng, SIZES[rng.integers(len(SIZES))])
    stencil = Image.new("L", scene.size)
    traced = ImageDraw.Draw(stencil)
    house, matrix = THINGS["house"](rng), view(rng, scene.size)
    put(rng, canvas, house, matrix, (traced, 1))
    for _ in range(rng.integers(0, 3)):
        other = view(rng, scene.size, OTHER_RADIUS_RANGE)
        put(rng, canvas, THINGS[rng.choice(_OTHERS)](rng), other, (traced, 2))
    (_, walls), (_, roof) = house[-4], house[-3]
    x, y, w = matrix @ np.append(np.stack([roof[1], roof[0], roof[2], walls[3], walls[2]]), np.ones((5, 1)), axis=1).T
    places = (np.stack([x / w, y / w], axis=1) - (OVERSAMPLING - 1) / 2) / OVERSAMPLING
    if np.linalg.det(matrix) < 0:
        places = places[[0, 2, 1, 4, 3]]  # left and right are those of who looks at the house
    image = expose(rng, scene.reduce(OVERSAMPLING))
    seen = reduced(np.asarray(stencil), 2)
    column, row = np.rint(places).astype(int).T
    inside = (row >= 0) & (row < image.height) & (column >= 0) & (column < image.width)
    hidden = seen[row.clip(0, image.height - 1), column.clip(0, image.width - 1)] == 2
    return image, np.column_stack([np.where(inside[:, None], places, 0), np.where(inside, np.where(hidden, 1, 2), 0)])


def make_points(root: Path) -> Path:
    """Draw the set into a folder of its own under `root`: {train,val}/images/<index>.jpg and {train,val}.json."""
    return make_once(root / f"points-v{VERSION}-{TRAIN}-{VAL}", _fill)


def _fill(folder: Path) -> None:
    category = {"id": 1, "name": "house", "keypoints": NAMES}
    for split, count in {"train": TRAIN, "val": VAL}.items():
        (folder / split / "images").mkdir(parents=True)
        found = draw_all(range(count), partial(_save, folder, split))
        (folder / f"{split}.json").write_text(json.dumps(coco_of(found, [category])))


def _save(folder: Path, split: str, index: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Draw an image into the folder; return it and its points in COCO's form."""
    image, points = draw_points(split, index)
    file = folder / split / "images" / f"{index:03d}.jpg"
    image.save(file, quality=JPEG_QUALITY)
    labeled = points[points[:, 2] > 0]
    (left, top), (right, bottom) = labeled[:, :2].min(axis=0), labeled[:, :2].max(axis=0)
    box = [left + 0.5, top + 0.5, right - left, bottom - top]
    objects = {"image_id": index, "category_id": 1, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
    keypoints = {"keypoints": points.round(3).ravel().tolist(), "num_keypoints": len(labeled)}
    shown = {"id": index, "file_name": str(file.relative_to(folder)), "width": image.width, "height": image.height}
    return shown, [objects | keypoints]
