"""The sources whose images are files of their own."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path

from augment.data.dataset import Dataset, ImageRef
from augment.data.formats.filelist import SEPARATORS, Lines, read_list
from augment.data.formats.folder import EXTENSIONS, scan_flat, scan_folder
from augment.data.formats.text_files import describe_absent
from augment.data.sources.registry import CheckedSource, LabeledSource, source
from augment.data.targets.interpretation import make_list_dataset
from augment.params import Text, Texts, setting
from augment.support.errors import UserError
from augment.support.files import expanded

_PATHS = " Paths are relative to data.root, or the list's folder; blanks in them need quotes, and / separates folders."


@source("folder")
@dataclass(frozen=True, kw_only=True)
class Folder(CheckedSource):
    """Your own images: DIR/train/<class>/* and DIR/val/<class>/*, or DIR/<class>/* with val_fraction or folds."""

    root: str = setting(
        Text(
            aliases=("dir", "path", "folder", "data_dir"),
            required=True,
            doc="folder with train/<class>/* and val/<class>/*, or with <class>/*",
        )
    )
    train_dir: str | None = setting(Text(optional=True, doc="folder in root, such as training_set; null: train"))
    val_dir: str | None = setting(Text(optional=True, doc="folder of the validation images, likewise; null: val"))

    def load(self, *, with_foreign: bool = False) -> Dataset:
        """List the folder, and images of other formats if asked."""
        return scan_folder(
            Path(self.root),
            train_dir=self.train_dir,
            val_dir=self.val_dir,
            cuts_val=self.cuts_val,
            with_foreign=with_foreign,
        )

    @property
    def given_val(self) -> str:
        """The folder of val beside that of train."""
        train, val = (expanded(self.root) / name for name in (self.train_dir or "train", self.val_dir or "val"))
        return str(val) if train.is_dir() and val.is_dir() else ""

    @property
    def without_val(self) -> str:
        """The root that has no folder of val."""
        own = " data.train_dir=null" if self.train_dir else ""
        return f"data.root={expanded(self.root) / (self.train_dir or 'train')}{own}"

    def load_train(self) -> Dataset:
        """Load the folder, and val if there is one; images need no classes, as self-supervised training has none."""
        root = expanded(self.root)
        if not self.cuts_val and (flat := scan_flat(root)):
            return flat
        has_val = self.val_dir or (root / "val").is_dir()
        return self.load() if has_val else replace(self, val_fraction=0.5).load()  # of which only train is listed


@source("filelist")
@dataclass(frozen=True, kw_only=True)
class FileList(CheckedSource, LabeledSource):
    """Lists of your own images: lines `path label [label ...]`, or CSV with a header; classes, labels or numbers."""

    root: str | None = setting(
        Text(optional=True, doc="folder that paths are relative to; null: the folder of each list")
    )
    image: str | None = setting(Text(optional=True, doc="CSV: column of the path; null: path, or the first one"))
    label: str | None = setting(
        Text(optional=True, doc="CSV: column of the labels, separated by ; in a cell; null: label, or the second one")
    )
    targets: tuple[str, ...] = setting(
        Texts(default=(), doc="CSV: columns of numbers to predict, or of 0 and 1 with data.multilabel=true")
    )

    def load(self) -> Dataset:
        """Read both lists; that an image is missing is a problem, unless bad ones are left out."""
        options = self.target_options()
        lists = [
            read_list(key, expanded(file), image=self.image, label=self.label, targets=self.targets)
            for key, file in self.given().items()
        ]
        files = [_files(lines, self.root) for lines in lists]
        known = [(of.key, found, of.describe) for of, found in zip(lists, files, strict=True)]
        hint = "".join(_hint(lines, found, self.root) for lines, found in zip(lists, files, strict=True))
        problems = () if self.skip_bad else tuple(f"{problem}{hint or _PATHS}" for problem in describe_absent(known))
        try:
            return replace(make_list_dataset(lists, files, options), problems=problems)
        except UserError as error:
            # A wrong path, such as one cut at a blank, leaves wrong words for labels, too.
            raise UserError(problems[0] if problems else str(error)) from None

    def column_of_train(self, name: str) -> Mapping[ImageRef, Hashable] | None:
        """Return a column of a CSV list."""
        file = expanded(self.train)
        if file.suffix.lower() not in SEPARATORS:
            return None
        lines = read_list("data.train", file, image=self.image, label=name, targets=(), label_key="data.group")
        groups: dict[ImageRef, Hashable] = {}
        for file, line in zip(_files(lines, self.root), lines.lines, strict=True):
            if groups.setdefault(file, line.words) != line.words:
                raise lines.error(line, f"{line.path} is in another group above. Allowed: one group for each image.")
        return groups


def _hint(lines: Lines, files: Sequence[Path], root: str | None) -> str:
    """Return what helps if the first file that is not there has a name without an ending, such as an id."""
    folder = lines.file.parent if root is None else expanded(root)
    bare = next((file for file in files if not file.exists()), None)
    if bare is None or bare.suffix.lower() in EXTENSIONS or not folder.is_dir():
        return ""
    name = escape(bare.relative_to(folder).as_posix()) if bare.is_relative_to(folder) else escape(bare.name)
    patterns = (f"{name}.*", f"*/{name}.*", f"*/*/{name}.*")
    found = [file for pattern in patterns for file in folder.glob(pattern) if file.suffix.lower() in EXTENSIONS][:2]
    rule = " A name without an ending, such as an id, is completed if one image in its folder is called so."
    if len(found) == 2 and found[0].parent == found[1].parent:
        return f"{rule} {found[0].name} and {found[1].name} are: write the endings."
    if not found:
        return rule
    above = Path(str(found[0].with_suffix("")).removesuffix(bare.relative_to(folder).as_posix()))
    return f"{rule} There is {found[0]}: data.root={above}."


def _files(lines: Lines, root: str | None) -> tuple[Path, ...]:
    """Return the files that a list names; names without an ending, such as ids, are completed if one file has it."""
    folder = lines.file.parent if root is None else expanded(root)
    files = [folder / line.path for line in lines.lines]
    bare = [file for file in files if file.suffix.lower() not in EXTENSIONS and not file.exists()]
    named: dict[Path, list[Path]] = {}
    for parent in {file.parent for file in bare if file.parent.is_dir()}:
        for file in parent.iterdir():
            if file.suffix.lower() in EXTENSIONS:
                named.setdefault(file.with_suffix(""), []).append(file)
    return tuple(found[0] if len(found := named.get(file, [])) == 1 else file for file in files)
