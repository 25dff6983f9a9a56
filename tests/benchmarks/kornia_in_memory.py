"""Compare augment.Transform with kornia on a decoded batch in memory, as `augment bench --transform` does.

    pip install kornia
    python tests/benchmarks/kornia_in_memory.py +aug=imagenette --photos DIR

kornia draws for each image, as we do. It lacks `warp`; its random affine, which costs the same, takes its place.
"""

import sys
from collections.abc import Iterator, Sized

import kornia.augmentation as kornia
import torch
from common import make_parser, make_setup, measure
from torch import nn

from augment.cli.parser import readable_errors
from augment.tools.bench.rows import Setup, memory_rows, repeated, row
from augment.tools.bench.torchvision import translate

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


def main() -> None:
    flags, overrides = make_parser("kornia_in_memory", __doc__).split(sys.argv[1:])
    setup = make_setup(flags, overrides)
    rows = [*memory_rows(setup), row("kornia", "kornia, parameters per image", lambda: by_kornia(setup))]
    measure(setup, "in memory", rows, ["transform"])


if __name__ == "__main__":
    with readable_errors():
        main()
