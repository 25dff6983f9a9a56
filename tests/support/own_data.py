"""A user's own module of images and targets, and how it is loaded; `own_module` makes it."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest
import torch
from loaders import build_loader
from stores import FIXED

from augment.data.dataset import Dataset, Split
from augment.data.images import open_image
from augment.data.sources import LOADED, load_dataset, parse_data
from augment.pipeline.loader import Loader

CPU = torch.device("cpu")

# Seven photos of varied size and three classes; `READ` counts what was asked of the Dataset.
MODULE = """
import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image

FILES = sorted(Path("photos").glob("*.png"), key=lambda file: int(file.stem))
TARGETS = [2, 0, 1, 1, 2, 0, 2]
NAMES = ["ant", "bee", "cow"]
READ = []


def paths():
    return list(zip(map(str, FILES), TARGETS))


def some_paths():
    return paths()[:3]


def encoded():
    return [(file.read_bytes(), NAMES[target]) for file, target in zip(FILES, TARGETS)]


class Photos(torch.utils.data.Dataset):
    classes = NAMES

    def __init__(self, kind="pillow", targets=True, limit=7):
        self.kind = kind
        self.limit = limit
        if targets:
            self.targets = TARGETS[:limit]

    def __len__(self):
        return self.limit

    def __getitem__(self, index):
        READ.append(index)
        image = Image.open(FILES[index])
        pixels = np.array(image)
        image = {
            "pillow": lambda: image,
            "array": lambda: pixels,
            "tensor": lambda: torch.from_numpy(pixels).permute(2, 0, 1),
            "bytes": lambda: FILES[index].read_bytes(),
            "path": lambda: FILES[index],
        }[self.kind]()
        return image, TARGETS[index]


def part():
    return torch.utils.data.Subset(Photos(), [4, 0, 2, 3])


def both():
    return torch.utils.data.ConcatDataset([Photos(limit=2), Photos(limit=3)])


listed = [(np.array(Image.open(file)), target) for file, target in zip(FILES, TARGETS)]
"""


@pytest.fixture
def own_module(image_files: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with seven photos and my_data.py, in which the program is started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "photos").mkdir()
    for number, file in enumerate(image_files.files):
        with open_image(file) as image:
            image.save(tmp_path / "photos" / f"{number}.png")
    (tmp_path / "my_data.py").write_text(MODULE)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def my_data() -> ModuleType:
    return importlib.import_module("my_data")


def load(train: str = "my_data.Photos", val: str | None = None, **settings: Any) -> Dataset:
    LOADED.clear()
    return load_dataset(parse_data({"source": "own", "train": train, "val": val or train, **settings}))


def written(code: str, **settings: Any) -> Dataset:
    """Load `train` of a module that has this code."""
    Path("mine.py").write_text(dedent(code))
    sys.modules.pop("mine", None)
    return load("mine.train", **settings)


def make(split: Split, *, device: torch.device = CPU, **options: Any) -> Loader:
    return build_loader(FIXED, split, batch_size=2, seed=3, device=device, raw=True, **options)


def samples(loader: Loader) -> list[tuple[Any, bytes]]:
    return [
        (target, pixels.cpu().numpy().tobytes())
        for batch in loader
        if batch.share
        for target, pixels in zip(batch.targets.tolist(), batch.images, strict=True)
    ]


def epoch(split: Split, **options: Any) -> list[tuple[Any, bytes]]:
    return samples(make(split, **options))
