"""The sources of masks, boxes and keypoints: mask files, COCO, YOLO, Pascal VOC, and CSV files."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

from augment.data.dataset import Dataset
from augment.data.formats import coco, voc, yolo
from augment.data.formats.annotations import AnnotatedImage, WantedTargets, make_objects, set_labels
from augment.data.formats.csv_annotations import point_names, read_boxes, read_points
from augment.data.formats.masks import find_pairs, read_masks, read_palette
from augment.data.formats.text_files import describe_absent
from augment.data.sources.registry import FLIP_PAIRS, CheckedSource, ListedSource, Source, of_single_split, source
from augment.data.targets.boxes import BACKGROUND
from augment.data.targets.class_names import read_names
from augment.data.targets.keypoints import pair_points
from augment.data.targets.masks import MaskFile
from augment.data.targets.spatial import IGNORE
from augment.params import Choice, Count, Flag, Text, setting
from augment.support.errors import UserError
from augment.support.files import expanded, near_file, shown
from augment.support.formatting import list_some

_TASK = Choice(
    default="detect", options=("detect", "segment"), doc="boxes, or class masks drawn from the outlines of objects"
)
_INSTANCES = Flag(default=False, doc="whether boxes come with the mask of each object, drawn from its outline")
_ROOT = Text(
    optional=True,
    aliases=("images", "folder", "image_dir"),
    doc="folder that paths are relative to. Default: the folder of each file",
)
_CLASSES = Text(optional=True, doc="file with one class name per line. Default: the classes found")


class _Annotations(CheckedSource, ListedSource):
    """Base of the sources with one annotation file per split."""

    missing_hint: ClassVar[str] = " Paths are relative to data.root, or else to the list's folder."

    def _dataset(
        self, names: Sequence[str], splits: Sequence[Sequence[AnnotatedImage]], wanted: WantedTargets
    ) -> Dataset:
        """Return the dataset. A missing image is a problem of the dataset, unless `skip_bad` is true."""
        files = (
            (key, [image.file for image in images], [image.where for image in images].__getitem__)
            for key, images in zip(self.split_values(), splits, strict=True)
        )
        problems = () if self.skip_bad else describe_absent(files, self.missing_hint)
        return make_objects(names, splits, wanted, problems=problems)


@source("coco")
@dataclass(frozen=True, kw_only=True)
class Coco(_Annotations):
    """COCO's JSON: boxes, optionally with instance masks or keypoints, or class masks instead of boxes."""

    missing_hint: ClassVar[str] = (
        " Set data.images to the folder of the images. If each split has its own folder, set data.train_images, "
        "data.val_images and data.test_images."
    )

    train: str = setting(Text(required=True, doc="annotation file, `.json`"))
    images: str | None = setting(
        Text(optional=True, aliases=("root",), doc="folder of the images. Default: the folder of each `.json`")
    )
    train_images: str | None = setting(Text(optional=True, doc="folder of the training images. Default: data.images"))
    val_images: str | None = setting(Text(optional=True, doc="folder of the validation images. Default: data.images"))
    test_images: str | None = setting(Text(optional=True, doc="folder of the test images. Default: data.images"))
    task: str = setting(_TASK)
    instances: bool = setting(_INSTANCES)
    keypoints: bool = setting(Flag(default=False, doc="whether boxes come with the keypoints of each object"))
    flip_pairs: tuple[tuple[str, str], ...] | None = setting(FLIP_PAIRS)

    def load(self) -> Dataset:
        """Read the annotation files."""
        files = [coco.read_coco(key, expanded(file)) for key, file in self.split_values().items()]
        if self.keypoints and not files[0].points:
            raise files[0].error("no category has keypoints. Set data.keypoints=false.")
        points = files[0].points if self.keypoints else ()
        wanted = WantedTargets(self.task, self.instances, points, pair_points(self.flip_pairs, points))
        splits, notices = zip(*(coco.images_of(file, self._folder(file), wanted) for file in files), strict=True)
        dataset = self._dataset(coco.same_categories(files, points), splits, wanted).noting(*notices)
        return replace(dataset, class_ids=files[0].ids["categories"])

    def of_folder(self, folder: Path) -> Source:
        """Return the source of an annotation file. Each split's own file has the images of that split.

        Raises:
            UserError: each split has its own images, and the file belongs to none of them.
        """
        found = super().of_folder(folder)
        if folder.is_dir():
            return found
        folders = {"train": self.train_images, "val": self.val_images, "test": self.test_images}
        files = {name: file for name in folders if (file := getattr(self, name))}
        split = next((name for name, file in files.items() if expanded(file).resolve() == folder.resolve()), "")
        if not split and any(folders.values()) and self.images is None:
            raise UserError(
                f"{folder}: the run's training and validation images have separate folders. Set data.images to the "
                "folder of the images in this file."
            )
        return replace(found, train_images=folders.get(split))  # type: ignore[call-arg]

    def _folder(self, file: coco.CocoFile) -> Path:
        folder = (self.train_images if file.key == "data.train" else self.val_images) or self.images
        return file.file.parent if folder is None else expanded(folder)


@source("yolo")
@dataclass(frozen=True, kw_only=True)
class Yolo(CheckedSource):
    """YOLO's `data.yaml` with `.txt` labels: boxes, optionally with instance masks, or class masks instead of boxes."""

    root: str = setting(Text(aliases=("path",), required=True, doc="`data.yaml`, or its folder"))
    task: str = setting(_TASK)
    instances: bool = setting(_INSTANCES)
    only: str = ""  # a folder of images that replaces the splits in `data.yaml`

    def load(self) -> Dataset:
        """Read the labels of all images."""
        root = expanded(self.root)
        file = root / "data.yaml" if root.is_dir() else root
        content, classes = yolo.read_yolo(file)
        content = {"train": self.only} if self.only else content
        scored = self.split_names[1]
        has_scored = content.get(scored) or (scored == "val" and content.get("valid"))
        names = ["train", scored] if has_scored and not self.cuts_val else ["train"]
        splits, notices = zip(*(yolo.images_of(file, content, classes, name) for name in names), strict=True)
        return make_objects(tuple(classes.values()), splits, WantedTargets(self.task, self.instances)).noting(*notices)

    def with_test(self) -> Self:
        """Return the source whose validation split is the test split in `data.yaml`, or is cut from train."""
        return replace(self, split_names=("train", "test"), val_fraction=None, folds=None, fold=None)

    def of_folder(self, folder: Path) -> Source:
        """Return the source of all images in a folder. The run's `data.yaml` states their classes."""
        return replace(of_single_split(self, folder), only=str(folder.resolve()))


@source("voc")
@dataclass(frozen=True, kw_only=True)
class Voc(CheckedSource):
    """Pascal VOC's folders: boxes from `Annotations/*.xml`, or masks from `SegmentationClass/*.png`."""

    root: str = setting(Text(aliases=("path",), required=True, doc="folder with Annotations, ImageSets and JPEGImages"))
    train: str | None = setting(
        Text(
            default="train",
            optional=True,
            doc="training list in `ImageSets/Main` or `ImageSets/Segmentation`. null: all annotations",
        )
    )
    val: str | None = setting(
        Text(
            default="val", optional=True, doc="validation list, in the same form. null if val_fraction or folds are set"
        )
    )
    test: str | None = setting(Text(optional=True, doc="test list, in the same form"))
    task: str = setting(Choice(default="detect", options=("detect", "segment"), doc="boxes, or class masks"))
    classes: str | None = setting(
        Text(
            optional=True,
            doc="file with one class name per line. Default: the classes found for boxes, VOC's own for masks",
        )
    )
    images: str = setting(Text(default="JPEGImages", doc="root's folder of images"))
    annotations: str = setting(Text(default="Annotations", doc="root's folder of `.xml` files"))

    def load(self) -> Dataset:
        """Read the lists, and the annotations or masks."""
        root = expanded(self.root)
        folder, extension = (self.annotations, ".xml") if self.task == "detect" else ("SegmentationClass", ".png")
        if self.task == "detect" and root.is_dir():
            self._require_folders(root)
        images = voc.files_by_name(root / self.images, voc.IMAGES)
        targets = voc.files_by_name(root / folder, (extension,))
        splits: list[list[tuple[Path, Path]]] = []  # each image with its mask or annotations
        for split in [self.train] if self.val is None or self.cuts_val else [self.train, self.val]:
            pairs = []
            for name in voc.list_names(self._list(split) if split else root / folder, targets, images):
                image = images.get(name, root / self.images / f"{name}.jpg")
                pairs.append((image, targets.get(name, root / folder / f"{name}{extension}")))
            splits.append(pairs)
        given = read_names(self.classes) if self.classes else ()
        if self.task == "segment":
            masks = [{image: _mask_or_fault(mask) for image, mask in pairs} for pairs in splits]
            return read_masks(masks, given or (BACKGROUND, *voc.CLASSES), MaskFile(Path()))
        read = [[voc.read_image(*pair, number) for number, pair in enumerate(pairs, 1)] for pairs in splits]
        return make_objects(set_labels(read, given), read, WantedTargets())

    def _require_folders(self, root: Path) -> None:
        for name in (self.images, self.annotations):
            if not (root / name).is_dir():
                raise UserError(
                    f"data.root={self.root}: no folder {name}. Set data.images and data.annotations to root's folders "
                    "of images and of .xml files. If root itself holds both, set data.images=. data.annotations=."
                )

    @property
    def given_val(self) -> str:
        """The validation list, if both lists exist."""
        both = all(self._list(split or "").exists() for split in (self.train, self.val))
        return f"data.val={self.val}" if both else ""

    def of_folder(self, folder: Path) -> Source:
        """Return the source of all annotations in a folder."""
        return replace(of_single_split(self, folder), root=str(folder), train=None, val=None, test=None)

    def _list(self, split: str) -> Path:
        kind = "Segmentation" if self.task == "segment" else "Main"
        return expanded(self.root) / "ImageSets" / kind / f"{split}.txt"


def _mask_or_fault(mask: Path) -> Path | str:
    return mask if mask.exists() else f"has no mask: {mask} does not exist"


@source("points")
@dataclass(frozen=True, kw_only=True)
class PointTable(_Annotations):
    """CSV with the same keypoints for each image: `path,x_NAME,y_NAME,...` in pixels. Empty cells are unlabeled."""

    task: ClassVar[str] = "keypoints"

    train: str = setting(
        Text(
            required=True,
            doc="training CSV. Columns `v_NAME` are optional: 0 for not labeled, 1 for hidden, 2 for visible",
        )
    )
    root: str | None = setting(_ROOT)
    flip_pairs: tuple[tuple[str, str], ...] | None = setting(FLIP_PAIRS)

    def load(self) -> Dataset:
        """Read the CSV files."""
        files = {key: expanded(file) for key, file in self.split_values().items()}
        root = expanded(self.root) if self.root else None
        names = point_names(*next(iter(files.items())))
        splits = [read_points(key, file, root, names) for key, file in files.items()]
        wanted = WantedTargets("keypoints", points=names, flip_pairs=pair_points(self.flip_pairs, names))
        return self._dataset(names, splits, wanted)


@source("boxes")
@dataclass(frozen=True, kw_only=True)
class BoxTable(_Annotations):
    """CSV with one object per line: `path,left,top,right,bottom,class` in pixels, or only the path without objects."""

    task: ClassVar[str] = "detect"

    train: str = setting(Text(required=True, doc="training CSV"))
    root: str | None = setting(_ROOT)
    classes: str | None = setting(_CLASSES)

    def load(self) -> Dataset:
        """Read the CSV files."""
        root = None if self.root is None else expanded(self.root)
        splits = [read_boxes(key, expanded(file), root) for key, file in self.split_values().items()]
        names = set_labels(splits, read_names(self.classes) if self.classes else ())
        return self._dataset(names, splits, WantedTargets())


@source("masks")
@dataclass(frozen=True, kw_only=True)
class MaskPairs(CheckedSource):
    """Images and their masks: `DIR/train/images/*` and `DIR/train/masks/*`, or `DIR/images/train/*` and so on."""

    task: ClassVar[str] = "segment"

    root: str = setting(
        Text(
            aliases=("path", "folder", "data_dir"),
            required=True,
            doc="folder with `train/images`, `train/masks`, `val/images` and `val/masks`, or `images/train` and so on",
        )
    )
    images: str = setting(Text(default="images", doc="name of the image folders"))
    masks: str = setting(
        Text(
            default="masks",
            doc="name of the mask folders, or the end of their names, as in `trainannot`. Masks have the same "
            "names as images",
        )
    )
    image_suffix: str = setting(
        Text(optional=True, default=None, doc="end of the image names that masks lack, such as `_leftImg8bit`")
    )
    mask_suffix: str = setting(
        Text(optional=True, default=None, doc="end of the mask names that images lack, such as `_labelIds`")
    )
    train_dir: str = setting(Text(default="train", doc="name of the training folders"))
    val_dir: str | None = setting(
        Text(default="val", optional=True, doc="name of the validation folders. null: no validation split")
    )
    test_dir: str | None = setting(Text(optional=True, doc="name of the test folders. Default: `test`"))
    classes: str | None = setting(
        Text(optional=True, doc="file with one class name per line, for labels 0, 1, ... Default: the labels found")
    )
    palette: str | None = setting(
        Text(
            optional=True,
            doc="file with a line `name,red,green,blue` or `name,value` per class. Pixels without a name are ignored",
        )
    )
    ignore_index: int = setting(Count(default=255, within=(0, 255), doc="value of ignored pixels"))

    def load(self) -> Dataset:
        """List the folders, and read the sizes and labels of masks that are not in the cache."""
        splits = ["" if self.cuts_val and not self._has(self.train_dir) else self.train_dir]
        if self.val_dir and not self.cuts_val and self._has(self.val_dir):
            splits.append(self.val_dir)
        if not self._has(splits[0]):
            raise self._no_images(splits[0])
        suffixes = (self.image_suffix or "", self.mask_suffix or "")
        pairs = [find_pairs(*self._folders(split), *suffixes) for split in splits]
        return read_masks(pairs, *self._names_and_labels())

    def of_folder(self, folder: Path) -> Source:
        """Return the source of a folder, or of its validation folders if it has them."""
        val = replace(of_single_split(self, folder), root=str(folder), train_dir=self.val_dir or "val", val_dir=None)
        return val if val._has(val.train_dir) else replace(val, train_dir="")

    @property
    def given_val(self) -> str:
        """The folder of validation images, if both splits have a folder."""
        if self.val_dir and self._has(self.train_dir) and self._has(self.val_dir):
            return str(self._folders(self.val_dir)[0])
        return ""

    @property
    def without_val(self) -> str:
        """The setting that ignores the validation folder."""
        return "data.val_dir=null"

    def _names_and_labels(self) -> tuple[tuple[str, ...], MaskFile]:
        """Return the class names, and a `MaskFile` without a file, which states the meaning of pixel values."""
        if self.palette is not None:
            if self.classes is not None or self.ignore_index != 255:
                raise UserError(
                    f"data.palette={self.palette} already names the classes and the ignored pixels. Remove "
                    "data.classes and data.ignore_index."
                )
            return read_palette(expanded(self.palette))
        # The label 255 is always ignored.
        labels = (IGNORE if label == self.ignore_index else label for label in range(IGNORE + 1))
        given = read_names(self.classes) if self.classes else ()
        return given, MaskFile(Path(), () if self.ignore_index == IGNORE else tuple(labels))

    def _has(self, split: str) -> bool:
        return self._folders(split)[0].is_dir()

    def _no_images(self, split: str) -> UserError:
        """Return an error about a split without a folder of images."""
        root = expanded(self.root).absolute()
        parent = replace(self, root=str(root.parent))
        if parent._has(self.train_dir):
            return UserError(
                f"data.root={self.root}: no folder {self.train_dir}. Did you mean data.root={parent.root}?"
            )
        wanted = f"{split}/{self.images} or {self.images}/{split}" if split else self.images
        found = list_some(sorted(f"{folder.name}/" for folder in root.iterdir() if folder.is_dir())) or "no folders"
        return UserError(
            f"data.root={self.root}: no folder {wanted}. {shown(root)} contains {found}. Set data.images, data.masks, "
            "data.train_dir and data.val_dir to the names of your folders."
        )

    def _folders(self, split: str) -> tuple[Path, Path]:
        root = expanded(self.root)
        if not root.is_dir():
            raise UserError(f"data.root={self.root}: the folder does not exist.{near_file(root, folder=True)}")
        return _folder(root, split, expanded(self.images)), _folder(root, split, expanded(self.masks))


def _folder(root: Path, split: str, name: Path) -> Path:
    """Return a split's folder of images or masks: `root/name/split`, `root/splitname` or `root/split/name`."""
    for folder in (root / name / split, root / f"{split}{name}"):
        if split and folder.is_dir():
            return folder
    return root / split / name
