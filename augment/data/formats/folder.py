"""The `folder` source: DIR/train/<class>/* and DIR/val/<class>/*, the layout of ImageNet and of many others."""

import os
from collections.abc import Sequence
from pathlib import Path

from augment.data.dataset import Dataset, Split
from augment.support.errors import UserError, nearest, suggest
from augment.support.files import near_file
from augment.support.text import list_some

# Endings of the formats that DALI decodes on CPU and GPU; `augment.data.check` validates the content.
EXTENSIONS = frozenset(
    {".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".jp2", ".pnm", ".ppm", ".pgm", ".pbm"}
)


def scan_folder(root: Path) -> Dataset:
    """List the images of a folder with a subfolder per split, which has a subfolder per class.

    The classes are the sorted names of the folders in root/train. Images are found at any depth below their class
    folder by `EXTENSIONS` in upper or lower case; hidden files and folders are skipped. Files and class folders may be
    symbolic links; linked folders further down are not entered. The order depends on the names only.

    Args:
        root: the folder that holds train and val; a leading ~ is expanded.

    Raises:
        UserError: the folder or one of its splits is missing or holds no images, a class of train is empty, or val
            has a class that train lacks.
    """
    try:
        return _scan(root.expanduser())
    except UserError as error:
        raise UserError(f"data.root={root}: {error}") from None


def scan_split(root: Path, classes: Sequence[str]) -> Split:
    """List the images of one split, root/<class>/* or root/val/<class>/*, whose classes are known.

    Args:
        root: the folder.
        classes: allowed names of class folders; an image's target is the index of its class here.

    Raises:
        UserError: the folder is missing or holds no images, or it has a class that is not among `classes`.
    """
    folder = root / "val" if (root / "val").is_dir() else root
    if not folder.is_dir():
        raise UserError(f"{root}: there is no such folder.")
    folders = _class_folders(folder)
    for name in folders:
        if name not in classes:
            raise UserError(f"{folder / name} is not one of the model's classes.{suggest(name, classes)}")
    files = [find_images(folders[name]) if name in folders else [] for name in classes]
    if not any(files):
        raise UserError(f"{folder} holds no images.")
    return _split(files)


def _scan(root: Path) -> Dataset:
    if not root.exists():
        raise UserError(f"there is no such folder.{near_file(root)}")
    if not root.is_dir():
        raise UserError("is a file; allowed is a folder with the folders train and val in it.")
    missing = [name for name in ("train", "val") if not (root / name).is_dir()]
    if missing:
        found = _folders(root)
        others = f"only {list_some(list(found))}" if found else "nor any other"
        raise UserError(f"there is no folder {' and no folder '.join(missing)} in it, {others}.{_advice(root, found)}")
    train_folders = _class_folders(root / "train")
    val_folders = _class_folders(root / "val")
    for name, folder in val_folders.items():
        if name not in train_folders:
            raise UserError(f"{folder} is a class that train lacks.{nearest(name, train_folders)}")

    train = [find_images(folder) for folder in train_folders.values()]
    for folder, files in zip(train_folders.values(), train, strict=True):
        if not files:
            raise UserError(f"the class folder {folder} holds no images{_other_files(folder)}.")
    val = [find_images(val_folders[name]) if name in val_folders else [] for name in train_folders]
    if not any(val):
        first = next(iter(val_folders.values()))
        raise UserError(f"the class folders in {root / 'val'} hold no images{_other_files(first)}.")
    return Dataset(tuple(train_folders), _split(train), _split(val))


def _split(files_of_class: list[list[Path]]) -> Split:
    return Split(
        files=tuple(file for files in files_of_class for file in files),
        targets=tuple(target for target, files in enumerate(files_of_class) for _ in files),
    )


def _advice(root: Path, found: dict[str, Path]) -> str:
    """Suggest a remedy for a root that lacks a split: a folder above or below it, or the right layout."""
    for folder in (*root.absolute().parents[:2], *found.values()):
        if (folder / "train").is_dir() and (folder / "val").is_dir():
            return f" Did you mean data.root={folder}?"
    if not found.keys() & {"train", "val"} and any(map(_has_images, found.values())):
        return " If these are the classes, move their images to train/<class>/ and val/<class>/."
    return " The layout is train/<class>/* and val/<class>/*."


def _class_folders(split: Path) -> dict[str, Path]:
    folders = _folders(split)
    if not folders:
        raise UserError(
            f"{split} holds no class folders{_other_files(split)}; the layout is {split.name}/<class>/<image>."
        )
    return folders


def _folders(parent: Path) -> dict[str, Path]:
    """Return the visible folders in `parent` by name, sorted."""
    try:
        with os.scandir(parent) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise _unreadable(error) from None
    return {name: parent / name for name in names}


def find_images(folder: Path) -> list[Path]:
    """Return the images at any depth below `folder`, sorted by path."""

    def refuse(error: OSError) -> None:
        raise _unreadable(error)

    found: list[str] = []
    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [os.path.join(parent, name) for name in names if _is_image(name)]
    return [Path(name) for name in sorted(found)]


def _has_images(folder: Path) -> bool:
    """Look for images in `folder` itself only: a wrong root may be a whole disk."""
    try:
        return any(map(_is_image, os.listdir(folder)))
    except OSError:
        return False


def _is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in EXTENSIONS


def _other_files(folder: Path) -> str:
    """Return the end of "holds no ...": the files in the folder, and the endings that are allowed."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    if not names:
        return ""
    allowed = "" if any(map(_is_image, names)) else f"; allowed: {', '.join(sorted(EXTENSIONS))}"
    return f", only {list_some(names)}{allowed}"


def _unreadable(error: OSError) -> UserError:
    return UserError(f"{error.filename} cannot be read: {error.strerror}.")
