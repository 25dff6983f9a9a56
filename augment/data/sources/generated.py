"""The sources of images that the project draws itself, with classes, labels, masks, boxes or points."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from augment.data.dataset import DATA_DIR, Dataset, Split
from augment.data.formats.folder import scan_folder
from augment.data.generated import annotated
from augment.data.generated.sample import make_sample, make_scenes
from augment.data.sources.files import FileList
from augment.data.sources.registry import Source, source
from augment.data.targets.boxes import BOXES, Objects
from augment.data.targets.keypoints import Keypoints
from augment.data.targets.masks import MASKS, MaskFile
from augment.params import WRITES, Flag, Text, setting


@source("sample")
@dataclass(frozen=True, kw_only=True)
class Sample(Source):
    """Ten classes of images drawn by the project itself: nothing to download."""

    dir: str = setting(Text(default=DATA_DIR, doc="folder in which the data set is created once", reach=WRITES))

    def load(self) -> Dataset:
        """Draw the set if it is not there."""
        return scan_folder(make_sample(Path(self.dir)))


@source("sample_multilabel")
@dataclass(frozen=True, kw_only=True)
class SampleMultilabel(Sample):
    """Images drawn by the project itself, each with one to four of the sample's ten objects."""

    def load(self) -> Dataset:
        """Draw the set if it is not there."""
        folder = make_scenes(Path(self.dir))
        train, val, classes = (str(folder / f"{name}.txt") for name in ("train", "val", "classes"))
        return FileList(train=train, val=val, classes=classes, multilabel=True).load()


@dataclass(frozen=True, kw_only=True)
class _Drawn(Sample):
    make: ClassVar[Callable[[Path], Path]] = annotated.make_objects
    names: ClassVar[tuple[str, ...]] = annotated.NAMES

    def load(self) -> Dataset:
        """Draw the set if it is not there."""
        folder = type(self).make(Path(self.dir))
        return Dataset(self.names, self._split(folder, "train"), self._split(folder, "val"))

    def _split(self, folder: Path, name: str) -> Split:
        raise NotImplementedError


@source("sample_masks")
@dataclass(frozen=True, kw_only=True)
class SampleMasks(_Drawn):
    """Images drawn by the project itself, with a mask of five kinds of objects and the background."""

    task: ClassVar[str] = "segment"

    def _split(self, folder: Path, name: str) -> Split:
        files = sorted((folder / name / "images").iterdir())
        masks = (MaskFile(folder / name / "masks" / f"{file.stem}.png", classes=len(self.names)) for file in files)
        return Split(tuple(files), tuple(masks), MASKS)


@source("sample_boxes")
@dataclass(frozen=True, kw_only=True)
class SampleBoxes(_Drawn):
    """The images of `sample_masks`, with the box of each object."""

    task: ClassVar[str] = "detect"

    instances: bool = setting(Flag(default=False, doc="with boxes, the mask of each object"))

    def _split(self, folder: Path, name: str) -> Split:
        files, annotations = _read(folder, name)
        targets = []
        for number, (file, found) in enumerate(zip(files, annotations, strict=True)):
            boxes = [(x, y, x + width, y + height) for x, y, width, height in (each["bbox"] for each in found)]
            instances = MaskFile(folder / name / "instances" / f"{file.stem}.png") if self.instances else None
            targets.append(
                Objects.of(boxes, [each["category_id"] for each in found], instances=instances, image_id=number)
            )
        return Split(files, tuple(targets), BOXES)


@source("sample_points")
@dataclass(frozen=True, kw_only=True)
class SamplePoints(_Drawn):
    """Images of houses drawn by the project itself, with five points each."""

    task: ClassVar[str] = "keypoints"
    make: ClassVar[Callable[[Path], Path]] = annotated.make_points
    names: ClassVar[tuple[str, ...]] = annotated.POINTS

    def _split(self, folder: Path, name: str) -> Split:
        files, annotations = _read(folder, name)
        numbers = [found["keypoints"] for (found,) in annotations]
        targets = tuple(tuple(zip(n[::3], n[1::3], n[2::3], strict=True)) for n in numbers)
        return Split(files, targets, Keypoints(annotated.FLIP_PAIRS))


def _read(folder: Path, split: str) -> tuple[tuple[Path, ...], list[list[dict[str, Any]]]]:
    """Return the images of a file in COCO's form, and the annotations of each."""
    content = json.loads((folder / f"{split}.json").read_text())
    files = {image["id"]: folder / image["file_name"] for image in content["images"]}
    annotations: dict[int, list[dict[str, Any]]] = {number: [] for number in files}
    for found in content["annotations"]:
        annotations[found["image_id"]].append(found)
    return tuple(files.values()), list(annotations.values())
