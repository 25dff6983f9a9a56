"""Images that change or disappear while a run reads them: said in a sentence, with the file."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from annotated import mask, photo
from files_of_sources import drawn, file_of, load, put, put_both
from loaders import build_loader
from stores import FIXED, epochs

from augment.data.dataset import Split
from augment.pipeline.loader import Loader
from augment.support.errors import UserError

pytest.importorskip("pyarrow")

pytestmark = pytest.mark.usefixtures("own_folder")

Damage = Callable[[Path], object]


def cut(file: Path) -> None:
    """In place, as who writes a file anew does it first."""
    with file.open("r+b") as stream:
        stream.truncate(100)


def replace(file: Path, content: bytes) -> None:
    file.unlink()
    file.write_bytes(content)


def make(split: Split) -> Loader:
    return build_loader(FIXED, split, batch_size=2, seed=0)


def said(split: Split, damage: Callable[[], object]) -> str:
    """What is said of a split that is damaged after an epoch."""
    loader = make(split)
    assert len(list(loader)) == 3
    damage()
    with pytest.raises(UserError) as caught:
        epochs(loader, 4)  # some batches were read ahead
    return str(caught.value)


SAMPLES = drawn(6)


@pytest.mark.parametrize("source", ["webdataset", "lmdb", "numpy"])
def test_a_larger_file_that_changes_is_named(source: str) -> None:
    split = load(source, put_both(source, SAMPLES, SAMPLES[:3])).train
    file = file_of(source)
    text = said(split, lambda: cut(file))
    assert re.fullmatch(
        rf"data: train\S+ cannot be read any more: it has changed since it was indexed \(.*{file}\)\. Repair it .*",
        text,
    )
    # A pipeline that is built anew is no better.
    with pytest.raises(UserError, match="cannot be read any more"):
        list(make(split))


def photos() -> Split:
    for name in ("train", "val"):
        put("folder", name, SAMPLES)
    # By their whole paths: DALI holds files open by their names.
    return load("folder", {"root": str(Path("set").resolve())}).train


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "cannot be read: No such file or directory"),
        (cut, "is broken: "),
        (lambda file: replace(file, b""), r"is empty \(0 bytes\)"),
        (lambda file: replace(file, b"words " * 100), "is not an image that DALI decodes"),
    ],
    ids=["gone", "cut", "empty", "text"],
)
def test_a_file_of_its_own_is_named(damage: Damage, message: str) -> None:
    split = photos()
    file = Path(str(split.files[4]))
    text = said(split, lambda: damage(file))
    assert re.match(rf"data: an image became unreadable: {file} {message}", text)


class Stored:
    """An encoded image in memory whose bytes can be damaged."""

    def __init__(self, file: Path) -> None:
        self.name, self.content = file.name, file.read_bytes()

    def read(self) -> bytes:
        return self.content


def test_a_stored_image_whose_pixels_are_damaged_is_named() -> None:
    """DALI's error does not name the image."""
    split = photos()
    images = tuple(Stored(Path(str(file))) for file in split.files)
    image = images[4]
    half = image.content[: len(image.content) // 2]
    text = said(dataclasses.replace(split, files=images), lambda: setattr(image, "content", half))
    assert text.startswith(f"data: an image became unreadable: {image.name} is broken: ")
    assert text.endswith(
        ". Repair it to resume the run. To start a new run without it, remove it or set data.skip_bad=true."
    )


def test_an_image_with_a_mask_is_named() -> None:
    for number in range(6):
        for split in ("train", "val"):
            photo(Path("set", split, "images", f"{number}.jpg"), 24, 24)
            mask(Path("set", split, "masks", f"{number}.png"), np.full((24, 24), number % 2))
    split = load("masks", {"root": str(Path("set").resolve())}).train
    file = Path(str(split.files[4]))
    text = said(split, file.unlink)
    assert text.startswith(f"data: an image became unreadable: {file} cannot be read")
