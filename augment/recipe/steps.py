"""The `aug` section of the configuration: parse and validate a mapping, as read from YAML, into typed steps."""

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
from augment.recipe.op import OPS
from augment.recipe.step import Step, parse_steps, plain_steps
from augment.recipe.views import View, Views, parse_views
from augment.support.errors import UserError
from augment.support.user_code import load_plugins

SplitName = Literal["train", "val"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)

# As in torchvision and timm. A pretrained model may bring its own.
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
        Flag(default=True, doc="compose adjacent geometry steps into one warp, adjacent color steps into one matrix")
    )
    clip: str = setting(
        Choice(
            default="end",
            options=("end", "each"),
            doc="clip colors to 0..255 after the last of adjacent color steps, or after each, as torchvision does",
        )
    )
    mean: tuple[float, float, float] | None = setting(
        Channels(optional=True, within=(0, 1), doc="RGB mean in 0..1. Default: the pretrained model's, else ImageNet's")
    )
    std: tuple[float, float, float] | None = setting(
        Channels(optional=True, within=(0, 10), above=0, doc="RGB standard deviation in 0..1. Default: as for mean")
    )
    min_visible: float = setting(
        Number(default=0.1, within=(0, 1), doc="minimum visible share of a box. Boxes below it are dropped")
    )
    min_area: float = setting(
        Number(
            default=1.0,
            within=(0, inf),
            doc="minimum visible area of a box in square pixels. Boxes below it are dropped",
        )
    )
    fill_label: int = setting(Count(default=255, within=(0, 255), doc="mask label for filled areas. 255 is ignored"))
    decode: str = setting(
        Choice(
            default="mixed",
            options=("auto", "cpu", "mixed"),
            doc="where to decode JPEGs if there is a GPU: partly on it (mixed; auto is the same), or on the CPU",
        )
    )
    cache: int | str = setting(
        CacheSize(
            default="off", doc="decoded images to keep in GPU memory: half of the free memory (gpu), or an amount"
        )
    )
    prefetch: int = setting(Count(default=4, within=(1, 64), doc="batches to prefetch"))
    hw_decoder_load: float | None = setting(
        Number(
            optional=True,
            within=(0, 1),
            doc="JPEG share of the GPU's hardware decoder, which rounds differently. Default: from sizes and threads",
        )
    )
    plugins: tuple[str, ...] = setting(Texts(default=(), doc="Python modules that declare your own ops", reach=IMPORTS))
    train: tuple[Step, ...] = ()  # in order of application
    val: tuple[Step, ...] = ()
    views: Views = field(default_factory=Views)  # of each image of train

    def steps(self, split: SplitName) -> tuple[Step, ...]:
        """Return the steps of a split."""
        return self.train if split == "train" else self.val


def parse_aug(given: object) -> Aug:
    """Validate the `aug` section and return it typed.

    Args:
        given: mapping with any of the keys of `Aug`. Null means no augmentation.
    """
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise UserError(f"aug: {given!r} is not allowed. Allowed: a mapping, or +aug=NAME for a file of conf/aug.")
    nested = ("train", "val", "views")
    check_known(given, {**settings(Aug), **dict.fromkeys(nested)}, "aug", {op: f"train.{op}" for op in OPS})
    plain = parse_params(settings(Aug), {n: v for n, v in given.items() if n not in nested}, "aug")
    load_plugins(plain["plugins"], "aug.plugins")
    train, val = (parse_steps(given.get(split), f"aug.{split}") for split in SPLITS)
    if mixing := [step.key for step in val if step.mixes]:
        raise UserError(f"aug.val.{mixing[0]}: mixes samples and their targets. Allowed: in aug.train only.")
    views = parse_views(given.get("views"), "aug.views", given.get("train"))
    return Aug(**plain, train=train, val=val, views=views)


def plain_views(aug: Aug) -> dict[str, Any]:
    """Return the views as a mapping of plain values, from which `parse_aug` makes the same views."""
    if not aug.views.named:
        return {name: getattr(aug.views, name) for name in settings(Views)}
    return {
        view.name: {
            **{name: plain_value(getattr(view, name)) for name in settings(View)},
            "steps": plain_steps(tuple(step for step in view.steps if step not in aug.train)),
        }
        for view in aug.views.named
    }


def doubts(aug: Aug) -> Iterator[str]:
    """Yield a note about each range that seems to be meant in another unit."""
    for key, step in _keyed(aug):
        for name, param in step.op.params.items():
            if isinstance(param, Range) and (note := param.doubts(step.params[name])):
                yield f"{key}.{name}: {param.show(step.params[name])} changes next to nothing; {note}"


def border_doubts(aug: Aug, unrepeated: str) -> Iterator[str]:
    """Yield a note about each border that repeats parts of the image, but not the targets `unrepeated`, see `Kind`."""
    for key, step in _keyed(aug):
        border = step.params.get("border", "constant")
        if unrepeated and border != "constant":
            yield (
                f"{key}: border {border} repeats parts of the image beyond its edges, without their {unrepeated}; "
                f"{key}.border=constant fills them"
            )


def _keyed(aug: Aug) -> Iterator[tuple[str, Step]]:
    """Yield all steps by their keys. A policy's steps follow the policy."""
    named = {f"aug.views.{v.name}.steps": tuple(s for s in v.steps if s not in aug.train) for v in aug.views.named}
    for key, steps in {**{f"aug.{split}": aug.steps(split) for split in SPLITS}, **named}.items():
        yield from _with_nested(steps, key)


def _with_nested(steps: tuple[Step, ...], key: str) -> Iterator[tuple[str, Step]]:
    for step in steps:
        yield f"{key}.{step.key}", step
        if step.op.nests:
            yield from _with_nested(step.steps, f"{key}.{step.key}.steps")
