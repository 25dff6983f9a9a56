"""Compare augment.Transform with torchvision and kornia on a decoded batch in memory.

    pip install kornia
    python tests/benchmarks/in_memory.py +aug=imagenette --photos DIR

torchvision draws once for all images that it is given: one row draws once for the whole batch, which is fast but
augments all images alike, and another transforms image by image. kornia draws for each image,
as we do. It lacks `warp`; its random affine, which costs the same, takes its place.
"""

import sys
from collections.abc import Callable, Iterator, Sized
from functools import partial

import in_torchvision
import kornia.augmentation as kornia
import numpy as np
import torch
from common import make_parser, make_setup, measure
from in_torchvision import translate
from PIL import Image
from torch import Tensor, nn

from augment.cli.compose import Recipe
from augment.cli.parser import readable_errors
from augment.data.images import open_image, to_rgb
from augment.pipeline.transform import Transform
from augment.support.measurement import Row
from augment.tools.bench.rows import Setup, row

SIDE = 224  # px, of the images in memory

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


def by_kornia(setup: Setup) -> Iterator[Sized]:
    plan = setup.plan
    steps = translate(plan, TRANSLATIONS, "kornia", plan.crop)
    normalize = kornia.Normalize(mean=torch.tensor(plan.mean), std=torch.tensor(plan.std))
    made = [make(step.params, step.p, plan.size) for step, make in steps]
    modules = nn.Sequential(*made, normalize).to(setup.device)
    return repeated(setup, lambda batch: modules(batch.permute(0, 3, 1, 2).float() / 255))


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
    rows = [*memory_rows(setup), row("kornia", "kornia, parameters per image", lambda: by_kornia(setup))]
    measure(setup, "in memory", rows, ["transform"])


if __name__ == "__main__":
    with readable_errors():
        main()
