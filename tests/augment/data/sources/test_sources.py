"""Sources are found, not listed; a dataset is loaded once per source and current folder."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from documented import blocks
from PIL import Image
from stores import make_fixed_loader

from augment.data import sources
from augment.data.dataset import Dataset, Split
from augment.data.images import as_ppm
from augment.data.sources import SOURCES, Folder, Source, load_dataset, parse_data
from augment.data.sources.registry import _SOURCES
from augment.data.targets.classes import CLASSES
from augment.data.targets.masks import MASKS
from augment.data.targets.several import Several
from augment.support.errors import UserError

MODULE = """
    from dataclasses import dataclass

    import numpy as np

    from augment.data.dataset import Dataset, Split
    from augment.data.images import as_ppm
    from augment.data.sources import Source, source
    from augment.params import Count, setting


    @dataclass(frozen=True)
    class Square:
        level: int

        @property
        def name(self):
            return f"square {self.level}"

        def read(self):
            return as_ppm(np.full((16, 16, 3), self.level, np.uint8))


    @source("squares")
    @dataclass(frozen=True, kw_only=True)
    class Squares(Source):
        count: int = setting(Count(default=2, within=(1, 9), doc="how many"))

        def load(self):
            split = Split(tuple(Square(20 * i) for i in range(self.count)), tuple(i % 2 for i in range(self.count)))
            return Dataset(("even", "odd"), split, split)
"""


@pytest.fixture
def folder_with_squares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module that declares a source; what is registered is forgotten afterwards."""
    (tmp_path / "squares_of_mine.py").write_text(dedent(MODULE))
    before = dict(_SOURCES)
    yield tmp_path
    vars(sources).pop("Squares", None)
    _SOURCES.clear()
    _SOURCES.update(before)
    for name in ("squares_of_mine", "augment.data.sources.squares_of_mine"):
        sys.modules.pop(name, None)


PATHS = (Path("a.png"), Path("b.png"))
CLASS, ROW = "Allowed: an index below 2, the number of classes.", "Allowed: a tuple of 2 numbers."


@pytest.mark.parametrize(
    ("loaded", "message"),
    [
        (None, "loads NoneType. Allowed: an augment.Dataset."),
        (Split(PATHS, (0,)), "train has 2 files and 1 targets. Allowed: as many."),
        (
            Split(("a.png",), (0,)),
            "train has the file 'a.png'. Allowed: a Path, or an object with a name and a read().",
        ),
        (Split(PATHS, (0, 2)), f"train has the target 2. {CLASS}"),
        (Split(PATHS, (0.5, 1.5)), f"train has the target 0.5. {CLASS}"),
        (Split(PATHS, ([1.0, 0.0], [0.0, 1.0])), f"train has the target [1.0, 0.0]. {CLASS}"),
        (Split(PATHS, ((1.0, 0.0), (0.0,))), f"train has the target (0.0,). {ROW}"),
        (Split(PATHS, ((1.0, 0.0), 1)), f"train has the target 1. {ROW}"),
        (
            Split(PATHS, ({}, {}), Several({"mask": MASKS, "class": CLASSES})),
            "train has the target of several kinds, mask, class. Allowed: one kind; a Transform takes several.",
        ),
    ],
)
def test_what_a_source_loads_is_checked(loaded: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Own(Source):
        def load(self) -> Any:
            return loaded and Dataset(("a", "b"), loaded, loaded)

    monkeypatch.setitem(_SOURCES, "mine", Own)
    with pytest.raises(UserError, match=f"^{re.escape(f'data.source=mine: {message}')}$"):
        load_dataset(Own())


def levels_and_targets(source: Source) -> set[tuple[int, int]]:
    """Return the gray level and the target of each image that the loader yields."""
    (batch,) = make_fixed_loader(load_dataset(source).train, batch_size=4)
    levels = batch.images.amax((1, 2, 3)).tolist()
    assert batch.images.amin((1, 2, 3)).tolist() == levels
    return set(zip(levels, batch.targets.tolist(), strict=True))


def test_a_new_source_is_one_module_of_the_package(folder_with_squares: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "__path__", [*sources.__path__, str(folder_with_squares)])
    sources._import_built_in()
    assert "squares" in SOURCES
    assert sources.Squares is SOURCES["squares"]  # type: ignore[attr-defined]
    source = parse_data({"source": "squares", "count": 4})
    assert levels_and_targets(source) == {(0, 0), (20, 1), (40, 0), (60, 1)}


@pytest.mark.usefixtures("folder_with_squares")
def test_a_source_of_zip_files_takes_a_few_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = (code for _, code in blocks("python") if code.startswith("# my_zips.py"))
    exec(code, {"__name__": "my_zips"})
    assert sum(bool(line.strip()) and line[0] != "#" for line in code.splitlines()) <= 20
    for split in ("train", "val"):
        with ZipFile(f"{split}.zip", "w") as archive:
            for level, name in enumerate(("ant", "bee", "cow")):
                archive.writestr(f"{name}/0.jpg", as_ppm(np.full((16, 16, 3), 20 * level, np.uint8)))
    source = parse_data({"source": "zip", "train": "train.zip", "val": "val.zip"})
    assert load_dataset(source).classes == ("ant", "bee", "cow")
    assert levels_and_targets(source) == {(0, 0), (20, 1), (40, 2)}


def test_relative_paths_depend_on_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Folder(root="mine")
    for place, names in (("a", ("ant", "bee")), ("b", ("cat", "dog"))):
        for name in names:
            for split in ("train", "val"):
                folder = tmp_path / place / "mine" / split / name
                folder.mkdir(parents=True)
                Image.new("RGB", (8, 8)).save(folder / "0.png")
        monkeypatch.chdir(tmp_path / place)
        assert load_dataset(source).classes == names
        assert load_dataset(source) is load_dataset(source)
