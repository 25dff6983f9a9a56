"""The source of Pascal VOC."""

from dataclasses import dataclass

from augment.data.dataset import Dataset
from augment.data.formats.masks import Pixels, read_masks
from augment.data.formats.objects import Wanted, class_names, label, make_objects
from augment.data.formats.voc import CLASSES, VocFolders, find_masks, list_names, read_annotations
from augment.data.sources.registry import MAX_BAD, SKIP_BAD, Source, source
from augment.data.targets.boxes import BACKGROUND
from augment.data.targets.names import read_names
from augment.params import Choice, Text, setting
from augment.support.files import expanded


@source("voc")
@dataclass(frozen=True, kw_only=True)
class Voc(Source):
    """Pascal VOC's folders: boxes of Annotations/*.xml, or masks of SegmentationClass/*.png."""

    root: str = setting(Text(aliases=("path",), required=True, doc="folder with Annotations, ImageSets and JPEGImages"))
    train: str | None = setting(
        Text(
            default="train", optional=True, doc="list of train in ImageSets/Main or Segmentation; null: all annotations"
        )
    )
    val: str | None = setting(
        Text(default="val", optional=True, doc="list of val, likewise; null: with val_fraction or folds")
    )
    task: str = setting(Choice(default="detect", options=("detect", "segment"), doc="boxes, or masks of classes"))
    classes: str | None = setting(
        Text(optional=True, doc="file with one class name per line; null: of boxes, those found; of masks, VOC's own")
    )
    images: str = setting(Text(default="JPEGImages", doc="folder of the images in root"))
    annotations: str = setting(Text(default="Annotations", doc="folder of the .xml in root"))
    skip_bad: bool = setting(SKIP_BAD)
    max_bad: int = setting(MAX_BAD)

    def load(self) -> Dataset:
        """Read the lists, and annotations or masks."""
        folders = VocFolders(expanded(self.root), self.images, self.annotations)
        segment = self.task == "segment"
        splits = [self.train] if self.val is None or self.cuts_val or self.only_val else [self.train, self.val]
        names = [list_names(folders, "Segmentation" if segment else "Main", split) for split in splits]
        given = read_names(self.classes) if self.classes else ()
        if segment:
            pixels = Pixels(given or (BACKGROUND, *CLASSES))
            return read_masks([find_masks(folders, of_split) for of_split in names], pixels)
        read = [read_annotations(folders, of_split) for of_split in names]
        classes = given or class_names(read)
        label(read, classes)
        return make_objects(classes, read, Wanted())

    @property
    def given_val(self) -> tuple[str, str] | None:
        """The list of val, if it is there beside that of train."""
        kind = "Segmentation" if self.task == "segment" else "Main"
        files = [expanded(self.root) / "ImageSets" / kind / f"{split}.txt" for split in (self.train, self.val)]
        return (f"data.val={self.val}", "data.val=null") if self.val and all(file.exists() for file in files) else None
