"""The rows of the benchmark: ways to bring the same images to the device."""

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from augment.cli.compose import Recipe
from augment.data.dataset import ImageRef, Split
from augment.data.images import are_paths, open_image, read_encoded, to_rgb
from augment.data.selection import whole_batches
from augment.pipeline.batch import Batch
from augment.pipeline.loader import Loader
from augment.pipeline.placement import place
from augment.pipeline.reading import Order
from augment.pipeline.transform import Transform
from augment.recipe.op import OPS
from augment.recipe.plan import Plan, build_plan
from augment.recipe.steps import Aug, Step, parse_steps
from augment.recipe.views import Views
from augment.support.errors import UserError, suggest
from augment.support.measurement import LeftOutError, Row, consumer, endless
from augment.support.text import amount
from augment.tools._photos import find_photos
from augment.tools.bench import dali, torchvision

_SIDE = 224  # px, of the images in memory

# More would exceed the page cache of a small machine and change no row's speed.
_MOST_IMAGES = 20_000


@dataclass(frozen=True)
class Setup:
    """What every row gets."""

    aug: Aug  # the recipe
    flags: Namespace  # the command's
    default: Callable[[], Sequence[ImageRef]]  # lists the images that are used without --photos

    def __str__(self) -> str:
        mean = sum(len(read_encoded(image)) for image in self.images) / len(self.images)
        return f"{amount(len(self.images), 'image')} of {mean / 1000:.0f} kB, batch {self.batch_size}"

    @cached_property
    def device(self) -> torch.device:
        """Where batches are delivered."""
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    @cached_property
    def plan(self) -> Plan:
        """The recipe's plan, fused as configured."""
        return build_plan(self.aug, "train")

    @cached_property
    def images(self) -> Sequence[ImageRef]:
        """The images, each once."""
        return find_photos(self.flags.photos, self.default, _MOST_IMAGES, check=False)

    @property
    def batch_size(self) -> int:
        """Images per batch."""
        return min(int(self.flags.batch_size), len(self.images))

    @cached_property
    def files(self) -> tuple[ImageRef, ...]:
        """The images of an epoch, in whole batches."""
        return whole_batches(self.images, self.batch_size)

    def paths(self) -> list[str]:
        """Return the files, for rows that read nothing else.

        Raises:
            LeftOutError: some images are stored in larger files.
        """
        if not are_paths(self.images):
            raise LeftOutError("the images are not separate files")
        return list(map(str, self.files))


def row(name: str, title: str, stream: Callable[[], Iterator[Sized]], **further: Any) -> Row:
    """Return the row of an endless stream of batches."""
    return Row(name, title, lambda: consumer(stream()), **further)


def recipe_row(setup: Setup, name: str, title: str, aug: Aug, **further: Any) -> Row:
    """Return the row of a recipe as in training."""
    return row(name, title, lambda: loaded(setup, aug), ahead=aug.prefetch + 1, **further)


def file_rows(setup: Setup) -> list[Row]:
    """Return the rows that start from files."""
    fused, workers = replace(setup.aug, fuse=True), setup.flags.workers

    def in_torchvision() -> Iterator[Tensor]:
        return torchvision.batches(torchvision.Images(setup.paths(), torchvision.transform(setup.plan)), setup)

    return [
        row("read", "read the files", lambda: dali.batches(setup, lambda: dali.read(setup)), is_bound=True),
        row("decode", "decode", lambda: dali.batches(setup, lambda: dali.image(setup).decode()), is_bound=True),
        recipe_row(setup, "crop", "crop + normalize", crop_of(setup.aug), is_bound=True),
        recipe_row(setup, "fused", "fused", fused, ours=True),
        recipe_row(setup, "steps", "step by step", replace(setup.aug, fuse=False)),
        row("dali", "DALI op by op", lambda: dali.op_by_op(setup)),
        row("cached", "fused, decoder cache", lambda: cached(setup), ahead=fused.prefetch + 1, ours=True),
        row("torchvision", "torchvision v2", in_torchvision, ahead=2 * workers + 1, stride=workers),
    ]


def op_rows(setup: Setup, names: Sequence[str]) -> list[Row]:
    """Return a row for each op: the recipe's crop, then the op on every image; "all" stands for all ops.

    Raises:
        UserError: there is no such op, or it has no effect by itself.
    """
    able = [name for name, op in OPS.items() if op.kind != "crop" and not op.nests]
    if unknown := [name for name in names if name not in (*able, "all")]:
        raise UserError(f"--ops: no op '{unknown[0]}' that has an effect after a crop.{suggest(unknown[0], able)}")
    crop, rows = crop_of(replace(setup.aug, views=Views())), []
    for name in able if "all" in names else names:
        aug = replace(crop, train=(*crop.train, *parse_steps({name: None}, "--ops")))
        rows.append(recipe_row(setup, f"op {name}", f"crop, {name}", aug))
    return rows


def crop_of(aug: Aug) -> Aug:
    """Return the recipe's crop and nothing else, of each view."""

    def crop(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        return tuple(step for step in steps if step.op.kind == "crop")

    named = tuple(replace(view, steps=crop(view.steps)) for view in aug.views.named)
    return replace(aug, train=crop(aug.train), views=replace(aug.views, named=named))


def loaded(setup: Setup, aug: Aug) -> Iterator[Batch]:
    """Return the batches of a recipe, see `endless`."""
    placement = place(aug, setup.images, setup.device, threads=setup.flags.threads)
    loader = Loader(
        build_plan(aug, "train"),
        Split(setup.files, (0,) * len(setup.files)),
        Order(setup.batch_size, 0),
        placement,
        classes="0123456789",  # for ops that mix targets
    )
    return endless(loader)


def cached(setup: Setup) -> Iterator[Batch]:
    """Yield batches of the fused recipe from decoded images in GPU memory.

    Raises:
        LeftOutError: decoded images cannot be cached.
    """
    if setup.device.type != "cuda":
        raise LeftOutError("no GPU")
    setup.paths()  # others are not cached
    return loaded(setup, replace(setup.aug, fuse=True, cache="gpu"))


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
        transform = torchvision.transform(setup.plan)
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
            images.append(np.asarray(to_rgb(image).resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)))
    batch = torch.from_numpy(np.stack(images)).to(setup.device)
    while True:
        yield apply(batch)
