"""The sources of generated images, with classes, labels, masks, boxes or keypoints."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from augment.data.dataset import DATA_DIR, Dataset, Split
from augment.data.formats.folder import scan_folder
from augment.data.generated import annotated, bands
from augment.data.generated.sample import make_sample, make_scenes
from augment.data.sources.files import FileList
from augment.data.sources.registry import Source, source
from augment.data.targets.boxes import BOXES, Objects
from augment.data.targets.keypoints import Keypoints
from augment.data.targets.masks import MASKS, MaskFile
from augment.params import WRITES, Flag, Text, setting, settings
from augment.support.nested import grouped


@source("sample")
@dataclass(frozen=True, kw_only=True)
class Sample(Source):
    """Ten classes of generated images. Nothing is downloaded."""

    dir: str = setting(Text(default=DATA_DIR, doc="folder in which the dataset is generated once", reach=WRITES))

    def load(self) -> Dataset:
        """Generate the dataset if it is missing."""
        return scan_folder(make_sample(Path(self.dir)))


@source("sample_multilabel")
@dataclass(frozen=True, kw_only=True)
class SampleMultilabel(Sample):
    """Generated images, each with one to four of the sample's ten objects."""

    def load(self) -> Dataset:
        """Generate the dataset if it is missing."""
        folder = make_scenes(Path(self.dir))
        train, val, classes = (str(folder / f"{name}.txt") for name in ("train", "val", "classes"))
        return FileList(train=train, val=val, classes=classes, multilabel=True).load()


@dataclass(frozen=True, kw_only=True)
class _Drawn(Sample):
    make: ClassVar[Callable[[Path], Path]] = annotated.make_objects
    names: ClassVar[tuple[str, ...]] = annotated.NAMES

    def load(self) -> Dataset:
        """Generate the dataset if it is missing."""
        folder = type(self).make(Path(self.dir))
        return Dataset(self.names, self._split(folder, "train"), self._split(folder, "val"))

    def _split(self, folder: Path, name: str) -> Split:
        raise NotImplementedError


@source("sample_masks")
@dataclass(frozen=True, kw_only=True)
class SampleMasks(_Drawn):
    """Generated images, with a mask of five kinds of objects and the background."""

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

    instances: bool = setting(Flag(default=False, doc="with boxes, also the mask of each object"))

    def _split(self, folder: Path, name: str) -> Split:
        images = _read(folder, name)
        targets = []
        for number, (file, objects) in enumerate(images.items()):
            boxes = [(x, y, x + width, y + height) for x, y, width, height in (found["bbox"] for found in objects)]
            labels = [found["category_id"] for found in objects]
            instances = MaskFile(folder / name / "instances" / f"{file.stem}.png") if self.instances else None
            targets.append(Objects.of(boxes, labels, instances=instances, image_id=number))
        return Split(tuple(images), tuple(targets), BOXES)


@source("sample_points")
@dataclass(frozen=True, kw_only=True)
class SamplePoints(_Drawn):
    """Generated images of houses, with five keypoints each."""

    task: ClassVar[str] = "keypoints"
    make: ClassVar[Callable[[Path], Path]] = annotated.make_points
    names: ClassVar[tuple[str, ...]] = annotated.POINTS

    def _split(self, folder: Path, name: str) -> Split:
        images = _read(folder, name)
        numbers = [house["keypoints"] for (house,) in images.values()]
        targets = tuple(tuple(zip(n[::3], n[1::3], n[2::3], strict=True)) for n in numbers)
        return Split(tuple(images), targets, Keypoints(annotated.FLIP_PAIRS))


@source("sample_bands")
@dataclass(frozen=True, kw_only=True)
class SampleBands(_Drawn):
    """Generated satellite images with ten 16-bit channels. Six of the ten classes differ only outside RGB."""

    make: ClassVar[Callable[[Path], Path]] = bands.make_bands
    names: ClassVar[tuple[str, ...]] = bands.NAMES

    range: tuple[float, float] | str | None = setting(replace(settings(Source)["range"], default=(0, 10000)))
    rgb: tuple[int, int, int] | None = setting(replace(settings(Source)["rgb"], default=bands.RGB_BANDS))

    def _split(self, folder: Path, name: str) -> Split:
        files = _arrays(folder, name)
        return Split(files, tuple(self.names.index(file.parent.name) for file in files))


@source("sample_bands_masks")
@dataclass(frozen=True, kw_only=True)
class SampleBandsMasks(SampleBands):
    """The images of `sample_bands`, with the land cover of each pixel."""

    task: ClassVar[str] = "segment"

    def _split(self, folder: Path, name: str) -> Split:
        files = _arrays(folder, name)
        masks = (MaskFile(bands.mask_of(file), classes=len(self.names)) for file in files)
        return Split(files, tuple(masks), MASKS)


def _arrays(folder: Path, split: str) -> tuple[Path, ...]:
    return tuple(sorted((folder / split).glob("*/*.npy")))


def _read(folder: Path, split: str) -> dict[Path, list[dict[str, Any]]]:
    """Return the annotations of each image in a COCO file."""
    content = json.loads((folder / f"{split}.json").read_text())
    annotations = grouped((found["image_id"], found) for found in content["annotations"])
    return {folder / image["file_name"]: annotations.get(image["id"], []) for image in content["images"]}
