"""The sources of generated images, with classes, labels, masks, boxes or keypoints."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from augment.data.dataset import DATA_DIR, Dataset, Split
from augment.data.formats.annotations import AnnotatedImage, WantedTargets
from augment.data.formats.coco import images_of, read_coco
from augment.data.formats.folder import scan_folder
from augment.data.formats.masks import find_pairs, read_masks
from augment.data.generated.annotated import HOUSE_FLIP_PAIRS, POINTS, generate_objects, generate_points
from augment.data.generated.bands import COVER_NAMES, RGB_BANDS, generate_bands
from augment.data.generated.sample import generate_sample, generate_scenes
from augment.data.sources.files import FileList
from augment.data.sources.object_annotations import Coco, MaskPairs
from augment.data.sources.registry import Source, source
from augment.data.targets.keypoints import Keypoints
from augment.data.targets.masks import MaskFile
from augment.params import WRITES, Flag, Text, setting, settings


@source("sample")
@dataclass(frozen=True, kw_only=True)
class Sample(Source):
    """Ten classes of generated images. Nothing is downloaded."""

    dir: str = setting(Text(default=DATA_DIR, doc="folder in which the dataset is generated once", reach=WRITES))

    def load(self) -> Dataset:
        """Generate the dataset if it is missing."""
        return scan_folder(generate_sample(Path(self.dir)))


@source("sample_multilabel")
@dataclass(frozen=True, kw_only=True)
class SampleMultilabel(Sample):
    """Generated images, each with one to four of the sample's ten objects."""

    def load(self) -> Dataset:
        """Generate the dataset if it is missing."""
        folder = generate_scenes(Path(self.dir))
        train, val, classes = (str(folder / f"{name}.txt") for name in ("train", "val", "classes"))
        return FileList(train=train, val=val, classes=classes, multilabel=True).load()


@source("sample_masks")
@dataclass(frozen=True, kw_only=True)
class SampleMasks(Sample):
    """Generated images, with a mask of five kinds of objects and the background."""

    task: ClassVar[str] = "segment"

    def load(self) -> Dataset:
        """Generate the dataset if it is missing."""
        folder = generate_objects(Path(self.dir))
        return MaskPairs(root=str(folder), classes=str(folder / "classes.txt")).load()


@source("sample_boxes")
@dataclass(frozen=True, kw_only=True)
class SampleBoxes(Sample):
    """The images of `sample_masks`, with the box of each object."""

    task: ClassVar[str] = "detect"

    instances: bool = setting(Flag(default=False, doc="whether to add the mask of each object"))

    def load(self) -> Dataset:
        """Generate the dataset if it is missing."""
        folder = generate_objects(Path(self.dir))
        dataset = Coco(train=str(folder / "train.json"), val=str(folder / "val.json")).load()
        if not self.instances:
            return dataset
        train, val = (
            _with_instances(split, folder / name) for name, split in (("train", dataset.train), ("val", dataset.val))
        )
        return replace(dataset, train=train, val=val)


def _with_instances(split: Split, folder: Path) -> Split:
    """Add the files with the masks of the objects."""
    masks = ((found, MaskFile(folder / "instances" / f"{found.image_id:03d}.png")) for found in split.targets)
    return replace(split, targets=tuple(replace(found, instances=mask) for found, mask in masks))


@source("sample_points")
@dataclass(frozen=True, kw_only=True)
class SamplePoints(Sample):
    """Generated images of houses, with five keypoints each."""

    task: ClassVar[str] = "keypoints"

    def load(self) -> Dataset:
        """Generate the dataset if it is missing."""
        folder = generate_points(Path(self.dir))
        files = [read_coco("data.dir", folder / f"{name}.json") for name in ("train", "val")]
        train, val = (_keypoint_split(images_of(file, folder, WantedTargets(points=POINTS))[0]) for file in files)
        return Dataset(POINTS, train, val)


def _keypoint_split(images: Sequence[AnnotatedImage]) -> Split:
    """Return the split of the images, with the keypoints of the only house in each image."""
    points = (np.asarray(image.objects[0].points) for image in images)
    targets = (tuple(map(tuple, found.tolist())) for found in points)
    return Split(tuple(image.file for image in images), tuple(targets), Keypoints(HOUSE_FLIP_PAIRS))


@source("sample_bands")
@dataclass(frozen=True, kw_only=True)
class SampleBands(Sample):
    """Generated satellite images with ten 16-bit channels. Six of the ten classes differ only outside RGB."""

    range: tuple[float, float] | str | None = setting(replace(settings(Source)["range"], default=(0, 10000)))
    rgb: tuple[int, int, int] | None = setting(replace(settings(Source)["rgb"], default=RGB_BANDS))

    def load(self) -> Dataset:
        """Generate the dataset if it is missing."""
        return scan_folder(generate_bands(Path(self.dir)))


@source("sample_bands_masks")
@dataclass(frozen=True, kw_only=True)
class SampleBandsMasks(SampleBands):
    """The images of `sample_bands`, with the land cover of each pixel."""

    task: ClassVar[str] = "segment"

    def load(self) -> Dataset:
        """Generate the dataset if it is missing."""
        folder = generate_bands(Path(self.dir))
        pairs = [find_pairs(folder / name, folder / "masks" / name) for name in ("train", "val")]
        return read_masks(pairs, COVER_NAMES, MaskFile(Path()))
