"""Choose the images for a tool, from its flag `--photos` or from the configured data."""

from collections.abc import Callable, Sequence
from pathlib import Path

from augment.data.check import check_files
from augment.data.dataset import ImageRef
from augment.data.formats.folder import find_images
from augment.data.images import name_of
from augment.support.errors import UserError
from augment.support.files import near_file


def find_photos(
    folder: Path | None, default: Callable[[], Sequence[ImageRef]], most: int, *, check: bool = True
) -> list[ImageRef]:
    """Choose images, evenly spread, from a folder and its subfolders or from `default()`.

    Args:
        folder: the folder of `--photos`, or None.
        default: returns the images to choose from if there is no folder.
        most: the maximum number of images.
        check: whether to check that images from the folder can be decoded.
    """
    if folder is not None and not folder.is_dir():
        raise UserError(f"--photos {folder}: this folder does not exist.{near_file(folder, folder=True)}")
    found: Sequence[ImageRef] = default() if folder is None else [*find_images(folder)]
    if folder is not None and not found:
        raise UserError(f"--photos {folder}: this folder contains no images. Pass a folder with images.")
    count = min(most, len(found))
    chosen = [found[(2 * index + 1) * len(found) // (2 * count)] for index in range(count)]
    if folder is not None and check and (faults := check_files(chosen)):
        file, fault = next(iter(faults.items()))
        raise UserError(f"--photos {folder}: {name_of(file)} {fault}")
    return chosen
