"""The recipe in torchvision: each step by its own transform, with the same ranges, and its black borders.

It has no `warp`; its random affine, which costs the same, takes its place. Worker processes import this module, which
imports no DALI.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from augment.cli.benchmark import LeftOutError
from augment.params import Values
from augment.recipe.plan import Plan
from augment.recipe.step import Step

if TYPE_CHECKING:
    from augment.tools.bench.rows import Setup

T = TypeVar("T")


def translate(plan: Plan, table: Mapping[str, T], library: str, *crop: Step) -> list[tuple[Step, T]]:
    """Return the crop, if it is given, and the steps of a plan, each with what a table has for the name of its op.

    Raises:
        LeftOutError: the plan makes several views, the table lacks an op, or a step does not draw from intervals.
    """

    def is_plain(step: Step) -> bool:
        few = any(isinstance(value, Values) for value in step.params.values())
        return not few and step.params.get("side", "both") == "both"  # of a resize

    if plan.others:
        raise LeftOutError("several views of each image")
    steps = (*crop, *plan.tree)
    if missing := [step.key for step in steps if step.op.name not in table or not is_plain(step)]:
        raise LeftOutError(f"no {library} translation of {', '.join(missing)}")
    return [(step, table[step.op.name]) for step in steps]


def transform(plan: Plan) -> Any:
    """Return the recipe as a transform: uint8 tensors, (..., 3, height, width), or PIL images, to normalized floats.

    Raises:
        LeftOutError: torchvision has no translation of a step.
    """
    size, linear = list(plan.size), {"interpolation": v2.InterpolationMode.BILINEAR}
    flips = {"horizontal": v2.RandomHorizontalFlip(1), "vertical": v2.RandomVerticalFlip(1)}
    table: dict[str, Callable[[Mapping[str, Any]], Any]] = {
        "resize": lambda params: v2.Resize(size),
        "random_resized_crop": lambda params: v2.RandomResizedCrop(size, params["area_range"], params["aspect_range"]),
        "flip": lambda params: flips[params["direction"]],
        "rotate": lambda params: v2.RandomRotation(params["angle_range"], **linear),
        "warp": lambda params: v2.RandomAffine(0, (0.1, 0.1), shear=(-11, 11, -11, 11), **linear),
        "brightness": lambda params: v2.ColorJitter(brightness=params["factor_range"]),
        "contrast": lambda params: v2.ColorJitter(contrast=params["factor_range"]),
        "saturation": lambda params: v2.ColorJitter(saturation=params["factor_range"]),
        "hue": lambda params: v2.ColorJitter(hue=tuple(angle / 360 for angle in params["angle_range"])),
    }
    steps = translate(plan, table, "torchvision", plan.crop)
    made = [v2.RandomApply([make(step.params)], step.p) for step, make in steps]
    floats = (v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(plan.mean, plan.std))
    return v2.Compose([*made, *floats])


class Images(Dataset[Tensor]):
    """A data set of images that torchvision decodes and transforms."""

    def __init__(self, paths: Sequence[str], transform: Callable[[Tensor], Tensor]) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        return self.transform(decode_image(self.paths[index], ImageReadMode.RGB, apply_exif_orientation=True))


def batches(dataset: Dataset[Tensor], setup: "Setup") -> Iterator[Tensor]:
    """Yield batches of a data set, on the device, endlessly, in random order.

    Workers are forked from a process that has imported only this module, as DALI does not survive a fork. They persist
    across epochs and run one PyTorch thread each; memory is pinned if there is a GPU.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    loader = DataLoader(
        dataset,
        batch_size=setup.batch_size,
        shuffle=True,
        num_workers=setup.flags.workers,
        prefetch_factor=2,
        pin_memory=setup.device.type == "cuda",
        persistent_workers=True,
        multiprocessing_context=context,
    )
    while True:
        for images in loader:
            yield images.to(setup.device, non_blocking=True)
