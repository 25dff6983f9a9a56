"""Sources are found, not listed; a dataset is loaded once per source and current folder."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
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
from augment.data.targets.classification import CLASSES
from augment.data.targets.combined import Several
from augment.data.targets.masks import MASKS
from augment.support.errors import UserError


@pytest.fixture
def _as_before() -> Iterator[None]:
    """What is registered is forgotten afterwards."""
    before, names = dict(_SOURCES), set(vars(sources))
    yield
    for name in set(vars(sources)) - names:
        delattr(sources, name)
    _SOURCES.clear()
    _SOURCES.update(before)
    sys.modules.pop("augment.data.sources.my_zips", None)


PATHS = (Path("a.png"), Path("b.png"))
CLASS, ROW = "Use an index below 2, the number of classes.", "Use a tuple of 2 numbers."


@pytest.mark.parametrize(
    ("loaded", "message"),
    [
        (None, "load() returned NoneType. Return an augment.Dataset."),
        (Split(PATHS, (0,)), "train has 2 files, but 1 targets. Give each file one target."),
        (
            Split(("a.png",), (0,)),
            "train has the file 'a.png'. Use a Path, or an object with a name and a read().",
        ),
        (Split(PATHS, (0, 2)), f"train has the target 2. {CLASS}"),
        (Split(PATHS, (0.5, 1.5)), f"train has the target 0.5. {CLASS}"),
        (Split(PATHS, ([1.0, 0.0], [0.0, 1.0])), f"train has the target [1.0, 0.0]. {CLASS}"),
        (Split(PATHS, ((1.0, 0.0), (0.0,))), f"train has the target (0.0,). {ROW}"),
        (Split(PATHS, ((1.0, 0.0), 1)), f"train has the target 1. {ROW}"),
        (
            Split(PATHS, ({}, {}), Several({"mask": MASKS, "class": CLASSES})),
            "train has the target of several kinds (mask, class). A dataset has one kind. Use a Transform for several.",
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


@pytest.mark.usefixtures("_as_before")
def test_a_new_source_is_one_module_of_a_few_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = (code for _, code in blocks("python") if code.startswith("# my_zips.py"))
    assert sum(bool(line.strip()) and line[0] != "#" for line in code.splitlines()) <= 20
    (tmp_path / "my_zips.py").write_text(code)
    monkeypatch.setattr(sources, "__path__", [*sources.__path__, str(tmp_path)])
    sources._import_built_in()
    assert SOURCES["zip"] in vars(sources).values()
    for split in ("train", "val"):
        with ZipFile(f"{split}.zip", "w") as archive:
            for level, name in enumerate(("ant", "bee", "cow")):
                archive.writestr(f"{name}/0.jpg", as_ppm(np.full((16, 16, 3), 20 * level, np.uint8)))
    dataset = load_dataset(parse_data({"source": "zip", "train": "train.zip", "val": "val.zip"}))
    assert dataset.classes == ("ant", "bee", "cow")
    (batch,) = make_fixed_loader(dataset.train, batch_size=4)
    levels = batch.images.amax((1, 2, 3)).tolist()
    assert batch.images.amin((1, 2, 3)).tolist() == levels
    assert set(zip(levels, batch.targets.tolist(), strict=True)) == {(0, 0), (20, 1), (40, 2)}


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
