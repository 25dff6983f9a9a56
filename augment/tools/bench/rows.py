"""The benchmark's rows: different ways to load the same images to the device."""

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from nvidia.dali import fn, pipeline_def

from augment.cli.benchmark import LeftOutError, Row, consumer, endless
from augment.data.dataset import ImageRef, Split
from augment.data.images import are_paths, read_encoded
from augment.pipeline.batch import Batch
from augment.pipeline.graph.decoding import GraphImage, Placement
from augment.pipeline.graph.device_placement import place
from augment.pipeline.graph.sample_order import Order
from augment.pipeline.loader import Loader
from augment.recipe.plan import Plan, build_plan
from augment.recipe.step import Step
from augment.recipe.steps import Aug
from augment.support.dali_versions import Node
from augment.support.formatting import amount
from augment.tools._photos import find_photos


@dataclass(frozen=True)
class Setup:
    """The settings of all rows."""

    aug: Aug  # the recipe
    flags: Namespace  # of the command
    default: Callable[[], Sequence[ImageRef]]  # lists the images to use without --photos

    def __str__(self) -> str:
        mean = sum(len(read_encoded(image)) for image in self.images) / len(self.images)
        return f"{amount(len(self.images), 'image')} of {mean / 1000:.0f} kB, batch {self.batch_size}"

    @cached_property
    def device(self) -> torch.device:
        """The device that receives the batches."""
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    @cached_property
    def plan(self) -> Plan:
        """The recipe's plan, fused as configured."""
        return build_plan(self.aug, "train")

    @cached_property
    def images(self) -> Sequence[ImageRef]:
        """At most 20,000 images. More would exceed the page cache of a small machine."""
        return find_photos(self.flags.photos, self.default, 20_000, check=False)

    @property
    def batch_size(self) -> int:
        """Images per batch."""
        return min(int(self.flags.batch_size), len(self.images))

    @cached_property
    def files(self) -> tuple[ImageRef, ...]:
        """The images, repeated to fill at least 32 whole batches. A partial batch would affect the timings."""
        batches = max(-(-len(self.images) // self.batch_size), 32)
        return tuple(self.images[index % len(self.images)] for index in range(batches * self.batch_size))

    def paths(self) -> list[str]:
        """Return the paths of the files, for rows that can read only separate files.

        Raises:
            LeftOutError: some images are stored in larger files.
        """
        if not are_paths(self.images):
            raise LeftOutError("the images are not separate files")
        return list(map(str, self.files))


def row(name: str, title: str, stream: Callable[[], Iterator[Sized]], **further: Any) -> Row:
    """Return a row that consumes an endless stream of batches."""
    return Row(name, title, lambda: consumer(stream()), **further)


def recipe_row(setup: Setup, name: str, title: str, aug: Aug, **further: Any) -> Row:
    """Return a row that runs a recipe as in training."""
    return row(name, title, lambda: loaded(setup, aug), ahead=aug.prefetch + 1, **further)


def file_rows(setup: Setup) -> list[Row]:
    """Return the rows of a recipe: its variants, and upper bounds that do less work."""
    fused = replace(setup.aug, fuse=True)
    return [
        row("read", "read the files", lambda: outputs(setup, lambda: read(setup)), is_bound=True),
        row("decode", "decode", lambda: outputs(setup, lambda: image(setup).decode()), is_bound=True),
        recipe_row(setup, "crop", "crop + normalize", crop_of(setup.aug), is_bound=True),
        recipe_row(setup, "fused", "fused", fused, ours=True),
        recipe_row(setup, "steps", "step by step", replace(setup.aug, fuse=False)),
        row("cached", "fused, decoder cache", lambda: cached(setup), ahead=fused.prefetch + 1, ours=True),
    ]


def outputs(setup: Setup, define: Callable[[], Node], *, conditionals: bool = False) -> Iterator[Any]:
    """Yield the batches of a pipeline with one output endlessly. Like the loader, do not wait for the GPU."""
    cuda = setup.device.type == "cuda"
    pipeline = pipeline_def(define, enable_conditionals=conditionals)(
        batch_size=setup.batch_size,
        num_threads=setup.flags.threads,
        device_id=0 if cuda else None,
        exec_dynamic=True,
        seed=0,
    )
    stream = torch.cuda.current_stream() if cuda else None
    pipeline.build()
    while True:
        yield from pipeline.run(stream)


def read(setup: Setup) -> Node:
    """Read the files."""
    encoded, _ = fn.readers.file(files=setup.paths(), shuffle_after_epoch=True)
    return encoded


def image(setup: Setup) -> GraphImage:
    """Return an image in the graph, for decoding the whole image or a window."""
    return GraphImage(read(setup), Placement().on(setup.device, setup.flags.threads), seed=0)


def crop_of(aug: Aug) -> Aug:
    """Return a recipe without its steps, except the crop of each view."""

    def crop(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        return tuple(step for step in steps if step.op.kind == "crop")

    named = tuple(replace(view, steps=crop(view.steps)) for view in aug.views.named)
    return replace(aug, train=crop(aug.train), views=replace(aug.views, named=named))


def loaded(setup: Setup, aug: Aug) -> Iterator[Batch]:
    """Yield a recipe's batches, epoch after epoch without end."""
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
    setup.paths()  # the cache supports only separate files
    return loaded(setup, replace(setup.aug, fuse=True, cache="gpu"))
