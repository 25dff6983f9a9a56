"""A folder of small red and blue images, and loaders of it."""

from pathlib import Path
from typing import Any

from photos import draw_photo
from PIL import Image

import augment
from augment import Loader, Recipe

SIZE = 16
COUNTS = {"train": 10, "val": 5}
CPU: dict[str, Any] = {"device": "cpu", "threads": 1}


def write_folder(root: Path) -> Path:
    for split, count in COUNTS.items():
        for name, channel in (("blue", 2), ("red", 0)):
            (root / split / name).mkdir(parents=True)
            for seed in range(count):
                photo = draw_photo(20 + seed, 30, seed) // 2
                photo[..., channel] += 120
                Image.fromarray(photo).save(root / split / name / f"{seed}.png")
    return root


def loader_of(recipe: Recipe, folder: Path, split: str = "train", **options: Any) -> Loader:
    return augment.make_loader(recipe, "folder", root=folder, split=split, batch_size=4, **CPU | options)  # type: ignore[arg-type]
