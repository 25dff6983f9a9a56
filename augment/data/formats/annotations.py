"""Convert annotated objects to targets, and compare the size of each image with its annotations."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from augment.data.cache import cached_lines
from augment.data.dataset import DATA_DIR, NO_VAL, Dataset, ImageRef, Split
from augment.data.formats.polygons import MOST_COVERED, Regions, Shape
from augment.data.formats.raster_files import open_raster
from augment.data.image_faults import DECODER_ERRORS
from augment.data.images import SIDEWAYS, open_with_pillow, orientation_of, points_back, stored_size
from augment.data.targets.boxes import BACKGROUND, BACKGROUNDS, Boxes, Objects, fault_of_boxes
from augment.data.targets.keypoints import FlipPairs, Keypoints
from augment.data.targets.kind import Kind
from augment.data.targets.masks import MASKS
from augment.data.targets.spatial import IGNORE
from augment.support.errors import UserError
from augment.support.files import digest, open_file, read_file
from augment.support.formatting import amount


@dataclass(frozen=True)
class Header:
    """Height and width of a file's pixels, and its EXIF orientation (1 is upright)."""

    height: int
    width: int
    orientation: int = 1

    @property
    def upright_size(self) -> tuple[int, int]:
        """Height and width of the upright image."""
        return (self.width, self.height) if self.orientation >= SIDEWAYS else (self.height, self.width)

    def annotated_orientation(self, size: tuple[int, int] | None) -> int | None:
        """Return the EXIF orientation that was applied to an annotated image, given its size, (height, width).

        This is the file's orientation if the size is unknown or fits the upright image, and 1 if it only fits the
        stored pixels. Return None if it fits neither.
        """
        if size is None or size == self.upright_size:
            return self.orientation
        return 1 if size == (self.height, self.width) else None

    def size_of(self, turn: int) -> tuple[int, int]:
        """Return the height and width of the annotated image. See `annotated_orientation`."""
        return self.upright_size if turn == self.orientation else (self.height, self.width)

    def stored(self, points: NDArray[np.float64], turn: int) -> NDArray[np.float64]:
        """Move points, (M, 2) in pixels from the top left corner, from the annotated image to the stored pixels."""
        height, width = self.size_of(turn)
        shares = points_back(points / np.array([width, height]), turn)
        return shares * np.array([self.width, self.height]) if turn > 1 else points


def read_headers(files: Sequence[Path]) -> dict[Path, Header]:
    """Return the header of each image that can be read. Headers are cached on disk."""
    lines = cached_lines(files, _read, cache_file("headers", files))
    return {file: Header(*map(int, line.split())) for file, line in zip(files, lines, strict=True) if line}


def cache_file(what: str, files: Sequence[Path], *options: object) -> Path:
    """Return the path of the cache of facts about some files. Each dataset folder has its own cache."""
    folder = files[0].parent.resolve() if files else ""
    return Path(DATA_DIR) / f"{what}-{digest(folder, *options)}.txt"


def _read(file: Path) -> str:
    with suppress(*DECODER_ERRORS), open_file(file) as stream, open_with_pillow(stream) as image:
        width, height = stored_size(image)
        return f"{height} {width} {orientation_of(image)}"
    with suppress(OSError, UserError, ValueError):  # Pillow does not open it. ValueError: a name with a NUL character
        opened = open_raster(read_file(file))
        return f"{opened.shape[0]} {opened.shape[1]} {opened.orientation}"
    return ""


T = TypeVar("T")

_MOST = IGNORE - 1  # objects or classes in an 8-bit mask
_HALF_PIXEL = 0.501  # px from the center of a pixel to its edge, with a margin for rounding


class FaultError(Exception):
    """A fault of an image or its annotations, as a predicate such as "has no mask"."""


@dataclass
class AnnotatedObject:
    """An object of an image, in pixels of the annotated image.

    Attributes:
        where: its position in the annotation file, for messages.
        box: left, top, right and bottom edge.
        label: its class, from 1, or 0 if `set_labels` sets it later.
        shape: its outline.
        points: (P, 3), x, y and visibility of its keypoints.
        name: the name of its class, for `set_labels`.
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
        where: the position of its annotations, for messages.
        size: height and width of the annotated image, or None if unknown.
        fault: what is wrong with it, as a predicate such as "has no mask".
    """

    file: Path
    where: str
    size: tuple[int, int] | None = None
    objects: list[AnnotatedObject] = field(default_factory=list)
    image_id: int = 0
    fault: str = ""

    def record_fault(self, fault: str) -> None:
        """Record a fault, unless there is one already."""
        self.fault = self.fault or fault

    @contextmanager
    def object_at(self, where: str) -> Iterator[None]:
        """Record an exception inside the context as a fault. `where` is the position of the object."""
        try:
            yield
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            self.record_fault(f"has a bad object, {where}: {f'no {error}' if isinstance(error, KeyError) else error}")


@dataclass(frozen=True)
class WantedTargets:
    """The targets to create: boxes, optionally with masks or keypoints, or class masks, or keypoints of one object."""

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
    wanted: WantedTargets,
    *,
    problems: tuple[str, ...] = (),
) -> Dataset:
    """Return the dataset of one or two splits of images with objects.

    Faults of images are in `Dataset.faults`. Boxes are clipped to their images, with a notice.

    Args:
        names: the names of the classes, from label 1, or of the keypoints.
        splits: the images of train, and of val if there is one.
        wanted: the targets to make.
        problems: see `Dataset.problems`.

    Raises:
        UserError: a split has no images, an image is listed twice, or there are too many classes for a mask.
    """
    if wanted.task != "keypoints":
        names = _without_background(names, splits, wanted)
    if wanted.task == "segment" and len(names) >= _MOST:
        raise UserError(f"data.task=segment supports {_MOST - 1} classes, but there are {len(names)}. Merge some.")
    for images in splits:
        _require_each_once(images)
    _require_pixels(splits, wanted)
    kinds = {"segment": MASKS, "keypoints": Keypoints(wanted.flip_pairs)}
    kind = kinds.get(wanted.task) or Boxes(wanted.points, wanted.flip_pairs)
    clipped = Counter[str]()

    def make(image: AnnotatedImage, header: Header | None) -> Any:
        if image.fault:
            raise FaultError(image.fault)
        # A missing image is reported later.
        return _target_of(image, header or Header(*(image.size or (1, 1))), wanted, clipped)

    classes = tuple(names) if wanted.task == "keypoints" else (BACKGROUND, *names)
    images_by_file = [{image.file: image for image in images} for images in splits]
    dataset = build_dataset(classes, images_by_file, kind, kind.blank(len(names)), make)
    notices = []
    if clipped:
        boxes = amount(clipped.total(), "box that extends", "boxes that extend")
        notice = f"data: clipped {boxes} beyond the image, such as {next(iter(clipped))}"
        if clipped.total() > sum(len(image.objects) for image in chain.from_iterable(splits)) / 4:
            notice += ". The file may list right and bottom edges instead of width and height"
        notices.append(notice)
    if repeated := [found.where for image in chain.from_iterable(splits) for found in _repeated(image.objects)]:
        objects = amount(len(repeated), "object has", "objects have")
        notices.append(f"data: {objects} the class and the box of an earlier object, such as {repeated[0]}")
    return replace(dataset, problems=problems).noting(*notices)


def build_dataset(
    classes: tuple[str, ...],
    splits: Sequence[Mapping[Path, T]],
    kind: Kind,
    blank: Any,
    make: Callable[[T, Header | None], Any],
) -> Dataset:
    """Return the dataset of one or two splits. Images with a fault get a blank target.

    Args:
        classes: see `Dataset.classes`.
        splits: the images of train, and of val if there is one, with their annotations.
        kind: the kind of targets.
        blank: a target without content.
        make: converts the annotations of an image to its target, given the image's header, or None if the header
            cannot be read. It raises a `FaultError` if the annotations are wrong.
    """
    made: list[Split] = []
    faults: dict[ImageRef, str] = {}
    for annotated in splits:
        headers = read_headers(list(annotated))
        targets = []
        for file, annotations in annotated.items():
            try:
                targets.append(make(annotations, headers.get(file)))
            except FaultError as fault:
                faults[file] = str(fault)
                targets.append(blank)
        made.append(Split(tuple(annotated), tuple(targets), kind))
    return Dataset(classes, made[0], made[1] if len(made) > 1 else NO_VAL, faults=faults)


def _require_each_once(images: Sequence[AnnotatedImage]) -> None:
    if not images:
        raise UserError("data: a split has no images. Check its annotations.")
    ((file, count),) = Counter(image.file for image in images).most_common(1)
    if count > 1:
        raise UserError(f"data: {file} is listed {count} times. List each image once.")


def _require_pixels(splits: Sequence[Sequence[AnnotatedImage]], wanted: WantedTargets) -> None:
    """Reject coordinates that are shares of the image's sides. Training would drop such tiny boxes silently."""
    share = ""
    for found in chain.from_iterable(image.objects for image in chain.from_iterable(splits)):
        edges = np.asarray(found.box)
        if wanted.task == "keypoints" and found.points is not None:
            edges = found.points[:, :2]
        if (edges > 1).any():
            return
        if ((edges > 0) & (edges < 1)).any():
            share = share or found.where
    if share:
        raise UserError(
            f"data: all coordinates are at most 1, such as in {share}, so they are probably shares of the image's "
            "sides. Multiply x by the width and y by the height of the image."
        )


def _repeated(objects: Sequence[AnnotatedObject]) -> list[AnnotatedObject]:
    """Return the objects that have the class and the box of an earlier object."""
    first: dict[Any, AnnotatedObject] = {}
    return [found for found in objects if first.setdefault((found.label, *found.box), found) is not found]


def _without_background(
    names: Sequence[str], splits: Sequence[Sequence[AnnotatedImage]], wanted: WantedTargets
) -> tuple[str, ...]:
    """Return the names without the background, which is always label 0, and renumber the labels.

    Raises:
        UserError: an object to detect has the class background.
    """
    kept = [name for name in names if name not in BACKGROUNDS]
    if len(kept) == len(names):
        return tuple(names)
    numbers = {name: number for number, name in enumerate(kept, 1)}
    for image in chain.from_iterable(splits):
        for found in image.objects:
            name = names[found.label - 1] if found.label else ""
            if name in BACKGROUNDS and wanted.task == "detect":
                raise UserError(
                    f"data: {found.where} has the class '{name}', which means no object. Rename the class, or remove "
                    "its objects."
                )
            found.label = numbers.get(name, 0)
    return tuple(kept)


def set_labels(splits: Sequence[Sequence[AnnotatedImage]], given: Sequence[str] = ()) -> tuple[str, ...]:
    """Set the labels of objects by the names of their classes, and return the names.

    Without given names, the sorted names of all objects are used. A class that is not among the given names is a fault.
    """
    objects = [(image, found) for image in chain.from_iterable(splits) for found in image.objects]
    names = tuple(given or sorted({found.name for _, found in objects}))
    numbers = {name: number for number, name in enumerate(names, 1)}
    for image, found in objects:
        found.label = numbers.get(found.name, 0)
        if not found.label:
            image.record_fault(f"has a bad object, {found.where}: the class {found.name} is missing from data.classes")
    return names


def _target_of(image: AnnotatedImage, header: Header, wanted: WantedTargets, clipped: Counter[str]) -> Any:
    """Return the target of an image, in pixels of its file."""
    turn = header.annotated_orientation(image.size)
    if turn is None:
        shown, given = (" x ".join(map(str, size)) for size in (header.upright_size, image.size or ()))
        raise FaultError(f"has {shown} pixels, but {given} in {image.where}")
    if wanted.task == "keypoints":
        return _make_points(image, header, turn, wanted.points)
    objects, size = image.objects, header.size_of(turn)
    boxes = np.array([found.box for found in objects], np.float64).reshape(-1, 4)
    inside = _clip(objects, boxes, size)
    regions = _regions_of(image, size, turn, wanted) if wanted.shapes else None
    moved = (np.abs(boxes - inside) > 1).any(axis=1)  # smaller differences are rounding errors
    if moved.any():
        clipped[objects[int(np.argmax(moved))].where] += int(moved.sum())
    if wanted.task == "segment":
        return regions
    if wanted.instances and len(objects) > _MOST:
        raise FaultError(f"has {len(objects)} objects, but instance masks allow {_MOST}")
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
    except UserError as error:  # the box has no area after rounding
        raise FaultError(f"has a bad object in {image.where}: {error}") from error


def _regions_of(image: AnnotatedImage, size: tuple[int, int], turn: int, wanted: WantedTargets) -> Regions:
    """Return the mask of an image's objects: their classes for segmentation, otherwise their numbers."""
    shapes = tuple(found.shape for found in image.objects if found.shape is not None)
    if len(shapes) < len(image.objects):
        bare = next(found.where for found in image.objects if found.shape is None)
        raise FaultError(f"has an object without an outline, {bare}")
    labels = tuple(range(1, len(shapes) + 1))
    if wanted.task == "segment":
        labels = tuple(found.label for found in image.objects)
    height, width = size
    regions = Regions(image.where, height, width, shapes, labels, turn)
    if regions.points * height * width > MOST_COVERED and (count := regions.covered()) > MOST_COVERED:
        raise FaultError(f"has objects of {count:,} pixels, but at most {MOST_COVERED:,} are allowed")
    return regions


def _clip(objects: Sequence[AnnotatedObject], boxes: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.float32]:
    """Clip boxes, (K, 4), to an image of a size, (height, width)."""
    with np.errstate(over="ignore"):
        inside = boxes.clip(0, np.array([*size[::-1]] * 2)).astype(np.float32)
    if np.isfinite(boxes).all() and not fault_of_boxes(inside):
        return inside
    wrong = next(k for k in range(len(boxes)) if fault_of_boxes(boxes[[k]]) or fault_of_boxes(inside[[k]]))
    fault = fault_of_boxes(boxes[[wrong]]) or f"the box {boxes[wrong].tolist()} is outside the image"
    raise FaultError(f"has a bad object, {objects[wrong].where}: {fault.partition('. ')[0]}")


def _make_points(image: AnnotatedImage, header: Header, turn: int, names: Sequence[str]) -> Any:
    """Return the keypoints of the only object of an image."""
    points = _points(image.objects, header, turn, len(names))[0]
    last = np.array([header.width, header.height]) - 1
    outside = ((points[:, :2] < -_HALF_PIXEL) | (points[:, :2] > last + _HALF_PIXEL)).any(axis=1)
    if outside.any():
        size = f"{header.upright_size[1]} x {header.upright_size[0]}"
        name = names[int(np.argmax(outside))]
        raise FaultError(f"has the point {name} outside its {size} pixels, {image.where}")
    return tuple(map(tuple, points.tolist()))


def _points(objects: Sequence[AnnotatedObject], header: Header, turn: int, count: int) -> NDArray[np.float32]:
    """Return the keypoints of the objects, (K, P, 3). An object without keypoints gets unlabeled ones."""
    points = np.array([np.zeros((count, 3)) if found.points is None else found.points for found in objects])
    points = points.reshape(len(objects), count, 3)
    # The centers of pixels are at integers, half a pixel from the edges.
    positions = header.stored(points[..., :2].reshape(-1, 2) + 0.5, turn).reshape(len(objects), count, 2) - 0.5
    labeled = points[..., 2:] > 0
    return np.concatenate([np.where(labeled, positions, 0), points[..., 2:]], axis=-1).astype(np.float32)
