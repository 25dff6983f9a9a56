"""A small image set with the exact mask and box of each object: up to four things of five kinds in each scene.

An image and its objects are a pure function of its split and index. The folder can be read as any other: as pairs of
images and masks, and with the objects, their boxes and their masks in COCO's form.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from augment.data.drawn.sample import JPEG_QUALITY, OVERSAMPLING, draw_all, expose, make_once, put, seeded, strewn, view
from augment.data.drawn.things import THINGS

# Part of the folder's name; raise it with any change of the drawing, here or in sample.py and things.py.
VERSION = 1

TRAIN, VAL = 400, 100
NAMES = ("background", "car", "cup", "fish", "heart", "tree")
SIZES = ((160, 120), (120, 160), (144, 144), (128, 152))  # width and height
# Of a thing, over the short side of its quarter of the image; it may reach beyond.
RADIUS_RANGE = (0.38, 0.55)
# Objects of which less is seen than this many pixels are not drawn into masks as objects of their own.
SMALLEST = 40


@dataclass(frozen=True)
class Scene:
    """An image of the set, and what it shows."""

    image: Image.Image  # RGB
    instances: NDArray[np.uint8]  # (height, width): 0 for the background, k + 1 for object k
    labels: NDArray[np.int64]  # (K,) the class of each object, from 1

    @property
    def mask(self) -> NDArray[np.uint8]:
        """The class of each pixel, (height, width)."""
        return np.append(0, self.labels).astype(np.uint8)[self.instances]

    @property
    def boxes(self) -> NDArray[np.int64]:
        """The box of what is seen of each object, (K, 4): left, top, right and bottom edge."""
        return np.array([_extent(self.instances == k + 1) for k in range(len(self.labels))], np.int64).reshape(-1, 4)


def draw_objects(split: str, index: int) -> Scene:
    """Return one image of the set with its objects; one in 25 has none."""
    rng = seeded("objects", split, index)
    scene, canvas = strewn(rng, SIZES[rng.integers(len(SIZES))])
    stencil = Image.new("L", scene.size)
    quarter = scene.width // 2, scene.height // 2
    count = 0 if rng.random() < 0.04 else int(rng.integers(1, 5))
    labels = rng.integers(1, len(NAMES), count)
    for number, (label, corner) in enumerate(zip(labels.tolist(), rng.permutation(4).tolist(), strict=False), 1):
        shift = np.eye(3)
        shift[:2, 2] = corner % 2 * quarter[0], corner // 2 * quarter[1]
        matrix = shift @ view(rng, quarter, RADIUS_RANGE)
        put(rng, canvas, THINGS[NAMES[label]](rng), matrix, (ImageDraw.Draw(stencil), number))
    instances = reduced(np.asarray(stencil), count)
    image = expose(rng, scene.reduce(OVERSAMPLING))
    seen = [k for k in range(count) if np.count_nonzero(instances == k + 1) >= SMALLEST]
    renumbered = np.zeros(count + 1, np.uint8)
    renumbered[np.array(seen, np.int64) + 1] = range(1, len(seen) + 1)
    return Scene(image, renumbered[instances], labels[seen])


def reduced(stencil: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """Reduce a stencil, with values up to `count`, as the image is: each pixel has the value that covers most of it."""
    height, width = (side // OVERSAMPLING for side in stencil.shape)
    cells = stencil.reshape(height, OVERSAMPLING, width, OVERSAMPLING)
    covered = np.stack([(cells == n).sum(axis=(1, 3)) for n in range(count + 1)])
    return np.asarray(np.argmax(covered, axis=0), np.uint8)


def make_objects(root: Path) -> Path:
    """Draw the set into a folder of its own under `root`.

    It has {train,val}/images/<index>.jpg, and masks/<index>.png and instances/<index>.png beside, {train,val}.json in
    COCO's form, and classes.txt.
    """
    return make_once(root / f"objects-v{VERSION}-{TRAIN}-{VAL}", _fill)


def _fill(folder: Path) -> None:
    for split, count in {"train": TRAIN, "val": VAL}.items():
        for name in ("images", "masks", "instances"):
            (folder / split / name).mkdir(parents=True)
        found = draw_all(range(count), partial(_save, folder, split))
        content = coco_of(found, [{"id": label, "name": name} for label, name in enumerate(NAMES) if label])
        (folder / f"{split}.json").write_text(json.dumps(content))
    (folder / "classes.txt").write_text("\n".join(NAMES))


def _save(folder: Path, split: str, index: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Draw an image into the folder; return it and its objects in COCO's form."""
    scene = draw_objects(split, index)
    file = folder / split / "images" / f"{index:03d}.jpg"
    scene.image.save(file, quality=JPEG_QUALITY)
    for name, values in (("masks", scene.mask), ("instances", scene.instances)):
        with_palette(values).save(folder / split / name / f"{index:03d}.png")
    width, height = scene.image.size
    image = {"id": index, "file_name": str(file.relative_to(folder)), "width": width, "height": height}
    objects = []
    for number, (label, (left, top, right, bottom)) in enumerate(
        zip(scene.labels.tolist(), scene.boxes.tolist(), strict=True), 1
    ):
        shape = scene.instances == number
        runs = {"size": [height, width], "counts": runs_of(shape)}
        box = [left, top, right - left, bottom - top]
        objects.append({"image_id": index, "category_id": label, "bbox": box, "area": int(shape.sum()), "iscrowd": 0}
                       | {"segmentation": runs})  # fmt: skip
    return image, objects


def coco_of(
    found: Sequence[tuple[dict[str, Any], list[dict[str, Any]]]], categories: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return images, each with its objects, in COCO's form."""
    objects = [annotation for _, annotations in found for annotation in annotations]
    numbered = [{"id": number, **annotation} for number, annotation in enumerate(objects, 1)]
    return {"images": [image for image, _ in found], "annotations": numbered, "categories": categories}


def with_palette(values: NDArray[np.uint8]) -> Image.Image:
    """Return labels as an image with a palette: black for 0, and the colors of drawings."""
    from augment.drawing.targets import color_of  # with Matplotlib's fonts, which listing data does not need

    image = Image.fromarray(values)
    image.putpalette([0, 0, 0, *(channel for label in range(1, 256) for channel in color_of(label))])
    return image


def runs_of(shape: NDArray[np.bool_]) -> list[int]:
    """Return the lengths of runs of pixels outside and inside of a shape, in turn, column by column, as COCO does."""
    flat = np.append(False, shape.T.ravel())
    ends = np.flatnonzero(flat[1:] != flat[:-1]).tolist()
    return [end - start for start, end in pairwise([0, *ends, shape.size])]


def _extent(shape: NDArray[np.bool_]) -> list[int]:
    """Return the edges of what surrounds a shape."""
    rows, columns = np.flatnonzero(shape.any(axis=1)), np.flatnonzero(shape.any(axis=0))
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
