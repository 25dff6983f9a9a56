"""Compare augment.Transform with torchvision, kornia, vision-synth and triton-augment on a decoded batch in memory.

    pip install kornia vision-synth triton-augment
    python tests/benchmarks/in_memory.py aug=imagenette --photos DIR

torchvision draws once for all images that it is given: one row draws once for the whole batch, which is fast but
augments all images alike, and another transforms image by image. kornia draws for each image,
as we do. It lacks `warp`; its random affine, which costs the same, takes its place. vision-synth fuses kornia's
transforms. triton-augment has one kernel for affine, crop, flip, colors and normalization, without a resized crop (its
affine scales instead), `warp` or probabilities for affine and colors, so every image gets them.
"""

import sys
from collections.abc import Callable, Iterator, Sized
from functools import partial
from importlib import import_module
from types import ModuleType

import in_torchvision
import kornia.augmentation as kornia
import numpy as np
import torch
from common import make_parser, make_setup, measure
from in_torchvision import translate
from PIL import Image
from torch import Tensor, nn

from augment.cli.benchmark import LeftOutError, Row
from augment.cli.compose import Recipe
from augment.cli.parser import readable_errors
from augment.data.images import open_image, to_rgb
from augment.pipeline.transform import Transform
from augment.tools.bench.rows import Setup, row

SIDE = 224  # px, of the images in memory
COLORS = ("brightness", "contrast", "saturation")

FLIPS = {"horizontal": kornia.RandomHorizontalFlip, "vertical": kornia.RandomVerticalFlip}
TRANSLATIONS = {
    "random_resized_crop": lambda params, p, size: kornia.RandomResizedCrop(
        tuple(size), scale=params["area_range"], ratio=params["aspect_range"], p=1.0
    ),
    "flip": lambda params, p, size: FLIPS[params["direction"]](p=p),
    "warp": lambda params, p, size: kornia.RandomAffine(0.0, translate=(0.1, 0.1), shear=(-11.0, 11.0), p=p),
    "rotate": lambda params, p, size: kornia.RandomRotation(params["angle_range"], p=p),
    "brightness": lambda params, p, size: kornia.RandomBrightness(params["factor_range"], p=p),
    "contrast": lambda params, p, size: kornia.RandomContrast(params["factor_range"], p=p),
    "saturation": lambda params, p, size: kornia.RandomSaturation(params["factor_range"], p=p),
    "hue": lambda params, p, size: kornia.RandomHue(tuple(angle / 360 for angle in params["angle_range"]), p=p),
}


def by_kornia(setup: Setup, combine: Callable[[list[nn.Module]], nn.Module]) -> Iterator[Sized]:
    plan = setup.plan
    steps = translate(plan, TRANSLATIONS, "kornia", plan.crop)
    normalize = kornia.Normalize(mean=torch.tensor(plan.mean), std=torch.tensor(plan.std))
    made = [*(make(step.params, step.p, plan.size) for step, make in steps), normalize]
    modules = combine(made).to(setup.device)
    return repeated(setup, lambda batch: modules(batch.permute(0, 3, 1, 2).float() / 255))


def sequence(modules: list[nn.Module]) -> nn.Module:
    return nn.Sequential(*modules)


def compiled(modules: list[nn.Module]) -> nn.Module:
    return torch.compile(sequence(modules))


def fused(modules: list[nn.Module]) -> nn.Module:
    return imported("fuse_augmentations").Compose(modules)


def by_triton_augment(setup: Setup) -> Iterator[Sized]:
    if setup.device.type != "cuda":
        raise LeftOutError("triton-augment needs a GPU")
    triton_augment, plan = imported("triton_augment"), setup.plan
    params = {step.op.name: step.params for step in (plan.crop, *plan.tree)}
    if missing := {"random_resized_crop", "flip", "warp", "rotate", *COLORS} - set(params):
        raise LeftOutError(f"made for the steps of aug=imagenette, but the recipe has no {', '.join(sorted(missing))}")
    low, high = params["random_resized_crop"]["area_range"]
    transform = triton_augment.TritonFusedAugment(
        crop_size=tuple(plan.size),
        horizontal_flip_p=0.5,
        degrees=tuple(params["rotate"]["angle_range"]),
        translate=(0.1, 0.1),
        scale=(plan.size[0] / SIDE / high**0.5, plan.size[0] / SIDE / low**0.5),
        shear=(-11.0, 11.0, -11.0, 11.0),
        interpolation=triton_augment.InterpolationMode.BILINEAR,
        **{name: tuple(params[name]["factor_range"]) for name in COLORS},
        mean=plan.mean,
        std=plan.std,
    )
    return repeated(setup, lambda batch: transform(batch.permute(0, 3, 1, 2).float() / 255))


def imported(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError:
        raise LeftOutError(f"{name} is not installed") from None


def memory_rows(setup: Setup) -> list[Row]:
    """Return the rows that transform a decoded batch on the device to normalized floats.

    torchvision draws once for all images that it is given: one row draws once for the whole batch, which is fast but
    augments all images alike, and another transforms image by image.
    """

    def ours() -> Iterator[Sized]:
        options = {"device": setup.device, "threads": setup.flags.threads, "classes": 10}
        transform = Transform(Recipe(setup.aug, 0, (), {}), **options)
        targets = torch.zeros(setup.batch_size, dtype=torch.int64, device=setup.device)
        return repeated(setup, lambda batch: transform(batch, targets))

    def theirs(*, each: bool) -> Iterator[Sized]:
        transform = in_torchvision.transform(setup.plan)
        apply = (lambda planes: torch.stack([transform(image) for image in planes])) if each else transform
        return repeated(setup, lambda batch: apply(batch.permute(0, 3, 1, 2)))

    return [
        row("transform", "augment.Transform", ours, ours=True),
        row("torchvision", "torchvision v2, one draw a batch", partial(theirs, each=False)),
        row("torchvision_each", "torchvision v2, image by image", partial(theirs, each=True)),
    ]


def repeated(setup: Setup, apply: Callable[[Tensor], Sized]) -> Iterator[Sized]:
    """Yield what a function returns for a batch on the device, (N, 224, 224, 3) uint8, again and again."""
    images = []
    for file in setup.files[: setup.batch_size]:
        with open_image(file) as image:
            images.append(np.asarray(to_rgb(image).resize((SIDE, SIDE), Image.Resampling.BILINEAR)))
    batch = torch.from_numpy(np.stack(images)).to(setup.device)
    while True:
        yield apply(batch)


def main() -> None:
    flags, overrides = make_parser("in_memory", __doc__).split(sys.argv[1:])
    setup = make_setup(flags, overrides)
    torch.set_num_threads(flags.threads)  # kornia draws on the CPU, and would occupy every core
    rows = [
        *memory_rows(setup),
        row("kornia", "kornia, parameters per image", partial(by_kornia, setup, sequence)),
        row("kornia_compiled", "kornia, the same, compiled", partial(by_kornia, setup, compiled)),
        row("vision_synth", "vision-synth, kornia's transforms fused", partial(by_kornia, setup, fused)),
        row("triton_augment", "triton-augment", partial(by_triton_augment, setup)),
    ]
    measure(setup, "in memory", rows, ["transform"])


if __name__ == "__main__":
    with readable_errors():
        main()
