"""The sources `folder` and `filelist`, whose images are single files."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from augment.data.dataset import Dataset, ImageRef
from augment.data.formats.filelist import SEPARATORS, Lines, read_image_list
from augment.data.formats.folder import EXTENSIONS, scan_flat, scan_folder
from augment.data.formats.text_files import describe_absent
from augment.data.sources.registry import CheckedSource, LabeledSource, source
from augment.data.targets.interpretation import make_list_dataset
from augment.params import Text, Texts, setting
from augment.support.errors import UserError
from augment.support.files import expanded, near_file
from augment.support.nested import grouped

_PATH_HINT = (
    " Paths are relative to data.root, or else to the list's folder. Quote paths with spaces. A name without an "
    "extension, such as an ID, must match exactly one image in its folder."
)

_MANY_CLASSES = 20  # above this, whole numbers are probably not classes, but numbers to predict


@source("folder")
@dataclass(frozen=True, kw_only=True)
class Folder(CheckedSource):
    """Image folders: `DIR/train/<class>/*` and `DIR/val/<class>/*`, or `DIR/<class>/*` with `val_fraction` or folds."""

    root: str = setting(
        Text(
            aliases=("dir", "path", "folder", "data_dir"),
            required=True,
            doc="folder with `train/<class>/*` and `val/<class>/*`, or with `<class>/*`",
        )
    )
    train_dir: str | None = setting(Text(optional=True, doc="folder of training images in root. Default: `train`"))
    val_dir: str | None = setting(Text(optional=True, doc="folder of validation images in root. Default: `val`"))
    test_dir: str | None = setting(Text(optional=True, doc="folder of test images in root. Default: `test`"))

    def load(self, *, with_foreign: bool = False) -> Dataset:
        """List the images. If `with_foreign` is true, include images in formats that DALI does not decode."""
        root = expanded(self.root)
        test = root / str(self.val_dir)
        if self.split_names[1] == "test" and not self.cuts_val and root.is_dir() and not test.is_dir():
            raise UserError(
                f"data.root={self.root} has no folder {self.val_dir}.{near_file(test, folder=True)} Set "
                "data.test_dir to the name of the folder with the test images."
            )
        return scan_folder(
            Path(self.root),
            train_dir=self.train_dir,
            val_dir=self.val_dir,
            cuts_val=self.cuts_val,
            with_foreign=with_foreign,
        )

    @property
    def given_val(self) -> str:
        """The folder of validation images, if both splits have a folder."""
        train, val = (expanded(self.root) / name for name in (self.train_dir or "train", self.val_dir or "val"))
        return str(val) if train.is_dir() and val.is_dir() else ""

    @property
    def without_val(self) -> str:
        """The settings that use the folder of training images as the root."""
        reset = " data.train_dir=null" if self.train_dir else ""
        return f"data.root={expanded(self.root) / (self.train_dir or 'train')}{reset}"

    def load_train(self) -> Dataset:
        """List the training images, and validation images if there are any. Classes are optional."""
        root = expanded(self.root)
        if not self.cuts_val and (flat := scan_flat(root)):
            return flat
        if self.val_dir or (root / "val").is_dir():
            return self.load()
        return replace(self, val_fraction=0.5).load()  # this lists the training split only


@source("filelist")
@dataclass(frozen=True, kw_only=True)
class FileList(CheckedSource, LabeledSource):
    """Lists of images and their targets: lines `path label [label ...]`, or CSV with a header."""

    root: str | None = setting(
        Text(
            optional=True,
            aliases=("images", "folder", "image_dir"),
            doc="folder that paths are relative to. Default: each list's own folder",
        )
    )
    image: str | None = setting(Text(optional=True, doc="CSV column of the path. Default: `path`, or the first column"))
    label: str | None = setting(
        Text(
            optional=True,
            doc="CSV column of the labels, several per cell separated by `;`. Default: `label`, or the second column",
        )
    )
    targets: tuple[str, ...] = setting(
        Texts(default=(), doc="CSV columns of numbers to predict, or of 0 and 1 with data.multilabel=true")
    )

    def load(self) -> Dataset:
        """Read both lists. A missing image is a problem of the dataset, unless `skip_bad` is true."""
        options = self.target_options()
        lists = [
            read_image_list(key, expanded(file), image=self.image, label=self.label, targets=self.targets)
            for key, file in self.split_values().items()
        ]
        files = [_files(lines, self.root) for lines in lists]
        problems: tuple[str, ...] = ()
        if not self.skip_bad:
            listed = ((lines.key, found, lines.describe) for lines, found in zip(lists, files, strict=True))
            hint = next((lines.hint for lines in lists if lines.hint), "")
            problems = describe_absent(listed, _PATH_HINT + hint)
        try:
            dataset = replace(make_list_dataset(lists, files, options), problems=problems)
        except UserError as error:
            # If a path with a space has no quotes, its second half becomes a label. Report the missing path, which is
            # the cause.
            raise UserError(problems[0] if problems else str(error)) from None
        names = dataset.classes
        if self.task is not None or len(names) <= _MANY_CLASSES or not all(map(str.isdecimal, names)):
            return dataset
        return dataset.noting(
            f"data: the whole numbers are read as {len(names)} classes. To predict numbers, set data.task=regress"
        )

    def column_of_train(self, name: str) -> Mapping[ImageRef, Hashable] | None:
        """Return a column of a CSV list."""
        file = expanded(self.train)
        if file.suffix.lower() not in SEPARATORS:
            return None
        lines = read_image_list("data.train", file, image=self.image, label=name, targets=(), label_key="data.group")
        groups: dict[ImageRef, Hashable] = {}
        for file, line in zip(_files(lines, self.root), lines.lines, strict=True):
            if groups.setdefault(file, line.words) != line.words:
                raise lines.error(line, f"{line.path} is in another group above. Give each image one group.")
        return groups


def _files(lines: Lines, root: str | None) -> tuple[Path, ...]:
    """Return the files that a list names. A name without an extension gets one if exactly one image matches."""
    folder = lines.file.parent if root is None else expanded(root)
    files = [folder / line.path for line in lines.lines]
    bare = [file for file in files if file.suffix.lower() not in EXTENSIONS and not file.exists()]
    parents = {file.parent for file in bare if file.parent.is_dir()}
    images = (file for parent in parents for file in parent.iterdir() if file.suffix.lower() in EXTENSIONS)
    by_name = grouped((file.with_suffix(""), file) for file in images)
    unique = {name: matches[0] for name, matches in by_name.items() if len(matches) == 1}
    return tuple(unique.get(file, file) for file in files)
