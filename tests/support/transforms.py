"""Transforms to test, of small images."""

import io
from typing import Any

import numpy as np
import torch
from photos import SIZES, draw_photo
from PIL import Image

from augment import Recipe, Transform, load_recipe
from augment.recipe.steps import SplitName

SIZE = 24
SEED = 5
CLASSES = 4

PHOTOS = [draw_photo(width, height, seed).copy() for seed, (width, height) in enumerate(SIZES)]
ALIKE = np.stack([draw_photo(40, 30, seed) for seed in range(6)])
TARGETS = [0, 1, 2, 3, 2, 1, 0]


def recipe_of(steps: dict[str, Any], split: SplitName = "train", **aug: Any) -> Recipe:
    return load_recipe({"size": SIZE, split: steps} | aug)


def transform_of(
    steps: dict[str, Any], device: torch.device, split: SplitName = "train", seed: int = SEED, **options: Any
) -> Transform:
    return Transform(recipe_of(steps, split), split, device=device, seed=seed, threads=1, **options)


def encoded(pixels: Any, file_format: str = "png") -> bytes:
    """Return an image as PNG, which every decoder reads alike, or in another format."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, file_format)
    return file.getvalue()


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.cpu(), other.cpu())
