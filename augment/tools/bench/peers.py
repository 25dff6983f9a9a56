"""Rows of `bench --peers`: the same model trained on the same photos, fed by us and by other libraries.

Rules of a fair comparison:

- One model is shared by all rows and trained by the same step: SGD with momentum, bfloat16 and channels_last on a GPU.
  The first row trains on one batch that stays in memory, which bounds all others. With `--model none` images are only
  brought to the device.
- Each library is used as its own documentation does, with the rules of `baselines` and `in_memory`: DALI op by op;
  torchvision in worker processes, or on the GPU image by image, decoded there by nvJPEG; kornia on the GPU, on crops
  that torchvision makes in worker processes.
- timm's loader has no warps: it crops, flips and changes colors, or runs timm's own RandAugment for `rand_augment`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.dlpack import from_dlpack

from augment.data.dataset import ImageRef
from augment.recipe.steps import Aug, Step
from augment.support.background import in_threads
from augment.support.errors import UserError
from augment.tools.bench import baselines, handwritten
from augment.tools.bench.baselines import PlainRecipe, TorchvisionDataset
from augment.tools.bench.contenders import WORKER_PREFETCHED, from_workers, loaded, no_cache, outputs, without_steps
from augment.tools.bench.in_memory import kornia_obstacle, kornia_steps
from augment.tools.bench.peer_datasets import Crops, TimmDataset
from augment.tools.bench.setup import DALI_PREFETCHED, Batches, Contender, Setup, Stream

with suppress(ImportError):  # see `torchvision_obstacle`
    from torchvision.io import ImageReadMode, decode_jpeg, read_file

CLASSES = 10

Feed = Callable[[Setup], Iterator[Tensor]]


class Training:
    """The model of all rows and its training step.

    Args:
        name: name of a timm model, or "none".

    Raises:
        UserError: there is no such model.
    """

    def __init__(self, name: str) -> None:
        if name != "none" and not _is_model(name):
            raise UserError(f"--model: timm has no model '{name}'. Allowed: the name of a timm model, or none.")
        self.name = name
        self._model: nn.Module | None = None
        self._optimizer: torch.optim.Optimizer | None = None

    def step(self, images: Tensor) -> None:
        """Train on a batch, (N, 3, size, size); all targets are class 0."""
        if self.name == "none":
            return
        model, optimizer = self._parts(images.device)
        targets = torch.zeros(len(images), dtype=torch.int64, device=images.device)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
            loss = cross_entropy(model(images.contiguous(memory_format=torch.channels_last)), targets)
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    def _parts(self, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
        if self._model is None or self._optimizer is None:
            import timm

            model = timm.create_model(self.name, num_classes=CLASSES).to(device, memory_format=torch.channels_last)
            self._model, self._optimizer = model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        return self._model, self._optimizer


def _is_model(name: str) -> bool:
    import timm

    return bool(timm.is_model(name))


def peers(model: str) -> tuple[Contender, ...]:
    """Return the rows.

    Args:
        model: see `Training`.
    """
    training = Training(model)

    def row(name: str, title: str, feed: Feed, obstacle: Callable[[Setup], str] = lambda setup: "") -> Contender:
        return Contender(name, title, partial(_start, training, feed), obstacle, is_bound=name == "fixed")

    # A batch that is on the device, without a model, is no work at all.
    bound = () if model == "none" else (row("fixed", "one fixed batch", _fixed),)
    return (
        *bound,
        row("fused", "this project", lambda setup: _ours(setup, setup.aug)),
        row("cached", "this project, decoder cache", lambda s: _ours(s, replace(s.aug, cache="gpu")), no_cache),
        row("dali", "DALI op by op", _dali, lambda setup: handwritten.untranslated(setup.plan.steps)),
        row("torchvision", "torchvision v2, worker processes", _torchvision, baselines.torchvision_obstacle),
        row("torchvision_gpu", "torchvision v2 on the GPU", _torchvision_gpu, _no_gpu_decoding),
        row("kornia", "kornia, crops by worker processes", _kornia, kornia_obstacle),
        row("timm", "timm's loader (no warps)", _timm, _no_timm),
    )


def _start(training: Training, feed: Feed, setup: Setup) -> Stream:
    # Alike for all rows: enough for the library that prefetches most.
    prefetched = max(DALI_PREFETCHED, WORKER_PREFETCHED * setup.workers + 1)
    warmup = -(-setup.photos // setup.batch_size) + prefetched  # an epoch fills the caches
    return Stream(_trained(training, feed, setup), prefetched, stride=setup.workers, warmup=warmup)


def _trained(training: Training, feed: Feed, setup: Setup) -> Batches:
    for images in feed(setup):
        training.step(images)
        yield len(images)


def _fixed(setup: Setup) -> Iterator[Tensor]:
    batch = torch.randn(setup.batch_size, 3, setup.aug.size, setup.aug.size, device=setup.device)
    while True:
        yield batch


def _ours(setup: Setup, aug: Aug) -> Iterator[Tensor]:
    for batch in loaded(setup, aug):
        yield batch.images


def _dali(setup: Setup) -> Iterator[Tensor]:
    for images in outputs(handwritten.handwritten_pipeline(setup), setup):
        yield from_dlpack(images.as_tensor()).permute(0, 3, 1, 2)


# --- torchvision and kornia ---


def _torchvision(setup: Setup) -> Iterator[Tensor]:
    return from_workers(TorchvisionDataset(setup.files, PlainRecipe.of(setup.aug)), setup)


def _torchvision_gpu(setup: Setup) -> Iterator[Tensor]:
    dataset = TorchvisionDataset((), PlainRecipe.of(setup.aug), device=setup.device)
    with in_threads(_read, _shuffled(setup), setup.threads, ahead=DALI_PREFETCHED) as read:
        for encoded in read:
            decoded = decode_jpeg(encoded, ImageReadMode.RGB, device=setup.device)
            yield torch.stack([dataset.transform(image) for image in decoded])


def _read(files: Sequence[ImageRef]) -> list[Tensor]:
    return [read_file(str(file)) for file in files]


def _no_gpu_decoding(setup: Setup) -> str:
    if setup.device.type != "cuda":
        return "no GPU"
    if not all(str(file).lower().endswith((".jpg", ".jpeg")) for file in setup.files[: setup.photos]):
        return "not all images are JPEG files"
    return baselines.torchvision_obstacle(setup)


def _kornia(setup: Setup) -> Iterator[Tensor]:
    apply = kornia_steps(setup, setup.plan.tree)
    for crops in from_workers(Crops(setup.files, PlainRecipe.of(without_steps(setup.aug))), setup):
        yield apply(crops)


# --- timm ---


def _timm(setup: Setup) -> Iterator[Tensor]:
    from timm.data import create_loader

    plan, cuda = setup.plan, setup.device.type == "cuda"
    named = {step.op.name: step for step in plan.tree}
    strengths = tuple(_strength(named.get(name)) for name in ("brightness", "contrast", "saturation"))
    policy = named.get("rand_augment")
    loader: Any = create_loader(
        TimmDataset(setup.files),
        plan.size,
        setup.batch_size,
        is_training=True,
        scale=plan.crop.params["area_range"],
        ratio=plan.crop.params["aspect_range"],
        hflip=named["flip"].p if "flip" in named else 0.0,
        color_jitter=strengths if any(strengths) else None,
        color_jitter_prob=max((named[name].p for name in ("brightness", "contrast", "saturation") if name in named),
                              default=None),
        auto_augment=policy and "rand-m{magnitude:g}-n{num_ops}-inc1".format(**policy.params),
        interpolation="bilinear",
        mean=plan.mean,
        std=plan.std,
        num_workers=setup.workers,
        use_prefetcher=cuda,
        pin_memory=cuda,
        device=setup.device,
    )  # fmt: skip
    context = get_context("forkserver")  # DALI does not survive a fork
    context.set_forkserver_preload([baselines.__name__])
    (loader.loader if cuda else loader).multiprocessing_context = context
    while True:
        for images, _ in loader:
            yield images


def _strength(step: Step | None) -> float:
    return 0.0 if step is None else max(abs(factor - 1) for factor in step.params["factor_range"])


def _no_timm(setup: Setup) -> str:
    return "" if setup.plan.crop.op.name == "random_resized_crop" else f"no translation of {setup.plan.crop.key}"


# --- files ---


def _shuffled(setup: Setup) -> Iterator[tuple[ImageRef, ...]]:
    """Yield batches of files endlessly, in a new order each epoch."""
    rng = np.random.default_rng(0)
    while True:
        order = rng.permutation(len(setup.files))
        yield from (tuple(setup.files[i] for i in some) for some in order.reshape(-1, setup.batch_size))
