"""Detection targets: any number of objects per image, each with a box, a class, and optionally a mask and keypoints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from augment.data.targets.keypoints import FlipPairs, move_points
from augment.data.targets.kind import Target, register
from augment.data.targets.masks import MaskRuns, look_up
from augment.data.targets.multilabel import LABELS
from augment.data.targets.spatial import IGNORE, Digested, Rules, SpatialKind, StoredMask, check_array, fault_of_shares
from augment.data.targets.visible_regions import areas
from augment.support.device import to_device
from augment.support.errors import UserError, unknown_key
from augment.support.formatting import amount
from augment.support.lazy_torch import Tensor, torch

if TYPE_CHECKING:
    from augment.drawing.target_overlays import Drawing
    from augment.pipeline.geometry.motion import BatchMotion

# The name of label 0, which no object has, because torchvision's detectors count from 1.
BACKGROUND = "background"
BACKGROUNDS = (BACKGROUND, "__background__", "_background_")  # names that other programs use

_FORM = 'a dict with "boxes" (K, 4) and "labels" (K,) for each image'
# The keys of this dict, as in torchvision, and the shape of each array without K. "area" is recomputed.
_ENTRIES: Mapping[str, tuple[int | None, ...]] = {
    "boxes": (4,), "labels": (), "iscrowd": (), "difficult": (), "area": (), "masks": (None, None),
    "keypoints": (None, 3),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Objects(Digested):
    """The K objects of an image, in pixels of the stored image.

    Attributes:
        boxes: (K, 4) float: left, top, right and bottom edge in pixels. [0, 0, width, height] is the whole image.
        labels: (K,) int, from 1. `Dataset.classes[0]` is "background".
        crowd: (K,) bool: whether a box holds several objects. Losses and mAP ignore it.
        difficult: (K,) bool: whether Pascal VOC marks the object as difficult. Losses and mAP ignore it.
        instances: the mask of the objects: 0 for none, k + 1 for object k.
        points: (K, P, 3): x, y (integers at pixel centers), and COCO's visibility: 0 not labeled, 1 hidden, 2 visible.
        image_id: the number of the image in its annotation file.
    """

    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]
    crowd: NDArray[np.bool_]
    difficult: NDArray[np.bool_]
    instances: StoredMask | None = None
    points: NDArray[np.float32] | None = None
    image_id: int = 0

    @classmethod
    def of(cls, boxes: Any, labels: Any, **others: Any) -> Objects:
        """Create objects from boxes, (K, 4), and labels, (K,). `others` are further attributes.

        Raises:
            UserError: a box is reversed, has no area or is not finite, or the counts of boxes and labels differ.
        """
        edges = np.asarray(boxes, np.float32).reshape(-1, 4)
        given = np.asarray(labels).reshape(-1)
        found = given.astype(np.int64)
        if (given != found).any():
            raise UserError(f"the label {given[given != found][0]} is not a whole number. Round the labels.")
        if len(edges) != len(found):
            raise UserError(f"there are {len(edges)} boxes, but {len(found)} labels. Give each box one label.")
        if fault := fault_of_boxes(edges):
            raise UserError(fault)
        flags = {name: np.asarray(others.pop(name, np.zeros(len(found))), bool) for name in ("crowd", "difficult")}
        return cls(edges, found, flags["crowd"], flags["difficult"], **others)

    def __len__(self) -> int:
        return len(self.labels)

    def digested(self) -> Iterator[bytes]:
        """Yield the attributes as bytes."""
        yield f"{self.image_id} {self.instances}".encode()
        for part in (self.boxes, self.labels, self.crowd, self.difficult, self.points):
            yield b"" if part is None else part.tobytes()


@dataclass(frozen=True)
class Boxes(SpatialKind):
    """Targets for detection. A batch is a list of dicts of tensors in the format of torchvision's detectors.

    Attributes:
        point_names: the names of the P keypoints of each object.
        flip_pairs: pairs of left and right keypoints. None if they are unknown.
        learned_only: whether to drop crowds and difficult objects, which losses ignore.
    """

    noun, units, task, many_strata = "class", "boxes", "detect", True
    pastes, blends, unrepeated = True, True, "boxes"

    point_names: tuple[str, ...] = field(default=(), compare=False)
    flip_pairs: FlipPairs = field(default=(), compare=False)
    learned_only: bool = field(default=False, compare=False)

    @property
    def learned(self) -> Boxes:
        """The kind without the objects that losses ignore."""
        return replace(self, learned_only=True)

    def stored(self, target: Objects) -> StoredMask | None:
        return target.instances

    def load(self, target: Target) -> tuple[Objects, MaskRuns | None]:
        mask = target.instances
        return target, None if mask is None else MaskRuns.of(mask.read(), mask.name)

    def follow(self, loaded: Sequence[Any], motion: BatchMotion, rules: Rules) -> list[dict[str, Tensor]]:
        """Return the remaining objects of each image, on the device of the images.

        Objects with empty masks are dropped. This check synchronizes the GPU. An image that shows parts of several
        samples has the objects of all of them, clipped to their parts. Its `image_id` comes from its own sample.

        Returns:
            For each image, a dict with
                boxes: (K, 4) float32, the hulls of the moved boxes, clipped once at the end.
                labels: (K,) int64.
                iscrowd, difficult: (K,) bool.
                area: (K,) float32, the areas of the clipped boxes.
                image_id: (1,) int64.
                masks: (K, height, width) uint8, if there are any.
                keypoints: (K, P, 3) float32, if there are any. Visibility is 0 outside the image.
        """
        objects = [found for found, _ in loaded]
        counts = [len(found) for found in objects]
        owners = np.repeat(np.arange(len(objects)), counts)
        boxes, keep = _move_boxes(np.concatenate([found.boxes for found in objects]), owners, motion, rules)
        fields: dict[str, NDArray[Any]] = {
            "boxes": boxes.astype(np.float32),
            "labels": np.concatenate([found.labels for found in objects]),
            "iscrowd": np.concatenate([found.crowd for found in objects]),
            "difficult": np.concatenate([found.difficult for found in objects]),
            "area": areas(boxes).astype(np.float32),
        }
        if self.learned_only:
            keep &= ~(fields["iscrowd"] | fields["difficult"])
        if any(found.points is not None for found in objects):
            fields["keypoints"] = move_points(_joined_points(objects), owners, motion, self.flip_pairs or ())

        shown, masks = None, [mask for _, mask in loaded]
        # The number of each object in the mask of its image.
        numbers = np.arange(1, len(owners) + 1) - np.repeat(np.cumsum(counts) - counts, counts)
        if any(mask is not None for mask in masks):
            shown = look_up([mask or MaskRuns.of(np.zeros((1, 1), np.uint8), "") for mask in masks], motion, 0)
            keep &= _visible_numbers(shown)[owners, numbers]

        kept = {name: values[keep] for name, values in fields.items()}
        own = motion.parts.own
        kept["image_id"] = np.array([objects[part].image_id for part in own], np.int64)[:, None]
        if shown is not None:
            kept |= {"number": numbers[keep], "owner": owners[keep]}
        moved = to_device(kept, motion.device)
        if shown is not None:
            number, owner = moved.pop("number"), moved.pop("owner")
            moved["masks"] = (shown[owner] == number[:, None, None]).to(torch.uint8)
        return _by_image(moved, np.bincount(motion.parts.images[owners[keep]], minlength=len(own)).tolist())

    def draw(self, drawing: Drawing, target: Any, names: Sequence[str]) -> None:
        """Draw the boxes with their classes, and the masks and keypoints."""
        found = {name: np.asarray(values) for name, values in target.items()}
        labels = found["labels"].tolist()
        drawing.masks(found.get("masks", np.empty(0)), labels if "masks" in found else ())
        drawing.boxes(found["boxes"], labels, [names[label] for label in labels])
        for points in found.get("keypoints", ()):
            drawing.points(points, self.flip_pairs or ())

    def from_memory(self, targets: Any, count: int) -> list[Any]:
        """Convert objects in torchvision's format, a list of dicts."""
        if not isinstance(targets, Sequence) or len(targets) != count:
            raise UserError(f"targets: {count} images need a list of {count} dicts. Use {_FORM}.")
        found = [_objects_of_dict(target, f"targets[{number}]") for number, target in enumerate(targets)]
        if fault := _fault_of_entries(*map(list, zip(*found, strict=True))):
            raise UserError(f"targets: {fault}")
        return found

    def fault(self, targets: Sequence[object], names: int) -> str:
        """Describe the first target that is not an `Objects` or has an invalid label."""
        for target in targets:
            if not isinstance(target, Objects):
                return f"{target!r}. Use augment.Objects."
            if len(target) and not 1 <= target.labels.min() <= target.labels.max() < names:
                wrong = next(label for label in target.labels.tolist() if not 1 <= label < names)
                return f"{wrong} as a label. Allowed: 1 to {names - 1}. 0 is the background."
        found = [target for target in targets if isinstance(target, Objects)]
        return _fault_of_entries(found, [target.instances for target in found])

    def is_empty(self, target: Objects) -> bool:
        return not len(target)

    def unmasked(self, targets: Sequence[Objects]) -> bool:
        """Whether an image has objects without masks."""
        return any(len(target) and target.instances is None for target in targets)

    def caption(self, target: Any, names: Sequence[str]) -> str:
        """Return the classes of the objects with their counts, see `counted`."""
        labels = target["labels"].tolist() if isinstance(target, dict) else target.labels.tolist()
        return counted(labels, names)

    def blank(self, names: int) -> Target:
        return Objects.of([], [])

    def strata(self, targets: Sequence[Target]) -> NDArray[np.int64]:
        """Return for each image a number that identifies its set of classes, as for multi-label targets."""
        classes = range(1 + max((int(target.labels.max(initial=0)) for target in targets), default=0))
        return LABELS.strata([tuple(np.isin(classes, target.labels).tolist()) for target in targets])

    def present(self, target: Target) -> Sequence[int]:
        return [int(label) for label in np.unique(target.labels)]


def counted(labels: Iterable[int], names: Sequence[str]) -> str:
    """Return a string such as "3 cat, 2 dog, 1 bird and 2 more classes". The names may be empty."""
    found = [f"{n} {names[i] if names else i}" for i, n in Counter(labels).most_common()]
    more = f" and {amount(len(found) - 3, 'more class')}" if len(found) > 3 else ""
    return f"{', '.join(found[:3])}{more}" if found else "nothing"


def joined_masks(masks: Any, what: str, count: int | None = None) -> NDArray[np.uint8]:
    """Combine the objects' masks into one mask, see `Objects.instances`. Small objects cover large ones.

    Raises:
        UserError: the masks are not (K, height, width), or there are too many.
    """
    allowed = "(K, height, width) of 0 and 1, one mask per object"
    given = check_array(masks, (count, None, None), what, allowed)
    if given.dtype.kind == "f" and not np.isin(given, (0, 1)).all():
        raise UserError(f"{what}: has values other than 0 and 1. Use {allowed}.")
    parts = given != 0
    if len(parts) >= IGNORE:
        raise UserError(f"{what}: there are {len(parts)} masks. Use at most {IGNORE - 1} objects per image.")
    labels = np.zeros(parts.shape[1:] if len(parts) else (1, 1), np.uint8)
    for index in np.argsort(-parts.sum(axis=(1, 2)), kind="stable").tolist():
        labels[parts[index]] = index + 1
    return labels


def _objects_of_dict(target: Any, what: str) -> tuple[Objects, MaskRuns | None]:
    """Convert the objects of an image in memory to a result of `Boxes.load`."""
    allowed = (*_ENTRIES, "image_id")
    if isinstance(target, dict) and (unknown := [key for key in target if key not in allowed]):
        raise unknown_key(what, unknown[0], allowed)
    if not isinstance(target, dict) or not {"boxes", "labels"} <= target.keys():
        raise UserError(f"{what}: {type(target).__name__} is not allowed. Use {_FORM}.")
    form = getattr(getattr(target["boxes"], "format", None), "value", "XYXY")  # of torchvision's tv_tensors
    if form != "XYXY":
        raise UserError(f"{what}: the boxes are {form}. Convert them to XYXY with convert_bounding_box_format.")
    boxes = check_array(target["boxes"], (None, 4), f"{what}: boxes", "(K, 4): left, top, right, bottom")
    count, found = len(boxes), dict[str, NDArray[Any]]()
    for name, shape in _ENTRIES.items():
        if name in target and name != "masks":
            letters = "".join(f", {n or 'P'}" for n in shape) or ","
            found[name] = check_array(
                target[name], (count, *shape), f"{what}: {name}", f"({count}{letters}), one per box"
            )
    identity = target.get("image_id", 0)
    number = check_array(identity if np.ndim(identity) else [identity], (1,), f"{what}: image_id", "a whole number")
    if number[0] != int(number[0]):
        raise UserError(f"{what}: image_id {number[0]} is not a whole number. Use one number per image.")
    try:
        objects = Objects.of(
            boxes,
            found["labels"],
            **{key: found[name] for name, key in (("iscrowd", "crowd"), ("difficult", "difficult")) if name in found},
            points=found["keypoints"].astype(np.float32) if "keypoints" in found else None,
            image_id=int(number[0]),
        )
    except UserError as error:
        raise UserError(f"{what}: {error}") from None
    name = f"{what}: masks"
    return objects, MaskRuns.of(joined_masks(target["masks"], name, count), name) if "masks" in target else None


def fault_of_boxes(boxes: NDArray[Any]) -> str:
    """Describe the first invalid box of (K, 4), or return an empty string."""
    with np.errstate(invalid="ignore"):
        wrong = ~(np.isfinite(boxes).all(axis=1) & (boxes[:, 2:] > boxes[:, :2]).all(axis=1))
    if not wrong.any():
        return ""
    box = boxes[np.argmax(wrong)]
    why = "is not finite" if not np.isfinite(box).all() else "has no area, or its edges are reversed"
    return f"the box {[float(f'{edge:.6g}') for edge in box]} {why}. Use left < right and top < bottom."


def _fault_of_entries(images: Sequence[Objects], masks: Sequence[object]) -> str:
    """Describe what is wrong with objects of several images, such as keypoints that only some have, or return ""."""
    with_objects = [number for number, found in enumerate(images) if len(found)]
    if fault := fault_of_shares(np.concatenate([np.empty((0, 4)), *(found.boxes for found in images)]), "boxes"):
        return fault
    for name, parts in (("keypoints", [found.points for found in images]), ("masks", masks)):
        without = [number for number in with_objects if parts[number] is None]
        if 0 < len(without) < len(with_objects):
            return (
                f"objects without {name} in image {without[0]}, but with {name} in others. Add the missing {name}, or "
                "remove all of them."
            )
    counts = dict.fromkeys(found.points.shape[1] for found in images if found.points is not None and len(found))
    return f"objects with {' and '.join(map(str, counts))} keypoints. Use the same number." if len(counts) > 1 else ""


def _visible_numbers(shown: Tensor) -> NDArray[np.bool_]:
    """Return whether each number occurs in each mask, (N, 256), for masks (N, height, width). Synchronizes the GPU."""
    seen = torch.zeros(len(shown), IGNORE + 1, dtype=torch.bool, device=shown.device)
    seen.scatter_(1, shown.flatten(1).long(), value=True)
    return np.asarray(seen.cpu().numpy())


def _by_image(fields: dict[str, Tensor], counts: list[int]) -> list[dict[str, Tensor]]:
    """Split the fields of all objects into one dict for each image. `counts` are the images' numbers of objects."""
    ids = fields.pop("image_id").unbind()  # one row for each image
    columns = {name: torch.split(values, counts) for name, values in fields.items()} | {"image_id": ids}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _joined_points(objects: Sequence[Objects]) -> NDArray[np.float32]:
    """Return the keypoints of all objects, (M, P, 3). Images without objects may have a different P."""
    points = [found.points for found in objects if found.points is not None]
    most = max(rows.shape[1] for rows in points)
    return np.concatenate([rows.reshape(len(rows), most, 3) for rows in points])


def _move_boxes(
    boxes: NDArray[np.float32], owners: NDArray[np.int64], motion: BatchMotion, rules: Rules
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the hulls of the moved boxes, (M, 4), clipped to their visible part, and whether each is kept, (M,)."""
    # Move the corners. If motion bends lines, also move other points, because these may end up farther out.
    share = np.linspace(0, 1, 7 if motion.bends else 2)[:, None, None]
    edges = boxes.astype(np.float64) - 0.5
    across, down = np.moveaxis((1 - share) * edges[:, :2] + share * edges[:, 2:], -1, 0)
    # The boxes are the second to last axis, because NumPy reduces the first axes several times faster.
    points = np.stack(np.broadcast_arrays(across, down[:, None]), axis=-1)
    count = len(share) ** 2
    least, most = (np.fmin, np.fmax) if motion.bends else (np.minimum, np.maximum)
    visible, (low, high) = np.ones(len(boxes)), (np.tile(edge, 2) for edge in motion.edges)

    def hulls_of(moved: NDArray[np.float64]) -> NDArray[np.float64]:
        positions = moved.reshape(count, -1, 2)
        return np.concatenate([least.reduce(positions), most.reduce(positions)], axis=1)

    def watch(moved: NDArray[np.float64]) -> None:
        hulls = hulls_of(moved)
        np.fmin(visible, areas(hulls.clip(low, high)) / areas(hulls), out=visible)

    with np.errstate(invalid="ignore", divide="ignore"):
        hulls = hulls_of(motion.forward(points.reshape(-1, 2), np.tile(owners, count), watch)) + 0.5
        clipped, area = motion.parts.clip(hulls, owners)
        visible = np.fmin(visible, area / areas(hulls))
        # The visible share of a whole box may be slightly less than 1, because windows are float32.
        keep = (area >= rules.min_area) & (visible > 0) & (visible >= (1 - 1e-4) * rules.min_visible)
    return clipped, keep


BOXES = register(Boxes())
