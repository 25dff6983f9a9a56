"""The `folder` source: DIR/train/<class>/* and DIR/val/<class>/*, the layout of ImageNet and of many others."""

import os
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

from augment.dataset import Dataset, Split
from augment.errors import UserError, suggest

# What DALI decodes on the CPU and on the GPU. Names only: what a file really holds is the matter of augment.check.
EXTENSIONS = frozenset(
    {".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".jp2", ".pnm", ".ppm", ".pgm", ".pbm"}
)


def scan_folder(root: Path) -> Dataset:
    """List the pictures of a folder that has one sub folder a split and in each of these one a class.

    The classes are the sorted names of the folders in root/train. Pictures lie at any depth below their class folder
    and are recognized by `EXTENSIONS` in upper or lower case; hidden files and folders are passed over. Files and class
    folders may be symbolic links; linked folders further down are not entered. The order depends on the names only.

    Args:
        root: the folder that holds train and val; a leading ~ is expanded.

    Raises:
        UserError: the folder or one of its splits is missing or holds no pictures, a class of train is empty, or val
            has a class that train lacks.
    """
    try:
        return _scan(root.expanduser())
    except UserError as error:
        raise UserError(f"data.root={root}: {error}") from None


def scan_split(root: Path, classes: Sequence[str]) -> Split:
    """List the pictures of one split, root/<class>/* or root/val/<class>/*, whose classes are known.

    Args:
        root: the folder.
        classes: allowed names of class folders; a picture's target is its class's place here.

    Raises:
        UserError: the folder is missing or holds no pictures, or it has a class that is not among `classes`.
    """
    folder = root / "val" if (root / "val").is_dir() else root
    if not folder.is_dir():
        raise UserError(f"{root}: there is no such folder.")
    folders = _class_folders(folder)
    for name in folders:
        if name not in classes:
            raise UserError(f"{folder / name} is not one of the model's classes.{suggest(name, classes)}")
    files = [find_pictures(folders[name]) if name in folders else [] for name in classes]
    if not any(files):
        raise UserError(f"{folder} holds no pictures.")
    return _split(files)


def _scan(root: Path) -> Dataset:
    _require_splits(root)
    train_folders = _class_folders(root / "train")
    val_folders = _class_folders(root / "val")
    for name, folder in val_folders.items():
        if name not in train_folders:
            raise UserError(f"{folder} is a class that train lacks.{_did_you_mean(_nearest(name, train_folders))}")

    train = [find_pictures(folder) for folder in train_folders.values()]
    for folder, files in zip(train_folders.values(), train, strict=True):
        if not files:
            raise UserError(f"the class folder {folder} holds no pictures{_other_files(folder)}.")
    val = [find_pictures(val_folders[name]) if name in val_folders else [] for name in train_folders]
    if not any(val):
        first = next(iter(val_folders.values()))
        raise UserError(f"the class folders in {root / 'val'} hold no pictures{_other_files(first)}.")
    return Dataset(tuple(train_folders), _split(train), _split(val))


def _split(files_of_class: list[list[Path]]) -> Split:
    return Split(
        files=tuple(file for files in files_of_class for file in files),
        targets=tuple(target for target, files in enumerate(files_of_class) for _ in files),
    )


def _require_splits(root: Path) -> None:
    """Raise unless root is a folder with train and val in it."""
    if not root.exists():
        parent = root.absolute().parent
        if not parent.is_dir():
            raise UserError(f"there is no such folder, and no {parent} either.")
        near = _nearest(root.name, _folders(parent))
        raise UserError(f"there is no such folder in {parent}.{_did_you_mean(near and str(root.parent / near))}")
    if not root.is_dir():
        raise UserError("is a file; allowed is a folder with the folders train and val in it.")

    missing = [name for name in ("train", "val") if not (root / name).is_dir()]
    if missing:
        found = _folders(root)
        others = f"only {_listed(found)}" if found else "nor any other"
        raise UserError(f"there is no folder {' and no folder '.join(missing)} in it, {others}.{_advice(root, found)}")


def _advice(root: Path, found: dict[str, Path]) -> str:
    """Say what is probably meant by a root that lacks a split: a folder above or below it, or another layout."""
    for folder in (*root.absolute().parents[:2], *found.values()):
        if (folder / "train").is_dir() and (folder / "val").is_dir():
            return _did_you_mean(f"data.root={folder}")
    if not found.keys() & {"train", "val"} and any(map(_has_pictures, found.values())):
        return " If these are the classes, move their pictures to train/<class>/ and val/<class>/."
    return " The layout is train/<class>/* and val/<class>/*."


def _class_folders(split: Path) -> dict[str, Path]:
    folders = _folders(split)
    if not folders:
        raise UserError(
            f"{split} holds no class folders{_other_files(split)}; the layout is {split.name}/<class>/<picture>."
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


def find_pictures(folder: Path) -> list[Path]:
    """Return the pictures at any depth below `folder`, sorted by path."""

    def refuse(error: OSError) -> None:
        raise _unreadable(error)

    found: list[str] = []
    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [os.path.join(parent, name) for name in names if _is_picture(name)]
    return [Path(name) for name in sorted(found)]


def _has_pictures(folder: Path) -> bool:
    """Look for pictures in `folder` itself only: a wrong root may be a whole disk."""
    try:
        return any(map(_is_picture, os.listdir(folder)))
    except OSError:
        return False


def _is_picture(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in EXTENSIONS


def _other_files(folder: Path) -> str:
    """Return the tail of "holds no ...": which files lie there instead, and what would be read, if there are any."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    if not names:
        return ""
    allowed = "" if any(map(_is_picture, names)) else f"; allowed: {', '.join(sorted(EXTENSIONS))}"
    return f", only {_listed(names)}{allowed}"


def _unreadable(error: OSError) -> UserError:
    return UserError(f"{error.filename} cannot be read: {error.strerror}.")


def _listed(names: Iterable[str]) -> str:
    """Return up to five names and the number of the others."""
    shown = list(names)
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")


def _nearest(name: str, allowed: Iterable[str]) -> str:
    """Return the nearest allowed name, or "" if none is near; unlike `suggest`, for there may be thousands."""
    return next(iter(get_close_matches(name, list(allowed), n=1, cutoff=0.5)), "")


def _did_you_mean(name: str) -> str:
    return f" Did you mean {name}?" if name else ""
