"""The source of COCO's JSON, and the base of all sources of annotated objects."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from augment.data.dataset import Dataset
from augment.data.formats.coco import CocoFile, images_of, read_coco, same_categories
from augment.data.formats.objects import AnnotatedImage, Wanted, flip_pairs_of, make_objects
from augment.data.sources.registry import MAX_BAD, SKIP_BAD, ListedSource, source
from augment.params import Choice, Flag, Text, setting
from augment.support.errors import UserError
from augment.support.files import expanded, near_file

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
        problems = () if self.skip_bad else tuple(filter(None, map(missing, self.given(), splits)))
        return replace(make_objects(tuple(same_categories(files)), splits, wanted), problems=problems).noting(*notices)

    def _wanted(self, file: CocoFile) -> Wanted:
        if self.keypoints and not file.points:
            raise file.error("no category has keypoints. Allowed: data.keypoints=false.")
        points = file.points if self.keypoints else ()
        return Wanted(self.task, self.instances, points, flip_pairs_of(points))

    def _folder(self, file: CocoFile) -> Path:
        of_split = self.val_images if file.key == "data.val" else self.train_images
        folder = of_split or self.images
        return file.file.parent if folder is None else expanded(folder)


def missing(key: str, images: Sequence[AnnotatedImage]) -> str:
    """Return the message that images are missing; empty if none is."""
    gone = [image for image in images if not image.file.exists()]
    if not gone:
        return ""
    more = f" (and {len(gone) - 1:,} more)" if len(gone) > 1 else ""
    return f"{key}: there is no {gone[0].file}{more}, {gone[0].where}.{near_file(gone[0].file)}"


def refuse_outlines(name: str, wanted: Wanted) -> None:
    """Refuse what needs outlines of objects.

    Raises:
        UserError: it was asked for.
    """
    if wanted.shapes:
        asked = "data.instances=true" if wanted.instances else f"data.task={wanted.task}"
        raise UserError(f"{asked}: data={name} has no outlines of objects. Allowed: data.task=detect.")
