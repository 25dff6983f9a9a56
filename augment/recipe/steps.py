"""The `aug` section of the configuration: settings and their validation."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal, get_args

from augment.params import (
    IMPORTS,
    CacheSize,
    Channels,
    Choice,
    Count,
    Flag,
    ImageSize,
    Number,
    Range,
    Size,
    Texts,
    check_known,
    parse_params,
    plain_value,
    setting,
    settings,
)
from augment.params.pixel_format import RGB, PixelFormat
from augment.recipe.op import OPS
from augment.recipe.step import Step, parse_steps, plain_steps
from augment.recipe.views import View, Views, parse_views
from augment.support.errors import UserError
from augment.support.user_code import load_plugins

SplitName = Literal["train", "val"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)

# The values of torchvision and timm. A pretrained model may define its own.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Aug:
    """The recipe: augmentation of both splits, and how images are decoded and normalized."""

    size: Size = setting(  # noqa: RUF009
        ImageSize(
            aliases=("img_size", "image_size", "resolution"),
            default=Size(128, 128),
            within=(8, 4096),
            doc="size of the model input: the side of a square, or [height, width]",
            unit="px",
        )
    )
    fuse: bool = setting(
        Flag(
            default=True,
            doc="whether to fuse adjacent geometry steps into a warp and adjacent color steps into a matrix",
        )
    )
    clip: str = setting(
        Choice(
            default="end",
            options=("end", "each"),
            doc="when to clip colors to 0..255: after the last of adjacent color steps (end), or after each step as in "
            "torchvision (each)",
        )
    )
    mean: tuple[float, ...] | str | None = setting(
        Channels(
            optional=True,
            within=(0, 1),
            count=None,
            auto=True,
            doc="mean of each channel in 0..1, or auto to measure the training images. Default: the pretrained "
            "model's, else ImageNet's for 8-bit RGB, else auto",
        )
    )
    std: tuple[float, ...] | str | None = setting(
        Channels(
            optional=True,
            within=(0, 10),
            above=0,
            count=None,
            auto=True,
            doc="standard deviation of each channel in 0..1, or auto. Default: like mean",
        )
    )
    min_visible: float = setting(
        Number(default=0.1, within=(0, 1), doc="minimum visible share of a box. Boxes below this share are dropped")
    )
    min_area: float = setting(
        Number(
            default=1.0,
            within=(0, inf),
            doc="minimum visible area of a box in square pixels. In training, smaller boxes are dropped",
        )
    )
    fill_label: int = setting(
        Count(default=255, within=(0, 255), doc="mask label for filled areas. Label 255 is ignored")
    )
    decode: str = setting(
        Choice(
            default="mixed",
            options=("cpu", "mixed"),
            doc="where to decode JPEGs if there is a GPU: partly on the GPU (mixed), or on the CPU (cpu)",
        )
    )
    cache: int | str = setting(
        CacheSize(
            default="off",
            doc="GPU memory for a cache of decoded images: an amount, or at most half of the free memory (gpu)",
        )
    )
    prefetch: int = setting(Count(default=4, within=(1, 64), doc="number of batches to prefetch"))
    hw_decoder_load: float | None = setting(
        Number(
            optional=True,
            within=(0, 1),
            doc="share of JPEGs for the GPU's hardware decoder, which rounds differently. Default: automatic",
        )
    )
    plugins: tuple[str, ...] = setting(Texts(default=(), doc="Python modules with your own ops", reach=IMPORTS))
    train: tuple[Step, ...] = ()  # in order of application
    val: tuple[Step, ...] = ()
    views: Views = field(default_factory=Views)  # views of each training image
    pixels: PixelFormat = RGB  # the pixel format of the images, from the dataset

    def steps(self, split: SplitName) -> tuple[Step, ...]:
        return self.train if split == "train" else self.val


def parse_aug(given: object) -> Aug:
    """Parse and validate the `aug` section.

    Args:
        given: mapping with any of the keys of `Aug`. Null means no augmentation.
    """
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise UserError(f"aug: {given!r} is not allowed. To use a recipe in conf/aug, set aug=NAME.")
    nested = ("train", "val", "views")
    check_known(given, {**settings(Aug), **dict.fromkeys(nested)}, "aug", {op: f"train.{op}" for op in OPS})
    plain = parse_params(settings(Aug), {n: v for n, v in given.items() if n not in nested}, "aug")
    load_plugins(plain["plugins"], "aug.plugins")
    train, val = (parse_steps(given.get(split), f"aug.{split}") for split in SPLITS)
    if mixing := [step.key for step in val if step.mixes]:
        raise UserError(f"aug.val.{mixing[0]} mixes samples. Move it to aug.train.")
    views = parse_views(given.get("views"), "aug.views", given.get("train"))
    return Aug(**plain, train=train, val=val, views=views)


def plain_views(aug: Aug) -> dict[str, Any]:
    """Return the views as a mapping of plain values, which `parse_aug` parses to the same views."""
    if not aug.views.named:
        return {name: getattr(aug.views, name) for name in settings(Views)}
    named: dict[str, Any] = {}
    for view in aug.views.named:
        plain = {name: plain_value(getattr(view, name)) for name in settings(View)}
        named[view.name] = plain | {"steps": plain_steps(_own_steps(view, aug))}
    return named


def unit_notices(aug: Aug) -> Iterator[str]:
    """Yield a notice about each range whose numbers are probably in a different unit."""
    for key, step in _keyed(aug):
        for name, param in step.op.params.items():
            if isinstance(param, Range) and (note := param.doubts(step.params[name])):
                yield f"{key}.{name}: {param.show(step.params[name])} changes almost nothing ({note})"


def border_notices(aug: Aug, unrepeated: str) -> Iterator[str]:
    """Yield a notice about each border that repeats parts of the image without their targets.

    Args:
        aug: the recipe.
        unrepeated: the targets that borders do not repeat, see `augment.data.targets.kind.Kind`.
    """
    for key, step in _keyed(aug):
        border = step.params.get("border", "constant")
        if unrepeated and border != "constant":
            yield (
                f"{key}: border {border} repeats parts of the image beyond its edges, but not their {unrepeated}. "
                f"To fill these areas instead, set {key}.border=constant"
            )


def _keyed(aug: Aug) -> Iterator[tuple[str, Step]]:
    """Yield each step with its key. Nested steps follow their policy."""
    for split in SPLITS:
        yield from _with_nested(aug.steps(split), f"aug.{split}")
    for view in aug.views.named:
        yield from _with_nested(_own_steps(view, aug), f"aug.views.{view.name}.steps")


def _own_steps(view: View, aug: Aug) -> tuple[Step, ...]:
    """Return the steps of a view that `aug.train` does not have."""
    return tuple(step for step in view.steps if step not in aug.train)


def _with_nested(steps: tuple[Step, ...], key: str) -> Iterator[tuple[str, Step]]:
    for step in steps:
        yield f"{key}.{step.key}", step
        if step.op.nests:
            yield from _with_nested(step.steps, f"{key}.{step.key}.steps")
