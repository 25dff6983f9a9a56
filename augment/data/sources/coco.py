"""The source of COCO's JSON."""

from dataclasses import dataclass
from pathlib import Path

from augment.data.dataset import Dataset
from augment.data.formats.coco import CocoFile, images_of, read_coco, same_categories
from augment.data.formats.objects import Wanted, flip_pairs_of, make_objects, missing
from augment.data.sources.registry import MAX_BAD, SKIP_BAD, ListedSource, source
from augment.params import Choice, Flag, Text, setting
from augment.support.files import expanded

TASK = Choice(
    default="detect", options=("detect", "segment"), doc="boxes, or masks of classes drawn from the outlines of objects"
)
INSTANCES = Flag(default=False, doc="with boxes, the mask of each object, drawn from its outline")


@source("coco")
@dataclass(frozen=True, kw_only=True)
class Coco(ListedSource):
    """COCO's JSON: boxes, with them masks of instances or keypoints if asked; or masks of classes."""

    train: str = setting(Text(required=True, doc="file of annotations, .json"))
    val: str | None = setting(Text(optional=True, doc="validation data, likewise; null: with val_fraction or folds"))
    images: str | None = setting(Text(optional=True, doc="folder of the images; null: that of each .json"))
    train_images: str | None = setting(Text(optional=True, doc="folder of the images of train; null: data.images"))
    val_images: str | None = setting(Text(optional=True, doc="folder of the images of val; null: data.images"))
    task: str = setting(TASK)
    instances: bool = setting(INSTANCES)
    keypoints: bool = setting(Flag(default=False, doc="with boxes, the points of each object"))
    skip_bad: bool = setting(SKIP_BAD)
    max_bad: int = setting(MAX_BAD)

    def load(self) -> Dataset:
        """Read the files; images that are missing are a problem, unless bad ones are left out."""
        files = [read_coco(key, expanded(file)) for key, file in self.given().items()]
        wanted = self._wanted(files[0])
        splits, notices = zip(*(images_of(file, self._folder(file), wanted) for file in files), strict=True)
        problems = () if self.skip_bad else missing(self.given(), splits)
        return make_objects(same_categories(files), splits, wanted, problems=problems).noting(*notices)

    def _wanted(self, file: CocoFile) -> Wanted:
        if self.keypoints and not file.points:
            raise file.error("no category has keypoints. Allowed: data.keypoints=false.")
        points = file.points if self.keypoints else ()
        return Wanted(self.task, self.instances, points, flip_pairs_of(points))

    def _folder(self, file: CocoFile) -> Path:
        of_split = self.val_images if file.key == "data.val" else self.train_images
        folder = of_split or self.images
        return file.file.parent if folder is None else expanded(folder)
