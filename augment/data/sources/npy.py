"""The source `numpy`: decoded images of one size in .npy files, mapped into memory."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.data.dataset import Dataset
from augment.data.formats.raster_files import is_channels_first
from augment.data.formats.records import RecordFile
from augment.data.images import as_ppm
from augment.data.sources.registry import LabeledSource, Source, source
from augment.data.targets.class_names import LabeledSplit, Labels
from augment.data.targets.interpretation import make_dataset
from augment.params import Text, setting
from augment.params.param_types import MAX_CHANNELS
from augment.params.pixel_format import DTYPES
from augment.support.errors import UserError, first_line
from augment.support.files import expanded, near_file
from augment.support.untrusted_files import damage_errors


@source("numpy")
@dataclass(frozen=True, kw_only=True)
class Arrays(LabeledSource):
    """Decoded images of one size in `.npy` files, (N, height, width, channels), and their targets, (N,) or (N, K)."""

    train: str = setting(Text(required=True, doc="`.npy` file of the training images"))
    train_targets: str = setting(
        Text(required=True, doc="`.npy` file of the training targets: classes, or rows of numbers or of 0 and 1")
    )
    val_targets: str | None = setting(Text(optional=True, doc="`.npy` file of the validation targets"))
    test_targets: str | None = setting(Text(optional=True, doc="`.npy` file of the test targets"))

    def load(self) -> Dataset:
        """Map the arrays into memory."""
        options, (train_key, val_key) = self.target_options(), (f"data.{name}" for name in self.split_names)
        targets = {train_key: self.train_targets, val_key: self.val_targets}
        found = make_dataset([_split(key, file, targets[key]) for key, file in self.split_values().items()], options)
        train, *val = (expanded(file).resolve() for file in self.split_values().values())
        note = f"data.val: {train} is also data.train. The model is validated on its training images"
        return found.noting(note if train in val else "")

    def must_check(self, dataset: Dataset) -> Collection[str]:
        """Return all splits if some are cut from train, so that copies stay in one split."""
        return ("train", "val") if self.cuts_val or self.test_fraction else ()

    of_folder = Source.of_folder  # a folder does not state which file holds the targets


@dataclass(frozen=True, slots=True)
class ArrayImage:
    """An image in a `.npy` file of images, (N, height, width, channels)."""

    file: RecordFile
    index: int

    @property
    def slot(self) -> str:
        """Identifies the image in its file."""
        return str(self.index)

    @property
    def name(self) -> str:
        """File and index, such as "train.npy[17]"."""
        return f"{self.file.path.name}[{self.index}]"

    def read_pixels(self) -> NDArray[Any]:
        """Return (height, width, channels), a view of the file.

        Raises:
            OSError: the file has changed.
        """
        self.file.require_unchanged()
        return np.asarray(_mapped(self.file)[self.index])

    @staticmethod
    def read_together(images: "Sequence[ArrayImage]") -> list[NDArray[Any]]:
        """Return the pixels of each image, and check each file once.

        Raises:
            OSError: a file has changed.
        """
        files = {id(image.file): image.file for image in images}
        for file in files.values():
            file.require_unchanged()
        arrays = {key: _mapped(file) for key, file in files.items()}
        return [arrays[id(image.file)][image.index] for image in images]

    def read(self) -> bytes:
        """Return the image as PPM."""
        return as_ppm(self.read_pixels())


def _split(key: str, file: str, targets: str | None) -> LabeledSplit:
    if targets is None:
        raise UserError(f"{key}_targets is required: a .npy file with one or several numbers per image.")
    path = expanded(file)
    array, rows = _open(path, f"{key}={file}"), _open(expanded(targets), f"{key}_targets={targets}")
    if array.ndim != 4 or array.shape[3] > MAX_CHANNELS or array.dtype.name not in DTYPES or 0 in array.shape:
        allowed = f"images of one size, (N, height, width, 1 to {MAX_CHANNELS} channels) of {', '.join(DTYPES)}"
        raise UserError(f"{key}={file} is {array.shape} {array.dtype}. Allowed: {allowed}.")
    if is_channels_first(array.shape[1:]):
        raise UserError(
            f"{key}={file} is {array.shape} {array.dtype}. Save it with its channels last: numpy.moveaxis(images, 1, "
            "3)."
        )
    if rows.ndim not in (1, 2) or len(rows) != len(array) or not rows.size or rows.dtype.kind not in "biuf":
        given = f"{key}_targets={targets} is {rows.shape} {rows.dtype}"
        allowed = f"numbers, ({len(array)},) or ({len(array)}, K), because there are {len(array)} images"
        raise UserError(f"{given}. Allowed: {allowed}.")
    state = RecordFile.of(path)
    images = [ArrayImage(state, index) for index in range(len(array))]
    return LabeledSplit(key, images, Labels.of_rows(np.array(rows)), lambda index: images[index].name)


@lru_cache(64)
def _mapped(file: RecordFile) -> NDArray[Any]:
    return np.asarray(np.load(file.path, mmap_mode="r"))  # np.memmap would be ten times slower to index


def _open(file: Path, what: str) -> NDArray[Any]:
    if not file.is_file():
        raise UserError(f"{what}: the file {file} does not exist.{near_file(file)} Use a .npy file.")
    try:
        return np.asarray(np.lib.format.open_memmap(file, mode="r"))
    except damage_errors(OSError, SyntaxError, TokenError) as error:  # the header is a Python literal
        why = first_line(error)
        raise UserError(f"{what} cannot be read ({why}). Use a .npy file of numbers.") from None
