"""List image folders: `DIR/train/<class>/*` and `DIR/val/<class>/*`, or `DIR/<class>/*`."""

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path

import numpy as np

from augment.data.dataset import NO_VAL, Dataset, Split
from augment.data.formats.raster_files import RASTER_EXTENSIONS
from augment.data.image_faults import CONVERT
from augment.data.images import Paths
from augment.support.errors import UserError, closest, nearest_each, suggest
from augment.support.files import expanded, near_file, shown
from augment.support.formatting import list_some, plural

# Extensions of images. `augment.data.check` validates the content.
EXTENSIONS = RASTER_EXTENSIONS | frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".tif", ".tiff", ".webp", ".jp2"}
    | {".pnm", ".ppm", ".pgm", ".pbm"}
)

# Extensions of foreign formats, which DALI does not decode. Such images are left out, with a notice.
FOREIGN_EXTENSIONS = frozenset(
    {".heic", ".heif", ".hif", ".avif", ".gif", ".psd", ".jxl", ".tga", ".exr", ".hdr", ".ico", ".svg"}
    | {".dds", ".pcx", ".j2k", ".jpf", ".jpx", ".dib", ".xcf", ".eps"}
    | {".raw", ".dng", ".cr2", ".cr3", ".nef", ".nrw", ".arw", ".orf", ".rw2", ".raf", ".pef", ".srw"}  # raw formats
)

# Names of folders that are splits rather than classes.
_SPLIT = re.compile(r"(train(ing)?|val|valid|validation|dev|eval|test(ing)?)([_ -]?(set|data|images))?", re.IGNORECASE)

# The remedy for a missing validation split.
CUT_VAL = "data.val_fraction=0.2, which validates on a fifth of the images, or data.folds=5 data.fold=0"


def describe_nested(dataset: Dataset) -> str:
    """Return the end of a message about a single class: another root, if the class has several folders."""
    folders = {os.path.dirname(os.path.abspath(file)) for file in dataset.train.files if isinstance(file, Path)}
    root = shown(Path(os.path.commonpath(folders))) if len(folders) > 1 else Path()
    if dataset.classes[0] not in root.parts:
        return ""
    return f". If the folders in {root} are the classes, set data.root={root}"


def scan_folder(
    root: Path,
    *,
    train_dir: str | None = None,
    val_dir: str | None = None,
    cuts_val: bool = False,
    with_foreign: bool = False,
) -> Dataset:
    """List the images of a folder that has a subfolder per split. Each split has a subfolder per class.

    The classes are the sorted names of the folders in root/train. Images are found by `EXTENSIONS`, in upper or lower
    case, at any depth below their class folder. Hidden files and folders are skipped. Files and class folders may be
    symbolic links, but linked folders further down are not entered. The order depends only on the names. Files with
    `RASTER_EXTENSIONS` count only in folders without other images.

    `Dataset.problems` lists a missing validation split, empty classes, and classes without training images.

    Args:
        root: the folder.
        train_dir: the name of its folder of training images. Default: "train".
        val_dir: the name of its folder of validation images. Default: "val".
        cuts_val: whether validation images are cut from train later. The root may then hold the classes itself.
        with_foreign: whether to list images in foreign formats.

    Raises:
        UserError: the folder is missing, or has no class folders.
    """
    problems: list[str] = []
    try:
        train, val = _split_folders(expanded(root), train_dir, val_dir, cuts_val=cuts_val, problems=problems)
        dataset = _scan(train, val, problems, with_foreign=with_foreign)
    except UserError as error:
        raise UserError(f"data.root={root}: {problems[0] if problems else error}") from None
    return replace(dataset, problems=tuple(f"data.root={root}: {problem}" for problem in problems))


def scan_flat(root: Path) -> Dataset | None:
    """List a folder that holds images and no folders as a single class. Return None for other folders."""
    if not root.is_dir() or _folders(root) or not _has_images(root):
        return None
    return Dataset((root.absolute().name,), _split([_find(root)]), NO_VAL)


def scan_split(root: Path, classes: Sequence[str]) -> Split:
    """List the images of one split with known classes, in `root/<class>/*` or `root/val/<class>/*`.

    Raises:
        UserError: the folder is missing or holds no images, or has a class that is not among `classes`.
    """
    folder = root / "val" if (root / "val").is_dir() else root
    if not folder.is_dir():
        raise UserError(f"{root}: the folder does not exist.{near_file(root, folder=True)}")
    folders = _class_folders(folder)
    for name in folders:
        if name not in classes:
            remedy = f" Did you mean {folder / name}?" if name == "test" else suggest(name, classes)
            raise UserError(f"{folder / name} is not one of the model's classes.{remedy}")
    found = _find_classes(folders, classes)
    if not any(files for files, _ in found):
        raise UserError(f"{folder} holds no images.")
    return _split(found)


def _split_folders(
    root: Path, train_dir: str | None, val_dir: str | None, *, cuts_val: bool, problems: list[str]
) -> tuple[Path, Path | None]:
    """Return the folders of both splits. The folder of val is None if val is missing.

    A missing split is added to `problems`.
    """
    if not root.exists():
        near = near_file(root, folder=True)
        raise UserError(f"the folder does not exist.{near} Set data.root to the folder of the images.")
    if not root.is_dir():
        raise UserError(
            "this is a file. Unpack it if it is an archive. Then set data.root to a folder that holds train and val."
        )
    names = [train_dir or "train", val_dir or "val"]
    train, val = (root / name for name in names)
    missing = [name for name in names[: 1 if cuts_val else 2] if not (root / name).is_dir()]
    if not missing:
        return train, None if cuts_val else val
    found = _folders(root)
    # Whether the folders are classes, rather than splits with unusual names.
    unsplit = found and not (train_dir or train.is_dir() or val.is_dir() or any(map(_SPLIT.fullmatch, found)))
    if cuts_val and unsplit:
        return root, None
    others = f"only {list_some(list(found))}"
    if not found:
        others = "only images" if _has_images(root) else "nor any other"
    settings = dict(zip(("data.train_dir", "data.val_dir"), names, strict=True))
    advice = _advice(root, found, {key: name for key, name in settings.items() if name in missing and not unsplit})
    problems.append(f"it has no folder {' and no folder '.join(missing)}, {others}.{advice}")
    if train.is_dir() and not val_dir:
        return train, None
    if unsplit and any(map(_has_images, found.values())):
        return root, None
    raise UserError(problems[0])


def _scan(train_folder: Path, val_folder: Path | None, problems: list[str], *, with_foreign: bool) -> Dataset:
    train_folders = _class_folders(train_folder)
    train = _find_classes(train_folders, train_folders, with_foreign=with_foreign)
    for folder, (files, _) in zip(train_folders.values(), train, strict=True):
        if not files:
            others = _other_files(folder)
            problems.append(f"the class folder {folder} holds no images{others}. Add images, or remove the folder.")
    if val_folder is None:
        return Dataset(tuple(train_folders), _split(train), NO_VAL)
    val_folders = _class_folders(val_folder)
    if extra := [name for name in val_folders if name not in train_folders]:
        what = f"{list_some(extra)} in {val_folder} {plural(len(extra), 'is a class', 'are classes')}"
        remedy = f"Add training images to {train_folder}, or rename or remove the {plural(len(extra), 'folder')}"
        problems.insert(0, f"{what} without training images.{nearest_each(extra[:3], train_folders)} {remedy}.")
    val = _find_classes(val_folders, train_folders, with_foreign=with_foreign)
    if not any(files for files, _ in val):
        others = _other_files(next(iter(val_folders.values())))
        problems.append(f"the class folders in {val_folder} hold no images{others}.")
    return Dataset(tuple(train_folders), _split(train), _split(val))


def _split(found: list[tuple[Paths, list[Path]]]) -> Split:
    return Split(
        files=Paths(np.concatenate([files.names for files, _ in found])),
        targets=tuple(chain.from_iterable(repeat(target, len(files)) for target, (files, _) in enumerate(found))),
        foreign=tuple(file for _, foreign in found for file in foreign),
    )


def _advice(root: Path, found: dict[str, Path], missing: dict[str, str]) -> str:
    """Suggest a remedy for a root that lacks a split. `missing` maps settings to the folders that they name."""
    for folder in (*root.absolute().parents[:2], *found.values()):
        if (folder / "train").is_dir() and (folder / "val").is_dir():
            return f" Did you mean data.root={folder}?"
    folders = {name.lower(): name for name in found}
    near = {key: closest(name.lower(), folders, 0.4) for key, name in missing.items()}
    named = " ".join(f"{key}={folders[name]}" for key, name in near.items() if name)
    hint = f" Did you mean {named}?" if named else ""
    if near and all(near.values()):
        return hint
    return hint + (
        " Use train/<class>/* and val/<class>/*, or folders named by data.train_dir and data.val_dir. For <class>/*, "
        f"set {CUT_VAL}. For a list of images and their classes, use data=filelist."
    )


def _class_folders(split: Path) -> dict[str, Path]:
    folders = _folders(split)
    if not folders:
        raise UserError(f"{split} holds no class folders, such as {split.name}/<class>/<image>{_other_files(split)}.")
    return folders


def _folders(parent: Path) -> dict[str, Path]:
    """Return the folders in `parent` by their sorted names, except for hidden ones."""
    with os.scandir(parent) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    return {name: parent / name for name in names}


def find_images(folder: Path, *, with_foreign: bool = False) -> list[Path]:
    """Return the images at any depth below `folder`, sorted by path, optionally also images in foreign formats."""
    return list(_find(folder, with_foreign=with_foreign)[0])


def _find_classes(
    folders: Mapping[str, Path], classes: Iterable[str], *, with_foreign: bool = False
) -> list[tuple[Paths, list[Path]]]:
    """Return what `_find` returns for each class. A class without a folder has no images."""
    return [_find(folders[name], with_foreign=with_foreign) if name in folders else (Paths(()), []) for name in classes]


def _find(folder: Path, *, with_foreign: bool = False) -> tuple[Paths, list[Path]]:
    """Return the images at any depth below `folder`, sorted by path, and the files that are left out.

    These are images in foreign formats, and arrays next to encoded images.
    """

    def fail(error: OSError) -> None:
        raise error

    found: list[str] = []
    foreign: list[Path] = []
    arrays: list[Path] = []
    for parent, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        begin = str(Path(parent, "_"))[:-1]
        here = {name[name.rfind(".") :].lower() for name in names}
        if not here <= EXTENSIONS:
            foreign += [Path(parent, name) for name in names if _is_image(name, FOREIGN_EXTENSIONS)]
            names = list(filter(_is_image, names))
        if here & RASTER_EXTENSIONS and here & EXTENSIONS - RASTER_EXTENSIONS:
            # Arrays next to encoded images are other data, such as features.
            arrays += [Path(parent, name) for name in names if _is_image(name, RASTER_EXTENSIONS)]
            names = [name for name in names if not _is_image(name, RASTER_EXTENSIONS)]
        found += [begin + name for name in names if name[0] != "."]
    found = sorted([*found, *map(str, foreign)] if with_foreign else found)
    # Encoding all names at once is twice as fast as one by one.
    encoded = os.fsencode("\0".join(found)).split(b"\0") if found else []
    return Paths(np.array(encoded, np.bytes_)), sorted([*foreign, *arrays], key=str)


def _has_images(folder: Path) -> bool:
    """Whether `folder` itself holds images. Subfolders are not searched, because a wrong root may be a whole disk."""
    try:
        return any(map(_is_image, os.listdir(folder)))
    except OSError:
        return False


def _is_image(name: str, extensions: Collection[str] = EXTENSIONS) -> bool:
    return name[0] != "." and name[name.rfind(".") :].lower() in extensions


def _other_files(folder: Path) -> str:
    """Return the end of a message that begins with "holds no": the files in the folder, and the allowed extensions."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    if not names:
        return ""
    allowed = f". Allowed extensions: {', '.join(sorted(EXTENSIONS))}. For others: {CONVERT}"
    return f", only {list_some(names)}{'' if any(map(_is_image, names)) else allowed}"
