"""The source of images with a mask file each."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from augment.data.dataset import Dataset
from augment.data.formats.masks import Pixels, find_pairs, ignoring, read_masks, read_palette
from augment.data.sources.registry import CheckedSource, source
from augment.data.targets.names import read_names
from augment.params import Count, Text, setting
from augment.support.errors import UserError
from augment.support.files import expanded, near_file


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
    masks: str = setting(Text(default="masks", doc="name of the folders of masks, which are named as their images are"))
    image_suffix: str = setting(Text(optional=True, default=None, doc="end of images' names, such as _leftImg8bit"))
    mask_suffix: str = setting(Text(optional=True, default=None, doc="end of masks' names instead, such as _labelIds"))
    train_dir: str = setting(Text(default="train", doc="folder of train"))
    val_dir: str = setting(Text(default="val", doc="folder of val"))
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
        if self.only_val:
            splits = [self.val_dir]
        else:
            splits = ["" if self.cuts_val and not self._has(self.train_dir) else self.train_dir]
            splits += [self.val_dir] if not self.cuts_val and self._has(self.val_dir) else []
        suffixes = (self.image_suffix or "", self.mask_suffix or "")
        return read_masks([find_pairs(*self._folders(split), *suffixes) for split in splits], self._pixels())

    @property
    def lacks_train(self) -> bool:
        """Whether the only folder is that of val."""
        return self._has(self.val_dir) and not self._has(self.train_dir)

    @property
    def given_val(self) -> tuple[str, str] | None:
        """The folder of val beside that of train."""
        if not (self._has(self.train_dir) and self._has(self.val_dir)):
            return None
        alone = f"data.images={self.images}/{self.train_dir} data.masks={self.masks}/{self.train_dir}"
        within = expanded(self.root) / self.train_dir
        return str(self._folders(self.val_dir)[0]), f"data.root={within}" if within.is_dir() else alone

    def _pixels(self) -> Pixels:
        if self.palette is not None:
            if self.classes is not None or self.ignore_index != 255:
                raise UserError(
                    f"data.palette={self.palette}: says all. Allowed: without data.classes and ignore_index."
                )
            return read_palette(expanded(self.palette))
        return Pixels(read_names(self.classes) if self.classes else (), ignoring(self.ignore_index))

    def _has(self, split: str) -> bool:
        return self._folders(split)[0].is_dir()

    def _folders(self, split: str) -> tuple[Path, Path]:
        """Return the folders of the images and of the masks of a split."""
        root = expanded(self.root)
        if not root.is_dir():
            raise UserError(f"data.root={self.root}: there is no such folder.{near_file(root, folder=True)}")
        return _folder(root, split, expanded(self.images)), _folder(root, split, expanded(self.masks))


def _folder(root: Path, split: str, name: Path) -> Path:
    """Return the folder of images or masks of a split: root/split/name, or root/name/split if that is there."""
    other = root / name / split
    return other if other.is_dir() else root / split / name
