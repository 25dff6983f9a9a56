"""The sources of masks and objects: mask files, COCO, YOLO and Pascal VOC, and CSV files of boxes or points."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from augment.data.dataset import Dataset
from augment.data.formats import coco, voc, yolo
from augment.data.formats.annotations import AnnotatedImage, Wanted, label, make_objects
from augment.data.formats.csv_annotations import point_names, read_boxes, read_points
from augment.data.formats.masks import find_pairs, read_masks, read_palette
from augment.data.formats.text_files import describe_absent
from augment.data.sources.registry import FLIP_PAIRS, CheckedSource, ListedSource, source
from augment.data.targets.boxes import BACKGROUND
from augment.data.targets.class_names import read_names
from augment.data.targets.keypoints import pair_points
from augment.data.targets.masks import MaskFile
from augment.data.targets.spatial import IGNORE
from augment.params import Choice, Count, Flag, Text, setting
from augment.support.errors import UserError
from augment.support.files import expanded, near_file

_TASK = Choice(
    default="detect", options=("detect", "segment"), doc="boxes, or masks of classes drawn from the outlines of objects"
)
_INSTANCES = Flag(default=False, doc="with boxes, the mask of each object, drawn from its outline")
_ROOT = Text(optional=True, doc="folder that paths are relative to; null: the folder of each file")


class _Annotations(CheckedSource, ListedSource):
    """Base of the sources with a file of annotations for each split."""

    def _dataset(self, names: Sequence[str], splits: Sequence[Sequence[AnnotatedImage]], wanted: Wanted) -> Dataset:
        """Return the data set; images that are missing are a problem, unless bad ones are left out."""
        given = (
            (key, [image.file for image in images], [image.where for image in images].__getitem__)
            for key, images in zip(self.given(), splits, strict=True)
        )
        return make_objects(names, splits, wanted, problems=() if self.skip_bad else describe_absent(given))


@source("coco")
@dataclass(frozen=True, kw_only=True)
class Coco(_Annotations):
    """COCO's JSON: boxes, with them masks of instances or keypoints if asked; or masks of classes."""

    train: str = setting(Text(required=True, doc="file of annotations, .json"))
    images: str | None = setting(Text(optional=True, doc="folder of the images; null: that of each .json"))
    train_images: str | None = setting(Text(optional=True, doc="folder of the images of train; null: data.images"))
    val_images: str | None = setting(Text(optional=True, doc="folder of the images of val; null: data.images"))
    task: str = setting(_TASK)
    instances: bool = setting(_INSTANCES)
    keypoints: bool = setting(Flag(default=False, doc="with boxes, the points of each object"))
    flip_pairs: tuple[tuple[str, str], ...] | None = setting(FLIP_PAIRS)

    def load(self) -> Dataset:
        """Read the files."""
        files = [coco.read_coco(key, expanded(file)) for key, file in self.given().items()]
        if self.keypoints and not files[0].points:
            raise files[0].error("no category has keypoints. Allowed: data.keypoints=false.")
        points = files[0].points if self.keypoints else ()
        wanted = Wanted(self.task, self.instances, points, pair_points(self.flip_pairs, points))
        splits, notices = zip(*(coco.images_of(file, self._folder(file), wanted) for file in files), strict=True)
        dataset = self._dataset(coco.same_categories(files), splits, wanted).noting(*notices)
        return replace(dataset, class_ids=files[0].ids["categories"])

    def _folder(self, file: coco.CocoFile) -> Path:
        folder = (self.val_images if file.key == "data.val" else self.train_images) or self.images
        return file.file.parent if folder is None else expanded(folder)


@source("yolo")
@dataclass(frozen=True, kw_only=True)
class Yolo(CheckedSource):
    """YOLO's data.yaml with .txt labels: boxes, with them masks of instances if asked; or masks of classes."""

    root: str = setting(Text(aliases=("path",), required=True, doc="data.yaml, or the folder that it is in"))
    task: str = setting(_TASK)
    instances: bool = setting(_INSTANCES)

    def load(self) -> Dataset:
        """Read the labels of all images."""
        root = expanded(self.root)
        file = root / "data.yaml" if root.is_dir() else root
        content, classes = yolo.read_yolo(file)
        has_val = not self.cuts_val and bool(content.get("val") or content.get("valid"))
        names = ["train", "val"] if has_val else ["train"]
        splits, notices = zip(*(yolo.images_of(file, content, classes, name) for name in names), strict=True)
        return make_objects(tuple(classes.values()), splits, Wanted(self.task, self.instances)).noting(*notices)


@source("voc")
@dataclass(frozen=True, kw_only=True)
class Voc(CheckedSource):
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

    def load(self) -> Dataset:
        """Read the lists, and annotations or masks."""
        root = expanded(self.root)
        folder, ending = (self.annotations, ".xml") if self.task == "detect" else ("SegmentationClass", ".png")
        images = voc.files_by_name(root / self.images, voc.IMAGES)
        described = voc.files_by_name(root / folder, (ending,))
        splits = [self.train] if self.val is None or self.cuts_val else [self.train, self.val]
        names = [voc.list_names(self._list(split) if split else root / folder, described, images) for split in splits]
        # Of each image: its file, and that of its mask or annotations.
        files = [
            [
                (
                    images.get(name, root / self.images / f"{name}.jpg"),
                    described.get(name, root / folder / f"{name}{ending}"),
                )
                for name in some
            ]
            for some in names
        ]
        given = read_names(self.classes) if self.classes else ()
        if self.task == "segment":
            found = [
                {image: mask if mask.exists() else f"has no mask: there is no {mask}" for image, mask in some}
                for some in files
            ]
            return read_masks(found, given or (BACKGROUND, *voc.CLASSES), MaskFile(Path()))
        read = [[voc.read_image(*pair, number) for number, pair in enumerate(some, 1)] for some in files]
        return make_objects(label(read, given), read, Wanted())

    @property
    def given_val(self) -> str:
        """The list of val, if it is there beside that of train."""
        return f"data.val={self.val}" if all(self._list(of or "").exists() for of in (self.train, self.val)) else ""

    def _list(self, split: str) -> Path:
        kind = "Segmentation" if self.task == "segment" else "Main"
        return expanded(self.root) / "ImageSets" / kind / f"{split}.txt"


@source("points")
@dataclass(frozen=True, kw_only=True)
class PointTable(_Annotations):
    """CSV of a fixed number of points in each image: path,x_NAME,y_NAME,... in pixels; empty cells: not labeled."""

    task: ClassVar[str] = "keypoints"

    train: str = setting(
        Text(required=True, doc="file of train, .csv; v_NAME may say 0 not labeled, 1 hidden, 2 visible")
    )
    root: str | None = setting(_ROOT)
    flip_pairs: tuple[tuple[str, str], ...] | None = setting(FLIP_PAIRS)

    def load(self) -> Dataset:
        """Read the files."""
        files, root = {key: expanded(file) for key, file in self.given().items()}, self.root and expanded(self.root)
        names = point_names(*next(iter(files.items())))
        splits = [read_points(key, file, root or None, names) for key, file in files.items()]
        wanted = Wanted("keypoints", points=names, flip_pairs=pair_points(self.flip_pairs, names))
        return self._dataset(names, splits, wanted)


@source("boxes")
@dataclass(frozen=True, kw_only=True)
class BoxTable(_Annotations):
    """CSV of boxes, a line an object: path,left,top,right,bottom,class in pixels; only the path: no objects."""

    task: ClassVar[str] = "detect"

    train: str = setting(Text(required=True, doc="file of train, .csv"))
    root: str | None = setting(_ROOT)
    classes: str | None = setting(Text(optional=True, doc="file with one class name per line; null: those found"))

    def load(self) -> Dataset:
        """Read the files."""
        root = None if self.root is None else expanded(self.root)
        splits = [read_boxes(key, expanded(file), root) for key, file in self.given().items()]
        names = label(splits, read_names(self.classes) if self.classes else ())
        return self._dataset(names, splits, Wanted())


@source("masks")
@dataclass(frozen=True, kw_only=True)
class MaskPairs(CheckedSource):
    """Images with a mask file each: DIR/train/images/* and DIR/train/masks/*, or DIR/images/train/* and so on."""

    task: ClassVar[str] = "segment"

    root: str = setting(
        Text(
            aliases=("path", "folder", "data_dir"),
            required=True,
            doc="folder with train/images, train/masks, val/images, val/masks, or with images/train, masks/train ...",
        )
    )
    images: str = setting(Text(default="images", doc="name of the folders of images"))
    masks: str = setting(
        Text(
            default="masks",
            doc="name of the folders of masks, or its end, as in trainannot; masks are named as their images",
        )
    )
    image_suffix: str = setting(Text(optional=True, default=None, doc="end of images' names, such as _leftImg8bit"))
    mask_suffix: str = setting(Text(optional=True, default=None, doc="end of masks' names instead, such as _labelIds"))
    train_dir: str = setting(Text(default="train", doc="folder of train"))
    val_dir: str | None = setting(Text(default="val", optional=True, doc="folder of val; null: none"))
    classes: str | None = setting(
        Text(optional=True, doc="file with one class name per line, of labels 0, 1, ...; null: those found")
    )
    palette: str | None = setting(
        Text(
            optional=True, doc="file of lines name,red,green,blue, or name,value, one a class; no name: does not count"
        )
    )
    ignore_index: int = setting(Count(default=255, within=(0, 255), doc="value of pixels that do not count"))

    def load(self) -> Dataset:
        """List the folders, and read masks that were not read before, for their sizes and labels."""
        splits = ["" if self.cuts_val and not self._has(self.train_dir) else self.train_dir]
        splits += [self.val_dir] if self.val_dir and not self.cuts_val and self._has(self.val_dir) else []
        suffixes = (self.image_suffix or "", self.mask_suffix or "")
        folders = [self._folders(split) for split in splits]
        for split, (images, _) in zip(splits, folders, strict=True):
            if split and not images.is_dir() and (hint := self._hint(split)):
                raise UserError(f"data.root: there is no folder {images}. {hint}")
        pairs = [find_pairs(*pair, *suffixes) for pair in folders]
        return read_masks(pairs, *self._pixels())

    @property
    def given_val(self) -> str:
        """The folder of val beside that of train."""
        found = self.val_dir and self._has(self.train_dir) and self._has(self.val_dir)
        return str(self._folders(self.val_dir)[0]) if self.val_dir and found else ""

    @property
    def without_val(self) -> str:
        """The setting that leaves out the folder of val."""
        return "data.val_dir=null"

    def _pixels(self) -> tuple[tuple[str, ...], MaskFile]:
        """Return the names of the classes, and a mask without a file."""
        if self.palette is not None:
            if self.classes is not None or self.ignore_index != 255:
                raise UserError(
                    f"data.palette={self.palette}: says all. Allowed: without data.classes and ignore_index."
                )
            return read_palette(expanded(self.palette))
        # Pixels of 255 never count.
        labels = (IGNORE if label == self.ignore_index else label for label in range(IGNORE + 1))
        given = read_names(self.classes) if self.classes else ()
        return given, MaskFile(Path(), () if self.ignore_index == IGNORE else tuple(labels))

    def _hint(self, split: str) -> str:
        """Return the settings for folders such as train and trainannot, if these are there."""
        root = expanded(self.root)
        ends = sorted(folder.name.removeprefix(split) for folder in root.glob(f"{split}?*") if folder.is_dir())
        if not ends or not (root / split).is_dir():
            return ""
        return f"If images are in {split} and masks in {split}{ends[0]}: data.images=. data.masks={ends[0]}"

    def _has(self, split: str) -> bool:
        return self._folders(split)[0].is_dir()

    def _folders(self, split: str) -> tuple[Path, Path]:
        root = expanded(self.root)
        if not root.is_dir():
            raise UserError(f"data.root={self.root}: there is no such folder.{near_file(root, folder=True)}")
        return _folder(root, split, expanded(self.images)), _folder(root, split, expanded(self.masks))


def _folder(root: Path, split: str, name: Path) -> Path:
    """Return the folder of images or masks of a split: root/name/split, root/splitname or root/split/name."""
    others = (root / name / split, root / f"{split}{name}")
    return next((folder for folder in others if split and folder.is_dir()), root / split / name)
