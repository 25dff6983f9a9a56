"""Two small generated datasets in COCO's format: objects with masks and boxes, and houses with keypoints.

An image and its annotations are a pure function of its dataset, split and index. The first dataset has up to four
objects of five kinds per image, and also mask files. The second has five keypoints per image. Four of them form two
pairs of left and right.
"""

import json
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from augment.data.generated.sample import (
    OVERSAMPLING,
    add_camera_effects,
    background,
    corner_homography,
    draw_thing,
    generate_dataset,
    homography,
    save,
    seeded,
)
from augment.data.generated.shapes import THING_NAMES, THINGS

# Part of the folders' names. Increase it when images change, here or in sample.py and shapes.py.
VERSION = 1

TRAIN, VAL = 400, 100
OBJECT_NAMES = ("background", "car", "cup", "fish", "heart", "tree")
SIZES = ((160, 120), (120, 160), (144, 144), (128, 152))  # width and height
MIN_PIXELS = 40  # minimum number of visible pixels of an annotated object

POINTS = ("top", "left_eave", "right_eave", "left_foot", "right_foot")
HOUSE_FLIP_PAIRS = ((1, 2), (3, 4))
# An image and its objects in COCO's format.
_Annotated = tuple[dict[str, Any], list[dict[str, Any]]]


@dataclass(frozen=True)
class Scene:
    """An image and its objects."""

    image: Image.Image  # RGB
    instances: NDArray[np.uint8]  # (height, width): 0 for the background, k + 1 for object k
    labels: NDArray[np.int64]  # (K,) the class of each object, from 1

    @property
    def mask(self) -> NDArray[np.uint8]:
        """The class of each pixel, (height, width)."""
        return np.append(0, self.labels).astype(np.uint8)[self.instances]

    @property
    def boxes(self) -> NDArray[np.int64]:
        """The box of the visible part of each object, (K, 4): left, top, right and bottom edge."""
        shapes = (Image.fromarray(self.instances == k + 1) for k in range(len(self.labels)))
        return np.array([shape.getbbox() for shape in shapes], np.int64).reshape(-1, 4)


def draw_objects(split: str, index: int) -> Scene:
    """Return one image with its objects. One image in 25 has none."""
    rng = seeded("objects", split, index)
    scene, canvas = background(rng, SIZES[rng.integers(len(SIZES))])
    stencil = Image.new("L", scene.size)
    count = 0 if rng.random() < 0.04 else int(rng.integers(1, 5))
    labels = rng.integers(1, len(OBJECT_NAMES), count)
    for number, (label, corner) in enumerate(zip(labels.tolist(), rng.permutation(4).tolist(), strict=False), 1):
        matrix = corner_homography(rng, scene.size, corner, (0.38, 0.55))
        draw_thing(rng, canvas, THINGS[OBJECT_NAMES[label]](rng), matrix, (ImageDraw.Draw(stencil), number))
    instances = reduced(np.asarray(stencil), count)
    image = add_camera_effects(rng, scene.reduce(OVERSAMPLING))
    seen = [k for k in range(count) if np.count_nonzero(instances == k + 1) >= MIN_PIXELS]
    renumbered = np.zeros(count + 1, np.uint8)
    renumbered[np.array(seen, np.int64) + 1] = range(1, len(seen) + 1)
    return Scene(image, renumbered[instances], labels[seen])


def reduced(stencil: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """Reduce an image of object numbers, up to `count`, to its final size.

    Each pixel gets the number that covers most of it.
    """
    height, width = (side // OVERSAMPLING for side in stencil.shape)
    cells = stencil.reshape(height, OVERSAMPLING, width, OVERSAMPLING)
    covered = np.stack([(cells == n).sum(axis=(1, 3)) for n in range(count + 1)])
    return np.asarray(np.argmax(covered, axis=0), np.uint8)


def draw_points(split: str, index: int) -> tuple[Image.Image, NDArray[np.float64]]:
    """Return one image and its keypoints, (5, 3): x, y and visibility, which is 1 for a hidden keypoint."""
    rng = seeded("points", split, index)
    scene, canvas = background(rng, SIZES[rng.integers(len(SIZES))])
    stencil = Image.new("L", scene.size)
    traced = ImageDraw.Draw(stencil)
    house, matrix = THINGS["house"](rng), homography(rng, scene.size)
    draw_thing(rng, canvas, house, matrix, (traced, 1))
    for _ in range(rng.integers(0, 3)):
        other = homography(rng, scene.size, (0.08, 0.14))  # may hide a part of the house
        thing = THINGS[rng.choice([name for name in THING_NAMES if name != "house"])](rng)
        draw_thing(rng, canvas, thing, other, (traced, 2))
    (_, walls), (_, roof) = house[-4], house[-3]
    x, y, w = matrix @ np.append(np.stack([roof[1], roof[0], roof[2], walls[3], walls[2]]), np.ones((5, 1)), axis=1).T
    positions = (np.stack([x / w, y / w], axis=1) - (OVERSAMPLING - 1) / 2) / OVERSAMPLING
    if np.linalg.det(matrix) < 0:
        positions = positions[[0, 2, 1, 4, 3]]  # left and right are the viewer's
    image = add_camera_effects(rng, scene.reduce(OVERSAMPLING))
    seen = reduced(np.asarray(stencil), 2)
    column, row = np.rint(positions).astype(int).T
    inside = (row >= 0) & (row < image.height) & (column >= 0) & (column < image.width)
    hidden = seen[row.clip(0, image.height - 1), column.clip(0, image.width - 1)] == 2
    return image, np.column_stack(
        [np.where(inside[:, None], positions, 0), np.where(inside, np.where(hidden, 1, 2), 0)]
    )


def generate_objects(root: Path) -> Path:
    """Generate the dataset of objects in a new folder below `root`, see `generate_dataset`.

    It holds `images/<index>.jpg`, `masks/<index>.png` and `instances/<index>.png` in the folders train and val,
    `{train,val}.json` in COCO's format, and classes.txt.
    """
    categories = [{"id": label, "name": name} for label, name in enumerate(OBJECT_NAMES) if label]
    classes = {"classes.txt": "\n".join(OBJECT_NAMES)}
    folder = root / f"objects-v{VERSION}-{TRAIN}-{VAL}"
    return generate_dataset(
        folder, _images(), _save_objects, lambda found: _annotation_files(found, categories) | classes
    )


def generate_points(root: Path) -> Path:
    """Generate the dataset of keypoints, with `{train,val}/images/<index>.jpg` and `{train,val}.json`."""
    categories = [{"id": 1, "name": "house", "keypoints": POINTS}]
    folder = root / f"points-v{VERSION}-{TRAIN}-{VAL}"
    return generate_dataset(folder, _images(), _save_points, lambda found: _annotation_files(found, categories))


def _images() -> dict[str, tuple[str, int]]:
    counts = {"train": TRAIN, "val": VAL}
    return {f"{split}/images/{n:03d}.jpg": (split, n) for split, count in counts.items() for n in range(count)}


def _annotation_files(found: list[_Annotated], categories: list[Any]) -> dict[str, str]:
    texts = {}
    for split, annotated in (("train", found[:TRAIN]), ("val", found[TRAIN:])):
        objects = chain.from_iterable(annotations for _, annotations in annotated)
        numbered = [{"id": number, **annotation} for number, annotation in enumerate(objects, 1)]
        content = {"images": [image for image, _ in annotated], "annotations": numbered, "categories": categories}
        texts[f"{split}.json"] = json.dumps(content)
    return texts


def _save_objects(file: Path, split: str, index: int) -> _Annotated:
    from augment.drawing.target_overlays import color_of  # imports Matplotlib, which listing a dataset does not need

    scene = draw_objects(split, index)
    for name, values in (("masks", scene.mask), ("instances", scene.instances)):
        labels = Image.fromarray(values)
        labels.putpalette([0, 0, 0, *(channel for label in range(1, 256) for channel in color_of(label))])
        save(labels, file.parents[1] / name / f"{index:03d}.png")
    objects = []
    for number, (label, (left, top, right, bottom)) in enumerate(
        zip(scene.labels.tolist(), scene.boxes.tolist(), strict=True), 1
    ):
        shape = scene.instances == number
        runs = {"size": list(shape.shape), "counts": runs_of(shape)}
        box = [left, top, right - left, bottom - top]
        objects.append({"image_id": index, "category_id": label, "bbox": box, "area": int(shape.sum()), "iscrowd": 0}
                       | {"segmentation": runs})  # fmt: skip
    return _save(scene.image, file, split, index), objects


def _save_points(file: Path, split: str, index: int) -> _Annotated:
    image, points = draw_points(split, index)
    labeled = points[points[:, 2] > 0]
    (left, top), (right, bottom) = labeled[:, :2].min(axis=0), labeled[:, :2].max(axis=0)
    box = [left + 0.5, top + 0.5, right - left, bottom - top]
    objects = {"image_id": index, "category_id": 1, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
    keypoints = {"keypoints": points.round(3).ravel().tolist(), "num_keypoints": len(labeled)}
    return _save(image, file, split, index), [objects | keypoints]


def _save(image: Image.Image, file: Path, split: str, index: int) -> dict[str, Any]:
    save(image, file)
    return {"id": index, "file_name": f"{split}/images/{file.name}", "width": image.width, "height": image.height}


def runs_of(shape: NDArray[np.bool_]) -> list[int]:
    """Return the lengths of alternating runs of pixels outside and inside a shape, column by column, as COCO does."""
    flat = np.append(False, shape.T.ravel())
    ends = np.flatnonzero(flat[1:] != flat[:-1]).tolist()
    return [end - start for start, end in pairwise([0, *ends, shape.size])]
