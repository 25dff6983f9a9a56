"""Make targets of the objects that a file of annotations describes; check each against its image, by its header."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from augment.data.cache import remember
from augment.data.dataset import DATA_DIR, NO_VAL, Dataset, ImageRef, Split
from augment.data.formats.polygons import Regions, Shape
from augment.data.image_faults import DECODER_ERRORS
from augment.data.images import SIDEWAYS, orientation_of, points_back, stored_size
from augment.data.targets.boxes import BACKGROUND, BACKGROUNDS, Boxes, Objects, fault_of_boxes
from augment.data.targets.keypoints import FlipPairs, Keypoints
from augment.data.targets.masks import MASKS
from augment.data.targets.spatial import IGNORE
from augment.support.errors import UserError
from augment.support.files import digest, open_file
from augment.support.formatting import amount


@dataclass(frozen=True)
class Header:
    """Height and width of the pixels of a file, and its EXIF orientation; 1 is upright."""

    height: int
    width: int
    orientation: int = 1

    @property
    def shown(self) -> tuple[int, int]:
        """Height and width of the upright image."""
        return (self.width, self.height) if self.orientation >= SIDEWAYS else (self.height, self.width)

    def turn_of(self, size: tuple[int, int] | None) -> int | None:
        """Return the orientation of annotations that were made for a height and width; None: for no form of this image.

        Annotations are of the image as it is shown, upright, unless their size says that they are of the stored pixels.
        """
        if size is None or size == self.shown:
            return self.orientation
        return 1 if size == (self.height, self.width) else None

    def stored(self, points: NDArray[np.float64], turn: int) -> NDArray[np.float64]:
        """Return where points, (M, 2) in pixels from the top left corner of the image as turned, are in the file."""
        height, width = self.shown if turn == self.orientation else (self.height, self.width)
        shares = points_back(points / np.array([width, height]), turn)
        return shares * np.array([self.width, self.height]) if turn > 1 else points


def read_headers(files: Sequence[Path]) -> dict[Path, Header]:
    """Return the headers of images, without those that cannot be read; they are cached."""
    lines = remember(files, _read, cache_file("headers", files))
    return {file: Header(*map(int, line.split())) for file, line in zip(files, lines, strict=True) if line}


def cache_file(what: str, files: Sequence[Path], *options: object) -> Path:
    """Return the cache for what is read of some files: one for each folder of a data set."""
    folder = files[0].parent.resolve() if files else ""
    return Path(DATA_DIR) / f"{what}-{digest(folder, *options)}.txt"


def _read(file: Path) -> str:
    with suppress(*DECODER_ERRORS), open_file(file) as stream, Image.open(stream) as image:
        width, height = stored_size(image)
        return f"{height} {width} {orientation_of(image)}"
    return ""


_MOST = IGNORE - 1  # objects or classes in a mask of 8 bits
_CLOSE = 0.501  # px from the center of a pixel to its edge, but for rounding


@dataclass
class Annotated:
    """An object of an image, in pixels of the image that was annotated.

    Attributes:
        where: its place in its file, for messages.
        box: left, top, right and bottom edge.
        label: its class, from 1.
        name: the name of its class, where labels are set by `label`.
        shape: its outline.
        points: (P, 3), x, y and visibility of its points.
    """

    where: str
    box: Sequence[float]
    label: int
    crowd: bool = False
    difficult: bool = False
    shape: Shape | None = None
    points: NDArray[np.float64] | None = None
    name: str = ""


@dataclass
class AnnotatedImage:
    """An image with its objects.

    Attributes:
        file: the image.
        where: what describes it, for messages.
        size: height and width of the image that was annotated; None: not known.
        fault: what is wrong with it, as a predicate.
    """

    file: Path
    where: str
    size: tuple[int, int] | None = None
    objects: list[Annotated] = field(default_factory=list)
    image_id: int = 0
    fault: str = ""

    def blame(self, fault: str) -> None:
        """Note a fault; the first one counts."""
        self.fault = self.fault or fault

    @contextmanager
    def object_at(self, where: str) -> Iterator[None]:
        """Note what an object that is made inside raises, as a fault."""
        try:
            yield
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            self.blame(f"has a bad object, {where}: {f'no {error}' if isinstance(error, KeyError) else error}")


@dataclass(frozen=True)
class Wanted:
    """What to make of objects: boxes, perhaps with masks or points; masks of classes; or the points of one object."""

    task: str = "detect"
    instances: bool = False
    points: tuple[str, ...] = ()
    flip_pairs: FlipPairs = ()

    @property
    def shapes(self) -> bool:
        """Whether outlines are needed."""
        return self.instances or self.task == "segment"


def make_objects(
    names: Sequence[str],
    splits: Sequence[Sequence[AnnotatedImage]],
    wanted: Wanted,
    *,
    problems: tuple[str, ...] = (),
) -> Dataset:
    """Return the data set of the images of train, and of val if there is one; `names` are those of the classes, from 1.

    Images with a fault are in `Dataset.faults`; boxes are clipped to their images, with a notice.

    Raises:
        UserError: a split has no images, an image is listed twice, or there are too many classes for a mask.
    """
    if wanted.task != "keypoints":
        names = _without_background(names, splits, wanted)
    if wanted.task == "segment" and len(names) >= _MOST:
        raise UserError(f"data.task=segment: {len(names)} classes. Allowed: {_MOST - 1}.")
    kinds = {"segment": MASKS, "keypoints": Keypoints(wanted.flip_pairs)}
    kind = kinds.get(wanted.task) or Boxes(wanted.points, wanted.flip_pairs)
    made: list[Split] = []
    faults: dict[ImageRef, str] = {}
    clipped = Counter[str]()
    for images in splits:
        if not images:
            raise UserError("data: there are no images.")
        ((file, count),) = Counter(image.file for image in images).most_common(1)
        if count > 1:
            raise UserError(f"data: {file} is listed {count} times. Allowed: once.")
        headers = read_headers([image.file for image in images])
        targets: list[Any] = []
        for image in images:
            header = headers.get(image.file) or Header(*(image.size or (1, 1)))  # the check reports that it is missing
            target = None if image.fault else _make(image, header, wanted, clipped)
            if image.fault:
                faults[image.file] = image.fault
            targets.append(kind.blank(len(names)) if target is None else target)
        made.append(Split(tuple(image.file for image in images), tuple(targets), kind))
    many = amount(clipped.total(), "box that reaches", "boxes that reach")
    notice = f"data: {many} out of the image: clipped, such as {next(iter(clipped))}" if clipped else ""
    repeated = [found.where for images in splits for image in images for found in _repeated(image.objects)]
    objects = amount(len(repeated), "object")
    again = f"data: {objects} with the class and the box of an earlier one, such as {repeated[0]}" if repeated else ""
    classes = tuple(names) if wanted.task == "keypoints" else (BACKGROUND, *names)
    dataset = Dataset(classes, made[0], made[1] if len(made) > 1 else NO_VAL, faults=faults, problems=problems)
    return dataset.noting(notice, again)


def _without_background(
    names: Sequence[str], splits: Sequence[Sequence[AnnotatedImage]], wanted: Wanted
) -> tuple[str, ...]:
    """Return the names without that of the background, which is label 0 in any case, and set the labels accordingly.

    Raises:
        UserError: an object is to be detected as background.
    """
    kept = [name for name in names if name not in BACKGROUNDS]
    if len(kept) == len(names):
        return tuple(names)
    numbers = {name: number for number, name in enumerate(kept, 1)}
    for found in (found for images in splits for image in images for found in image.objects):
        name = names[found.label - 1] if found.label else ""
        if name in BACKGROUNDS and wanted.task == "detect":
            what = f"{found.where} has the class '{name}', which is the name of what is no object"
            raise UserError(f"data: {what}. Rename the class, or remove its objects.")
        found.label = numbers.get(name, 0)
    return tuple(kept)


def _repeated(objects: Sequence[Annotated]) -> list[Annotated]:
    """Return the objects that have the class and the box of an earlier one."""
    first: dict[Any, Annotated] = {}
    return [found for found in objects if first.setdefault((found.label, *found.box), found) is not found]


def label(splits: Sequence[Sequence[AnnotatedImage]], given: Sequence[str] = ()) -> tuple[str, ...]:
    """Set the labels of the objects by the names of their classes, and return these: those given, or those found.

    A class that is not among those given is a fault.
    """
    objects = [(image, found) for image in chain.from_iterable(splits) for found in image.objects]
    names = tuple(given or sorted({found.name for _, found in objects}))
    numbers = {name: number for number, name in enumerate(names, 1)}
    for image, found in objects:
        found.label = numbers.get(found.name, 0)
        if not found.label:
            image.blame(f"has a bad object, {found.where}: the class {found.name}, which data.classes does not name")
    return names


def _make(image: AnnotatedImage, header: Header, wanted: Wanted, clipped: Counter[str]) -> Any:
    """Return the target of an image, in pixels of its file; if it has a fault, note it."""
    turn = header.turn_of(image.size)
    if turn is None:
        sizes = [" x ".join(map(str, size)) for size in (header.shown, image.size or ())]
        return image.blame(f"has {sizes[0]} pixels, but {sizes[1]} in {image.where}")
    if wanted.task == "keypoints":
        return _make_points(image, header, turn, wanted.points)
    objects = image.objects
    height, width = header.shown if turn == header.orientation else (header.height, header.width)
    boxes = np.array([found.box for found in objects], np.float64).reshape(-1, 4)
    with np.errstate(over="ignore"):
        inside = boxes.clip(0, np.array([width, height] * 2)).astype(np.float32)
    if not np.isfinite(boxes).all() or fault_of_boxes(inside):
        return image.blame(f"has a bad object, {_fault_of_first(objects, boxes, inside)}")
    shapes = tuple(found.shape for found in objects if found.shape is not None)
    if wanted.shapes and len(shapes) < len(objects):
        bare = next(found.where for found in objects if found.shape is None)
        return image.blame(f"has an object without an outline, {bare}")
    over = (np.abs(boxes - inside) > 1).any(axis=1)  # less, as of rounded boxes, is not worth a word
    if over.any():
        clipped[objects[int(np.argmax(over))].where] += int(over.sum())
    if wanted.task == "segment":
        return Regions(image.where, height, width, shapes, tuple(found.label for found in objects), turn)
    regions = None
    if wanted.instances:
        if len(objects) > _MOST:
            return image.blame(f"has {len(objects)} objects, but instance masks allow {_MOST}")
        regions = Regions(image.where, height, width, shapes, tuple(range(1, len(objects) + 1)), turn)
    corners = header.stored(inside.reshape(-1, 2).astype(np.float64), turn).reshape(-1, 2, 2)
    try:
        return Objects.of(
            np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1),
            [found.label for found in objects],
            crowd=[found.crowd for found in objects],
            difficult=[found.difficult for found in objects],
            instances=regions,
            points=_points(objects, header, turn, len(wanted.points)) if wanted.points else None,
            image_id=image.image_id,
        )
    except UserError as error:  # rounding has left no area
        return image.blame(f"has a bad object in {image.where}: {error}")


def _fault_of_first(objects: Sequence[Annotated], boxes: NDArray[np.float64], inside: NDArray[np.float32]) -> str:
    """Describe the first object whose box, or the part of it inside the image, is wrong."""
    wrong = next(
        index for index in range(len(objects)) if fault_of_boxes(boxes[[index]]) or fault_of_boxes(inside[[index]])
    )
    fault = fault_of_boxes(boxes[[wrong]]) or f"the box {boxes[wrong].tolist()} is outside"
    return f"{objects[wrong].where}: {fault.partition('. ')[0]}"


def _make_points(image: AnnotatedImage, header: Header, turn: int, names: Sequence[str]) -> Any:
    """Return the points of the only object of an image, as `_make` does."""
    points = _points(image.objects, header, turn, len(names))[0]
    last = np.array([header.width, header.height]) - 1
    outside = ((points[:, :2] < -_CLOSE) | (points[:, :2] > last + _CLOSE)).any(axis=1)
    if outside.any():
        size = f"{header.shown[1]} x {header.shown[0]}"
        name = names[int(np.argmax(outside))]
        return image.blame(f"has the point {name} outside of its {size} pixels, {image.where}")
    return tuple(map(tuple, points.tolist()))


def _points(objects: Sequence[Annotated], header: Header, turn: int, count: int) -> NDArray[np.float32]:
    """Return the points of the objects, (K, P, 3); objects without any have points that are not labeled."""
    points = np.array([np.zeros((count, 3)) if found.points is None else found.points for found in objects])
    points = points.reshape(len(objects), count, 3)
    # Centers of pixels are at integers, half a pixel from the edges.
    places = header.stored(points[..., :2].reshape(-1, 2) + 0.5, turn).reshape(len(objects), count, 2) - 0.5
    labeled = points[..., 2:] > 0
    return np.concatenate([np.where(labeled, places, 0), points[..., 2:]], axis=-1).astype(np.float32)
