"""Rows of `bench --transform`: a recipe on a decoded batch in memory, by us and by others on the same device.

Rules of a fair comparison:

- Every row starts from the same uint8 batch on the device and ends with normalized float images there.
- torchvision's functions use one set of parameters for all images they are given: one row draws once for the whole
  batch, which is fast but does not augment images individually, and another transforms image by image.
- kornia draws for each image, as we do. It lacks `warp`; its random affine, which costs the same, takes its place.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from augment.cli.compose import Recipe
from augment.data.images import open_image, to_rgb
from augment.params import Values
from augment.pipeline.transform import Transform
from augment.recipe.steps import Step
from augment.tools.bench import baselines
from augment.tools.bench.baselines import PlainRecipe, TorchvisionDataset
from augment.tools.bench.setup import Batches, Contender, Setup, Stream

try:
    import kornia.augmentation as kornia
except ImportError as error:
    kornia, _LACKS = None, error.name or "kornia"

SIDE = 224  # px, of the images that all rows start from


def decoded_batch(setup: Setup) -> Tensor:
    """Return a batch on the device, (N, SIDE, SIDE, 3) uint8."""
    images = []
    for file in setup.files[: setup.batch_size]:
        with open_image(file) as image:
            images.append(np.asarray(to_rgb(image).resize((SIDE, SIDE), Image.Resampling.BILINEAR)))
    return torch.from_numpy(np.stack(images)).to(setup.device)


def _row(make: Callable[[Setup], Callable[[Tensor], Tensor]], setup: Setup) -> Stream:
    """Start a row: a function of a batch, applied again and again."""

    def batches() -> Batches:
        batch, apply = decoded_batch(setup), make(setup)
        while True:
            yield len(apply(batch))

    return Stream(batches(), prefetched=1)


def _transform(setup: Setup) -> Callable[[Tensor], Tensor]:
    recipe = Recipe(setup.aug, 0, (), {})
    transform = Transform(recipe, device=setup.device, threads=setup.threads, classes=10)
    if not setup.plan.batch_stages:
        return transform
    targets = torch.zeros(setup.batch_size, dtype=torch.int64, device=setup.device)
    return lambda batch: transform(batch, targets).images


def _torchvision(setup: Setup, *, each: bool) -> Callable[[Tensor], Tensor]:
    dataset = TorchvisionDataset((), PlainRecipe.of(setup.aug), device=setup.device)

    def apply(batch: Tensor) -> Tensor:
        planes = batch.permute(0, 3, 1, 2)
        return torch.stack([dataset.transform(image) for image in planes]) if each else dataset.transform(planes)

    return apply


def _kornia(setup: Setup) -> Callable[[Tensor], Tensor]:
    apply = kornia_steps(setup, (setup.plan.crop, *setup.plan.tree))
    return lambda batch: apply(batch.permute(0, 3, 1, 2))


def kornia_steps(setup: Setup, steps: Sequence[Step]) -> Callable[[Tensor], Tensor]:
    """Return a function that applies steps and normalizes, (N, 3, height, width) uint8 to float."""
    plan = setup.plan
    translated = [_KORNIA[step.op.name](step.params, step.p, plan.size) for step in steps]
    normalize = kornia.Normalize(mean=torch.tensor(plan.mean), std=torch.tensor(plan.std))
    modules = nn.Sequential(*translated, normalize).to(setup.device)

    def apply(batch: Tensor) -> Tensor:
        images: Tensor = modules(batch.float() / 255)
        return images

    return apply


def kornia_obstacle(setup: Setup) -> str:
    """Return the reason why the recipe cannot run in kornia, "" if it can."""
    if kornia is None:
        return f"{_LACKS} is not installed"
    steps = (setup.plan.crop, *setup.plan.tree)
    drawn = [step for step in steps if not any(isinstance(value, Values) for value in step.params.values())]
    unknown = [step.key for step in steps if step.op.name not in _KORNIA or step not in drawn]
    return f"no translation of {', '.join(unknown)}" if unknown else ""


def _flip(params: Mapping[str, Any], p: float, size: int) -> nn.Module:
    kind = kornia.RandomHorizontalFlip if params["direction"] == "horizontal" else kornia.RandomVerticalFlip
    module: nn.Module = kind(p=p)
    return module


_KORNIA: dict[str, Callable[[Mapping[str, Any], float, int], nn.Module]] = {
    "random_resized_crop": lambda params, p, size: kornia.RandomResizedCrop(
        (size, size), scale=params["area_range"], ratio=params["aspect_range"], p=1.0
    ),
    "flip": _flip,
    "warp": lambda params, p, size: kornia.RandomAffine(0.0, translate=(0.1, 0.1), shear=(-11.0, 11.0), p=p),
    "rotate": lambda params, p, size: kornia.RandomRotation(params["angle_range"], p=p),
    "brightness": lambda params, p, size: kornia.RandomBrightness(params["factor_range"], p=p),
    "contrast": lambda params, p, size: kornia.RandomContrast(params["factor_range"], p=p),
    "saturation": lambda params, p, size: kornia.RandomSaturation(params["factor_range"], p=p),
    "hue": lambda params, p, size: kornia.RandomHue(tuple(angle / 360 for angle in params["angle_range"]), p=p),
}


TRANSFORM_CONTENDERS = (
    Contender("transform", "augment.Transform", partial(_row, _transform)),
    Contender("kornia", "kornia", partial(_row, _kornia), kornia_obstacle),
    Contender(
        "torchvision",
        "torchvision v2, one draw a batch",
        partial(_row, partial(_torchvision, each=False)),
        baselines.torchvision_obstacle,
    ),
    Contender(
        "torchvision_each",
        "torchvision v2, image by image",
        partial(_row, partial(_torchvision, each=True)),
        baselines.torchvision_obstacle,
    ),
)
