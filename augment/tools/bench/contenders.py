"""The contenders of the benchmark: ways to bring the same images to the device, each an endless stream of batches."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from nvidia.dali.pipeline import Pipeline
from torch import Tensor

from augment.data.dataset import Split
from augment.data.images import are_paths
from augment.pipeline.batch import Batch
from augment.pipeline.loader import Loader
from augment.pipeline.placement import place
from augment.recipe.op import OPS, find_op
from augment.recipe.plan import build_plan
from augment.recipe.steps import Aug, Step, parse_steps
from augment.recipe.views import Views
from augment.support.errors import UserError, suggest
from augment.tools.bench import baselines, handwritten
from augment.tools.bench.baselines import PilDataset, PlainRecipe, TorchvisionDataset, data_loader
from augment.tools.bench.setup import DALI_PREFETCHED, Contender, Setup, Stream

# Batches that PyTorch's DataLoader prefetches per worker.
WORKER_PREFETCHED = 2


def find_contenders(names: Sequence[str], contenders: Sequence[Contender]) -> list[Contender]:
    """Return contenders by name, in the order of the table; all of them if no name is given.

    Raises:
        UserError: there is no such row; the message suggests the closest one.
    """
    known = {row.name: row for row in contenders}
    return [known[name] for name in select_rows(names, known)]


def select_rows(names: Sequence[str], known: Collection[str]) -> list[str]:
    """Return the known names that are among `names`, or all of them if that is empty.

    Raises:
        UserError: a name is not known; the message suggests the closest one.
    """
    for name in names:
        if name not in known:
            raise UserError(f"--rows: unknown row '{name}'.{suggest(name, known)}")
    return [name for name in known if not names or name in names]


def recipe_stream(setup: Setup, aug: Aug | None = None) -> Stream:
    """Return the stream of a recipe as in training, by default of the configured one."""
    return Stream(len(batch) for batch in loaded(setup, aug or setup.aug))


def op_contenders(names: Sequence[str]) -> list[Contender]:
    """Return a contender for each op: the recipe's crop, then the op on every image; "all" stands for all ops.

    Raises:
        UserError: there is no such op, or it has no effect by itself.
    """
    able = [name for name, op in OPS.items() if op.kind != "crop" and not op.nests]
    for name in names:
        if name != "all" and find_op(name, "--ops").name not in able:
            raise UserError(f"--ops: '{name}' has no effect by itself after a crop. Allowed: {', '.join(able)}.")
    wanted = able if "all" in names else names
    return [Contender(f"op {name}", f"crop, {name}", partial(_op, name)) for name in wanted]


def _op(name: str, setup: Setup) -> Stream:
    aug = without_steps(replace(setup.aug, views=Views()))
    return recipe_stream(setup, replace(aug, train=(*aug.train, *parse_steps({name: None}, "--ops"))))


# --- this project ---


def without_steps(aug: Aug) -> Aug:
    """Return the recipe's crop and nothing else, of each view."""

    def crop(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        return tuple(step for step in steps if step.op.kind == "crop")

    named = tuple(replace(view, steps=crop(view.steps)) for view in aug.views.named)
    return replace(aug, train=crop(aug.train), views=replace(aug.views, named=named))


def loaded(setup: Setup, aug: Aug) -> Iterator[Batch]:
    """Yield batches of a recipe as in training, endlessly."""
    split = Split(setup.files, (0,) * len(setup.files))
    loader = Loader(
        build_plan(aug, "train"),
        split,
        batch_size=setup.batch_size,
        seed=0,
        device=setup.device,
        classes="0123456789",  # for ops that mix targets
        placement=place(aug, setup.files[: setup.photos], setup.device, threads=setup.threads),
        threads=setup.threads,
    )
    try:
        while True:
            yield from loader
    finally:
        loader.close()


def _cached(setup: Setup) -> Stream:
    # The first epoch fills the cache.
    warmup = -(-setup.photos // setup.batch_size) + 2 * DALI_PREFETCHED
    return replace(recipe_stream(setup, replace(setup.aug, fuse=True, cache="gpu")), warmup=warmup)


def no_cache(setup: Setup) -> str:
    """Return the reason why decoded images cannot be cached, "" if they can."""
    if setup.device.type != "cuda":
        return "no GPU"
    return "" if are_paths(setup.files) else "the images are not separate files"


# --- DALI by hand ---


def _dali(build: Callable[[Setup], Pipeline], setup: Setup) -> Stream:
    return Stream(setup.batch_size for _ in outputs(build(setup), setup))


def outputs(pipeline: Pipeline, setup: Setup) -> Iterator[Any]:
    """Yield the batches of a pipeline with one output, endlessly."""
    # As in the loader, without waiting for the GPU.
    stream = torch.cuda.current_stream() if setup.device.type == "cuda" else None
    pipeline.build()
    while True:
        yield from pipeline.run(stream)


# --- PyTorch's DataLoader ---


def _workers(dataset: type[PilDataset] | type[TorchvisionDataset], setup: Setup) -> Stream:
    made = dataset(setup.files, PlainRecipe.of(setup.aug))
    prefetched = WORKER_PREFETCHED * setup.workers + 1
    batches = (len(images) for images in from_workers(made, setup))
    return Stream(batches, prefetched, stride=setup.workers, warmup=prefetched)


def from_workers(dataset: PilDataset | TorchvisionDataset, setup: Setup) -> Iterator[Tensor]:
    """Yield the images that worker processes make, (N, 3, size, size) on the device, endlessly."""
    cuda = setup.device.type == "cuda"
    loader = data_loader(dataset, batch_size=setup.batch_size, workers=setup.workers, pin_memory=cuda)
    while True:
        for images, _ in loader:
            yield images.to(setup.device, non_blocking=True)


CONTENDERS = (
    Contender("read", "read the files", partial(_dali, handwritten.read_pipeline), is_bound=True),
    Contender("decode", "decode", partial(_dali, handwritten.decode_pipeline), is_bound=True),
    Contender("crop", "crop + normalize", lambda setup: recipe_stream(setup, without_steps(setup.aug)), is_bound=True),
    Contender("fused", "fused", lambda setup: recipe_stream(setup, replace(setup.aug, fuse=True))),
    Contender("steps", "step by step", lambda setup: recipe_stream(setup, replace(setup.aug, fuse=False))),
    Contender(
        "dali",
        "DALI op by op",
        partial(_dali, handwritten.handwritten_pipeline),
        lambda setup: handwritten.untranslated(setup.plan.steps),
    ),
    Contender("cached", "fused, decoder cache", _cached, no_cache),
    Contender("torchvision", "torchvision v2", partial(_workers, TorchvisionDataset), baselines.torchvision_obstacle),
    Contender("pil", "PIL", partial(_workers, PilDataset), baselines.obstacle),
)
