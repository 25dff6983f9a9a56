"""Segmentation targets: a mask per image with the class of each pixel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from augment.data.image_faults import DECODER_ERRORS
from augment.data.images import open_with_pillow, turn_back
from augment.data.targets.kind import Target, register
from augment.data.targets.spatial import IGNORE, Rules, SpatialKind, StoredMask, check_array
from augment.support.device import to_device
from augment.support.errors import UserError, first_line
from augment.support.files import open_file
from augment.support.formatting import amount, list_some
from augment.support.lazy_torch import Tensor, torch

if TYPE_CHECKING:
    from augment.drawing.target_overlays import Drawing
    from augment.pipeline.geometry.motion import BatchMotion


@dataclass(frozen=True)
class MaskFile:
    """A mask in an image file, usually PNG.

    Attributes:
        path: the file. Its pixels are gray or palette values, or colors if `colors` is not empty.
        labels: the label of each pixel value from 0 to 255, or of each color. Default: the value itself, or the index
            of the color.
        colors: the allowed colors (R, G, B).
        classes: number of classes. All labels except `IGNORE` must be below it.
        orientation: EXIF orientation of the image, if the mask was drawn on the upright image.
        image: the image, if its pixels without data have no label. See `augment.data.rasters.Raster.read_empty`.
    """

    path: Path
    labels: tuple[int, ...] = ()
    colors: tuple[tuple[int, int, int], ...] = field(default=())
    classes: int = IGNORE
    orientation: int = 1
    image: Any = None

    @property
    def name(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}"

    def read(self) -> NDArray[np.uint8]:
        """Return the labels, (height, width)."""
        values = self._values()
        labels = np.array(self.labels or range(256), np.uint8)
        wrong = (labels >= self.classes) & (labels != IGNORE)
        if wrong.any() and (beyond := wrong[values]).any():
            allowed = f"0 to {self.classes - 1}, and {IGNORE} for none"
            if self.labels:
                listed = [value for value, label in enumerate(self.labels) if label < self.classes or label == IGNORE]
                allowed = list_some(map(str, listed), 12)
            raise UserError(f"{self.path}: the mask has the label {values[beyond][0]}. Allowed: {allowed}.")
        found = labels[values] if self.labels else values
        with suppress(OSError, UserError):  # the check of the image reports its faults
            empty = None if self.image is None else self.image.read_empty()
            if empty is not None and empty.shape == found.shape:
                found = np.where(empty, np.uint8(IGNORE), found)
        return turn_back(found, self.orientation)

    def _values(self) -> NDArray[np.uint8]:
        """Return the value of each pixel, or the index of its color."""
        try:
            with open_file(self.path) as stream, open_with_pillow(stream) as image:
                reject_lossy(image, self.name)
                if self.colors:
                    return _of_colors(np.asarray(image.convert("RGB")), self.colors, self.name)
                if image.mode not in ("1", "L", "P"):
                    hint = " For colors, set data=masks data.palette=FILE." if image.mode in ("RGB", "RGBA") else ""
                    raise UserError(
                        f"{self.path}: the mask has mode {image.mode}. Use one 8-bit label per pixel.{hint}"
                    )
                if not self.labels:  # a palette lists the values as Pillow returns them
                    _reject_scaled(image, self.name)
                return np.asarray(image, np.uint8)
        except DECODER_ERRORS as error:
            raise UserError(f"{self.path}: the mask cannot be read: {first_line(error)}.") from error


def describe_gaps(labels: Collection[int], remedy: str) -> str:
    """Return a notice about unused labels below the highest label, or an empty string."""
    found = sorted({*labels} - {IGNORE})
    if not found or len(found) == found[-1] + 1:
        return ""
    return (
        f"data: masks have {amount(len(found), 'value')}, {list_some(map(str, found))}, so there are {found[-1] + 1} "
        f"classes. If each value is a class, {remedy}"
    )


# The formats that can change the values of pixels.
_LOSSY = ("JPEG", "MPO", "AVIF", "WEBP", "JPEG2000")


def reject_lossy(image: Image.Image, name: str) -> None:
    """Reject a mask in a format with lossy compression. An image that was created in memory has no format.

    Raises:
        UserError: the format can be lossy.
    """
    kind = image.format or ""
    if kind in _LOSSY or image.info.get("compression") in ("jpeg", "tiff_jpeg", "webp"):
        values = len(np.unique(np.asarray(image.convert("L" if image.mode in ("1", "L", "P") else "RGB"))))
        raise UserError(
            f"{name}: formats with lossy compression ({kind}) may change labels. This mask has "
            f"{amount(values, 'value')}. Save the original mask as PNG."
        )


def _reject_scaled(image: Image.Image, name: str) -> None:
    """Reject a gray mask whose values Pillow scales to 0..255, such as 2-bit values, or inverts.

    Raises:
        UserError: Pillow changes the values.
    """
    for codec, _, _, args in getattr(image, "tile", ())[:1] if image.mode == "L" else ():
        raw, *others = args if isinstance(args, tuple) else (args,)
        if str(raw).startswith(("L;2", "L;4", "L;I")) or (codec.startswith("ppm") and others not in ([], [255])):
            raise UserError(f"{name}: the mask stores less than 8 bits per pixel, or 0 as white. Save it as 8-bit PNG.")


@dataclass(frozen=True)
class MaskRuns:
    """A mask in memory as runs of equal labels, row by row. A typical mask needs at most 1% of its pixels' memory.

    Attributes:
        starts: the first pixel of each run, (R,), ascending from 0.
        labels: the label of each run, (R,).
        size: height and width of the mask.
        name: its name for messages.
    """

    starts: NDArray[np.int32]
    labels: NDArray[np.uint8]
    size: tuple[int, int]
    name: str

    @classmethod
    def of(cls, labels: NDArray[np.uint8], name: str) -> MaskRuns:
        """Return the runs of labels, (height, width)."""
        flat = labels.ravel()
        starts = np.append(0, np.flatnonzero(flat[1:] != flat[:-1]) + 1).astype(np.int32)
        return cls(starts, flat[starts], (labels.shape[0], labels.shape[1]), name)

    @property
    def nbytes(self) -> int:
        return self.starts.nbytes + self.labels.nbytes

    @property
    def whole(self) -> NDArray[np.uint8]:
        """The labels, (height * width,)."""
        return np.repeat(self.labels, np.diff(self.starts, append=self.size[0] * self.size[1]))


class Masks(SpatialKind):
    """The class of each pixel. A batch is (N, height, width) int64."""

    noun, units, task = "class", "masks", "segment"
    pastes = True

    def stored(self, target: StoredMask) -> StoredMask:
        return target

    def load(self, target: Target) -> MaskRuns:
        return MaskRuns.of(target.read(), target.name)

    def follow(self, loaded: Sequence[Any], motion: BatchMotion, rules: Rules) -> Tensor:
        """Return (N, height, width) int64: the label of the stored pixel that each output pixel shows."""
        labels, images = look_up(loaded, motion, rules.fill_label).long(), motion.parts.images
        if images[-1] == len(images) - 1:
            return labels
        joined = labels.new_full((int(images[-1]) + 1, *motion.size), rules.fill_label)
        # Each pixel shows one part. The other parts have the fill label there.
        return joined.index_add_(0, to_device({"": images}, motion.device)[""], labels - rules.fill_label)

    def draw(self, drawing: Drawing, target: Any, names: Sequence[str]) -> None:
        drawing.mask(np.asarray(target), names, ignore=IGNORE)

    def from_memory(self, targets: Any, count: int) -> list[Any]:
        """Convert masks, (N, height, width) or a list of (height, width)."""
        if len(targets) != count:
            raise UserError(f"targets: {len(targets)} masks for {count} images. Pass one per image.")
        found = []
        for number, mask in enumerate(targets):
            what = f"targets[{number}]"
            labels = check_array(mask, (None, None), what, "a mask (height, width) of labels 0 to 255")
            low, high = labels.min(initial=0), labels.max(initial=0)
            if labels.dtype.kind == "f" or low < 0 or high > IGNORE:
                raise UserError(f"{what}: {labels.dtype} values from {low} to {high}. Use labels 0 to {IGNORE}.")
            found.append(MaskRuns.of(labels.astype(np.uint8), what))
        return found

    def fault(self, targets: Sequence[object], names: int) -> str:
        """Describe the first target that is not a mask."""
        odd = [target for target in targets if not hasattr(target, "read")]
        return f"{odd[0]!r}. Use an augment.MaskFile, or an object with a name and a read()." if odd else ""

    def is_empty(self, target: StoredMask) -> bool:
        """Whether the mask is drawn from outlines, but has no outline."""
        return getattr(target, "shapes", None) == ()

    def caption(self, target: Any, names: Sequence[str]) -> str:
        """Return the three largest classes of a mask, in memory or stored, with their shares of the pixels."""
        labels = np.asarray(target.read() if hasattr(target, "read") else target)
        counts = Counter(dict(zip(*(found.tolist() for found in np.unique(labels, return_counts=True)), strict=True)))
        counts.pop(IGNORE, None)
        total = max(sum(counts.values()), 1)
        return ", ".join(f"{names[i] if names else i} {n / total:.0%}" for i, n in counts.most_common(3))

    def blank(self, names: int) -> Target:
        """Return a mask that fits any image and has no label."""
        return NO_MASK


@dataclass(frozen=True)
class _NoMask:
    name: str = "no mask"

    def read(self) -> NDArray[np.uint8]:
        return np.full((1, 1), IGNORE, np.uint8)


NO_MASK = _NoMask()


def look_up(loaded: Sequence[MaskRuns], motion: BatchMotion, fill: int) -> Tensor:
    """Return the label of the stored pixel that each output pixel shows, (N, height, width) uint8 on the device.

    Args:
        loaded: the mask of each stored image. A mask of one pixel fits any image.
        motion: the motion of the pixels.
        fill: the label of output pixels that show no stored pixel.

    Raises:
        UserError: a mask and its image have different sizes.
    """
    for runs, size in zip(loaded, motion.stored_sizes.tolist(), strict=True):
        if runs.size != tuple(size) and runs.size != (1, 1):
            raise UserError(
                f"{runs.name}: the mask has {runs.size[0]} x {runs.size[1]} pixels, but the image has {size[0]} x "
                f"{size[1]}. Use masks of the same size as their images."
            )
    count, (height, width) = len(loaded), motion.size
    if motion.device.type == "cpu":  # one by one, because one mask fits into the CPU's cache
        shown = np.empty((count, height, width), np.uint8)
        for number, runs in enumerate(loaded):
            row, column, inside = motion.back(slice(number, number + 1))
            found = np.take(runs.whole, row[0] * runs.size[1] + column[0], mode="clip")
            shown[number] = np.where(inside[0], found, fill)
        return torch.from_numpy(shown)
    row, column, inside = motion.back(slice(None))
    sizes = np.array([runs.size for runs in loaded])
    ends = np.cumsum(sizes.prod(axis=1))
    offsets = ends - sizes.prod(axis=1)
    # Search for each pixel's run, because copying whole masks to the GPU would take more time than everything else.
    arrays = {
        "starts": np.concatenate([runs.starts for runs in loaded])
        + np.repeat(offsets, [len(r.starts) for r in loaded]),
        "labels": np.concatenate([runs.labels for runs in loaded]),
        "pixels": np.stack([offsets, sizes[:, 1], ends - 1])[:, :, None, None],
    }
    sent = to_device(arrays, motion.device)
    first, widths, last = sent["pixels"]
    pixel = (row * widths + column + first).minimum(last)
    return torch.where(inside, sent["labels"][torch.searchsorted(sent["starts"], pixel, right=True) - 1], fill)


def _of_colors(pixels: NDArray[np.uint8], colors: Sequence[tuple[int, int, int]], name: str) -> NDArray[np.uint8]:
    codes = pixels.astype(np.int32) @ np.array([1 << 16, 1 << 8, 1], np.int32)
    known = np.array(colors, np.int64) @ np.array([1 << 16, 1 << 8, 1])
    order = np.argsort(known)
    at = np.searchsorted(known[order], codes).clip(max=len(known) - 1)
    labels = order[at]
    wrong = known[labels] != codes
    if wrong.any():
        color = tuple(pixels[wrong][0].tolist())
        raise UserError(f"{name}: the mask has the color {color}, which is not in data.palette. Add it there.")
    return np.asarray(labels, np.uint8)


MASKS = register(Masks())
