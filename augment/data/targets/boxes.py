"""Any number of objects in each image: boxes with a class each, and with them masks or points if there are some."""

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
from augment.data.targets.spatial import IGNORE, Digested, Rules, SpatialKind, StoredMask, check_array
from augment.data.targets.visible_regions import areas
from augment.support.device import to_device
from augment.support.errors import UserError, unknown_key
from augment.support.formatting import amount
from augment.support.lazy_torch import Tensor, torch

if TYPE_CHECKING:
    from augment.drawing.target_overlays import Drawing
    from augment.pipeline.geometry.motion import BatchMotion

# The name of label 0, which no object has: torchvision's detectors count from 1.
BACKGROUND = "background"
BACKGROUNDS = (BACKGROUND, "__background__", "_background_")  # as other programs call it, too

_FORM = 'a dict with "boxes" (K, 4) and "labels" (K,), for each image'
# What such a dict may have of K objects, as torchvision has it, and its shape behind K; areas are those of the boxes.
_PARTS: Mapping[str, tuple[int | None, ...]] = {
    "boxes": (4,), "labels": (), "iscrowd": (), "difficult": (), "area": (), "masks": (None, None),
    "keypoints": (None, 3),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Objects(Digested):
    """The K objects of an image, as it is stored.

    Attributes:
        boxes: (K, 4) float: left, top, right and bottom edge in pixels; [0, 0, width, height] is the whole image.
        labels: (K,) int, from 1; `Dataset.classes[0]` is "background".
        crowd: (K,) bool: several objects in one box; losses leave it out, mAP does not count it.
        difficult: (K,) bool, likewise, of Pascal VOC.
        instances: the mask of the objects: 0 for none, k + 1 for object k.
        points: (K, P, 3): x, y (pixel centers at integers) and visibility, as COCO has it: 0 not labeled, 1 hidden, 2.
        image_id: the number of the image in its file of annotations.
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
        """Make arrays of boxes, (K, 4), and labels, (K,); none is crowd or difficult unless `others` say so.

        Raises:
            UserError: a box is reversed, has no area or is not finite, or there are not as many labels as boxes.
        """
        edges = np.asarray(boxes, np.float32).reshape(-1, 4)
        given = np.asarray(labels).reshape(-1)
        found = given.astype(np.int64)
        if (given != found).any():
            raise UserError(f"the label {given[given != found][0]} is not a whole number. Round the labels.")
        if len(edges) != len(found):
            raise UserError(f"{len(edges)} boxes and {len(found)} labels. Allowed: as many.")
        if fault := fault_of_boxes(edges):
            raise UserError(fault)
        flags = {name: np.asarray(others.pop(name, np.zeros(len(found))), bool) for name in ("crowd", "difficult")}
        return cls(edges, found, flags["crowd"], flags["difficult"], **others)

    def __len__(self) -> int:
        return len(self.labels)

    def parts(self) -> Iterator[bytes]:
        """Yield what `Digested` needs."""
        yield f"{self.image_id} {self.instances}".encode()
        for part in (self.boxes, self.labels, self.crowd, self.difficult, self.points):
            yield b"" if part is None else part.tobytes()


@dataclass(frozen=True)
class Boxes(SpatialKind):
    """Objects: a list of dicts of tensors in a batch, as torchvision's detectors take it, see `follow`.

    Attributes:
        point_names: the names of the P points of each object.
        flip_pairs: pairs of points that are left and right of each other; None: not known.
        learned_only: whether crowds and difficult objects, which losses leave out, are dropped.
    """

    noun, units, task, many_groups = "class", "boxes", "detect", True
    pastes, blends, unrepeated = True, True, "boxes"

    point_names: tuple[str, ...] = field(default=(), compare=False)
    flip_pairs: FlipPairs = field(default=(), compare=False)
    learned_only: bool = field(default=False, compare=False)

    @property
    def learned(self) -> Boxes:
        """This kind, without the objects that losses leave out."""
        return replace(self, learned_only=True)

    def stored(self, target: Objects) -> StoredMask | None:
        """Return the mask of instances."""
        return target.instances

    def load(self, target: Target) -> tuple[Objects, MaskRuns | None]:
        """Return the objects, and the mask of them."""
        mask = target.instances
        return target, None if mask is None else MaskRuns.of(mask.read(), mask.name)

    def follow(self, loaded: Sequence[Any], motion: BatchMotion, rules: Rules) -> list[dict[str, Tensor]]:
        """Return the objects that are left in each image, on the device of the images.

        They are boxes (K, 4) float32, the hulls of the moved corners, clipped once, at the end; labels (K,) int64;
        iscrowd and difficult (K,) bool; area (K,) float32 of the clipped boxes; image_id (1,) int64; with them, masks
        (K, height, width) uint8, and keypoints (K, P, 3) float32 with visibility 0 outside of the image. Objects whose
        masks are empty are dropped, for which a GPU is waited for. Images that show parts of several samples have the
        objects of all of these, clipped to their parts, and the number of their own.
        """
        objects = [found for found, _ in loaded]
        counts = [len(found) for found in objects]
        owners = np.repeat(np.arange(len(objects)), counts)
        boxes, keep = _move_boxes(np.concatenate([found.boxes for found in objects]), owners, motion, rules)
        fields: dict[str, NDArray[Any]] = {"boxes": boxes.astype(np.float32)}
        for name, key in (("labels", "labels"), ("iscrowd", "crowd"), ("difficult", "difficult")):
            fields[name] = np.concatenate([getattr(found, key) for found in objects])
        if self.learned_only:
            keep &= ~(fields["iscrowd"] | fields["difficult"])
        fields["area"] = areas(boxes).astype(np.float32)
        points = [found.points for found in objects if found.points is not None]
        if points:
            most = max(of.shape[1] for of in points)
            joined = np.concatenate([of.reshape(len(of), most, 3) for of in points])
            fields["keypoints"] = move_points(joined, owners, motion, self.flip_pairs or ())
        # The number of each object in the mask of its image.
        fields["number"] = np.arange(1, len(owners) + 1) - np.repeat(np.cumsum(counts) - counts, counts)
        fields["owner"] = owners
        shown, masks = None, [mask for _, mask in loaded]
        if any(mask is not None for mask in masks):
            shown = look_up([mask or MaskRuns.of(np.zeros((1, 1), np.uint8), "") for mask in masks], motion, 0)
            seen = torch.zeros(len(masks), IGNORE + 1, dtype=torch.bool, device=shown.device)
            seen.scatter_(1, shown.flatten(1).long(), value=True)
            keep &= seen.cpu().numpy()[owners, fields["number"]]
        own = motion.parts.own
        kept = {name: array[keep] for name, array in fields.items()}
        kept["image_id"] = np.array([objects[part].image_id for part in own], np.int64)[:, None]
        moved = to_device(kept, motion.device)
        number, owner = moved.pop("number"), moved.pop("owner")
        if shown is not None:
            moved["masks"] = (shown[owner] == number[:, None, None]).to(torch.uint8)
        ids = moved.pop("image_id")
        left = np.bincount(motion.parts.images[owners[keep]], minlength=len(own)).tolist()
        columns = {name: torch.split(values, left) for name, values in moved.items()} | {"image_id": ids.unbind()}
        return [dict(zip(columns, of, strict=True)) for of in zip(*columns.values(), strict=True)]

    def draw(self, drawing: Drawing, target: Any, names: Sequence[str]) -> None:
        """Draw the boxes with their classes, and masks and points of the objects."""
        found = {name: np.asarray(values) for name, values in target.items()}
        labels = found["labels"].tolist()
        drawing.masks(found.get("masks", np.empty(0)), labels if "masks" in found else ())
        drawing.boxes(found["boxes"], labels, [names[label] for label in labels])
        for points in found.get("keypoints", ()):
            drawing.points(points, self.flip_pairs or ())

    def given(self, targets: Any, count: int) -> list[Any]:
        """Return objects, given as torchvision has them: a list of dicts."""
        if not isinstance(targets, Sequence) or len(targets) != count:
            raise UserError(f"targets: {count} images need a list of as many. Allowed: {_FORM}.")
        found = [_given(target, f"targets[{number}]") for number, target in enumerate(targets)]
        if fault := _fault_of_parts(*map(list, zip(*found, strict=True))):
            raise UserError(f"targets: {fault}")
        return found

    def fault(self, targets: Sequence[object], names: int) -> str:
        """Name one that is no `Objects`, or has a label that is no class."""
        for target in targets:
            if not isinstance(target, Objects):
                return f"{target!r}. Allowed: augment.Objects."
            if len(target) and not 1 <= target.labels.min() <= target.labels.max() < names:
                wrong = next(label for label in target.labels.tolist() if not 1 <= label < names)
                return f"{wrong} as a label. Allowed: 1 to {names - 1}; 0 is the background."
        found = [target for target in targets if isinstance(target, Objects)]
        return _fault_of_parts(found, [target.instances for target in found])

    def is_empty(self, target: Objects) -> bool:
        """Whether there are no objects."""
        return not len(target)

    def caption(self, target: Any, names: Sequence[str]) -> str:
        """Return the classes of the objects with their numbers, see `counted`."""
        labels = target["labels"].tolist() if isinstance(target, dict) else target.labels.tolist()
        return counted(labels, names)

    def blank(self, names: int) -> Target:
        """Return no objects."""
        return Objects.of([], [])

    def strata(self, targets: Sequence[Target]) -> NDArray[np.int64]:
        """Return the number of each set of classes, as for labels."""
        classes = range(1 + max((int(target.labels.max(initial=0)) for target in targets), default=0))
        return LABELS.strata([tuple(np.isin(classes, target.labels).tolist()) for target in targets])

    def present(self, target: Target) -> Sequence[int]:
        """Return the classes that objects have."""
        return [int(label) for label in np.unique(target.labels)]


def counted(labels: Iterable[int], names: Sequence[str]) -> str:
    """Return "3 cat, 2 dog, 1 bird and 2 more classes"; names may be empty."""
    found = [f"{n} {names[i] if names else i}" for i, n in Counter(labels).most_common()]
    more = f" and {amount(len(found) - 3, 'more class')}" if len(found) > 3 else ""
    return f"{', '.join(found[:3])}{more}" if found else "nothing"


def joined_masks(masks: Any, what: str, count: int | None = None) -> NDArray[np.uint8]:
    """Return one mask of the objects, see `Objects.instances`, from the mask of each; smaller ones cover larger ones.

    Raises:
        UserError: they are not (K, height, width), or too many.
    """
    allowed = "(K, height, width) of 0 and 1, one an object"
    given = check_array(masks, (count, None, None), what, allowed)
    if given.dtype.kind == "f" and not np.isin(given, (0, 1)).all():
        raise UserError(f"{what}: has values other than 0 and 1. Use {allowed}.")
    parts = given != 0
    if len(parts) >= IGNORE:
        raise UserError(f"{what}: {len(parts)} masks. Allowed: {IGNORE - 1}.")
    labels = np.zeros(parts.shape[1:] if len(parts) else (1, 1), np.uint8)
    for index in np.argsort(-parts.sum(axis=(1, 2)), kind="stable").tolist():
        labels[parts[index]] = index + 1
    return labels


def _given(target: Any, what: str) -> tuple[Objects, MaskRuns | None]:
    """Return the objects of an image in memory, and the mask of them, as `Boxes.load` does."""
    allowed = (*_PARTS, "image_id")
    if isinstance(target, dict) and (unknown := [key for key in target if key not in allowed]):
        raise unknown_key(what, unknown[0], target[unknown[0]], allowed)
    if not isinstance(target, dict) or not {"boxes", "labels"} <= target.keys():
        raise UserError(f"{what}: {type(target).__name__} is not allowed. Allowed: {_FORM}.")
    form = getattr(getattr(target["boxes"], "format", None), "value", "XYXY")  # of torchvision's tv_tensors
    if form != "XYXY":
        raise UserError(f"{what}: boxes: {form}. Allowed: XYXY, which tv_tensors' convert_bounding_box_format makes.")
    boxes = check_array(target["boxes"], (None, 4), f"{what}: boxes", "(K, 4), left, top, right, bottom")
    count, found = len(boxes), dict[str, NDArray[Any]]()
    for name, shape in _PARTS.items():
        if name in target and name != "masks":
            letters = "".join(f", {n or 'P'}" for n in shape) or ","
            found[name] = check_array(
                target[name], (count, *shape), f"{what}: {name}", f"({count}{letters}), one a box"
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
    """Return what is wrong with the first wrong box of (K, 4); nothing if none is."""
    with np.errstate(invalid="ignore"):
        wrong = ~(np.isfinite(boxes).all(axis=1) & (boxes[:, 2:] > boxes[:, :2]).all(axis=1))
    if not wrong.any():
        return ""
    box = boxes[np.argmax(wrong)]
    why = "is not finite" if not np.isfinite(box).all() else "has no area, or its edges are reversed"
    return f"the box {[float(f'{edge:.6g}') for edge in box]} {why}. Allowed: left < right, top < bottom."


def _fault_of_parts(images: Sequence[Objects], masks: Sequence[object]) -> str:
    counted = [number for number, found in enumerate(images) if len(found)]
    for name, parts in (("keypoints", [found.points for found in images]), ("masks", masks)):
        without = [number for number in counted if parts[number] is None]
        if 0 < len(without) < len(counted):
            return f"objects without {name} in image {without[0]}, with some in others. Allowed: in all, or in none."
    counts = dict.fromkeys(found.points.shape[1] for found in images if found.points is not None and len(found))
    return f"objects with {' and '.join(map(str, counts))} keypoints. Allowed: as many each." if len(counts) > 1 else ""


def _move_boxes(
    boxes: NDArray[np.float32], owners: NDArray[np.int64], motion: BatchMotion, rules: Rules
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the hulls of moved boxes, (M, 4), clipped to what is shown, and which are kept."""
    # Their corners; more of them where these may not be the outermost, and some may not be shown.
    share = np.linspace(0, 1, 7 if motion.bends else 2)[:, None]
    edges = boxes[:, None].astype(np.float64) - 0.5
    across, down = np.moveaxis((1 - share) * edges[..., :2] + share * edges[..., 2:], -1, 0)
    points = np.stack(np.broadcast_arrays(across[:, None], down[:, :, None]), axis=-1)
    least, most = (np.fmin, np.fmax) if motion.bends else (np.minimum, np.maximum)
    visible, (low, high) = np.ones(len(boxes)), (np.tile(edge, 2) for edge in motion.edges)

    def hulls_of(moved: NDArray[np.float64]) -> NDArray[np.float64]:
        corners = moved.reshape(-1, len(share) ** 2, 2)
        return np.concatenate([least.reduce(corners, axis=1), most.reduce(corners, axis=1)], axis=1)

    def watch(moved: NDArray[np.float64]) -> None:
        hulls = hulls_of(moved)
        np.fmin(visible, areas(hulls.clip(low, high)) / areas(hulls), out=visible)

    with np.errstate(invalid="ignore", divide="ignore"):
        hulls = hulls_of(motion.forward(points.reshape(-1, 2), np.repeat(owners, len(share) ** 2), watch)) + 0.5
        clipped, area = motion.parts.clip(hulls, owners)
        visible = np.fmin(visible, area / areas(hulls))
        # All of a box may be a little less, as windows are float32.
        keep = (area >= rules.min_area) & (visible > 0) & (visible >= (1 - 1e-4) * rules.min_visible)
    return clipped, keep


BOXES = register(Boxes())
