"""Build the loaders and the learner of a configuration."""

import gc
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from nvidia.dali import backend
from torch import nn

from augment.data.dataset import Split
from augment.data.own.prefetch import end_readers
from augment.params.pixel_format import RGB
from augment.pipeline.graph.decoding import OutputFormat, Placement
from augment.pipeline.graph.device_placement import place
from augment.pipeline.graph.sample_order import Order, RankShard
from augment.pipeline.loader import Loader
from augment.recipe.plan import Plan, build_plan
from augment.support.background import frequent_thread_switches
from augment.support.errors import UserError
from augment.support.nested import section_of
from augment.support.process import keep_freed_memory, return_freed_memory
from augment.support.secrets import as_written
from augment.support.seeds import derive_seed
from augment.support.torch_versions import free_workspaces
from trainer.callbacks.adapters import Adapters
from trainer.loop.callback import Callback, RunDescription
from trainer.loop.learner import Learner
from trainer.loop.objective import Objective
from trainer.loop.progressive_resizing import StagedLoader
from trainer.loop.ranks import current
from trainer.models.lora import base_state
from trainer.models.registry import build_network
from trainer.optim.optimizers import make_optimizer
from trainer.run.config.schema import Config
from trainer.run.initial_weights import read_base, start_from
from trainer.tasks.loss import LossFunction
from trainer.tasks.registry import loss_settings_of, monitored, task_named
from trainer.tasks.task import AUTO, Task

# On a GPU, validation batches are 4 times as large as training batches, up to 256 images, and never smaller. Small
# batches leave the GPU waiting for Python. Without gradients, the large batches need about as much memory as training.
_VAL_TIMES, _VAL_IMAGES = 4, 256

log = logging.getLogger(__name__)


def make_loader(
    config: Config,
    plan: Plan,
    split: Split,
    placement: Placement | None = None,
    *,
    classes: Sequence[str] = (),
    frames: bool = False,
) -> Loader:
    """Make the loader of a split.

    By default, the decoder's settings (`placement`) are chosen for the split's images, and `classes` are the dataset's.
    With `frames`, all batches have frames, see `Task.frames_of`. Batches with masks, boxes or keypoints always have
    them.
    """
    device = config.fit.torch_device()
    if placement is None:
        placement = place(config.aug, split.files, device, threads=config.fit.cpu_threads())
    ranks = current()
    if config.fit.batch_size == "auto":
        raise UserError("fit.batch_size=auto works only when training a run. Set a number.")
    batch_size = config.fit.images // ranks.size
    if plan.split == "val" and device.type == "cuda":
        batch_size = max(batch_size, min(_VAL_TIMES * batch_size, _VAL_IMAGES))
    return Loader(
        plan,
        split,
        Order(
            batch_size, config.seed, RankShard(ranks.rank, ranks.size), config.fit.drop_last and plan.split == "train"
        ),
        placement.on(device, config.fit.cpu_threads()),  # rank 0 chose the placement, perhaps for another GPU
        OutputFormat(half=device.type == "cuda" and config.fit.half, frames=frames),
        classes=classes or config.dataset.classes,
    )


def make_train_loader(config: Config, split: Split, placement: Placement | None = None) -> Loader | StagedLoader:
    """Make the loader of the train split, with the configured stages."""
    split = replace(split, kind=split.kind.learned)
    stages = config.fit.full_stages(config.aug.size)
    if not stages:
        return make_loader(config, build_plan(config.recipe, "train"), split, placement)
    loaders = []
    for stage in stages:
        plan = build_plan(replace(config.recipe, size=stage.size), "train")
        staged = replace(config, fit=replace(config.fit, batch_size=stage.batch_size))
        loaders.append(make_loader(staged, plan, split, placement))
    return StagedLoader(stages, loaders)


@dataclass(frozen=True)
class Loaders:
    """The loaders of both splits, which decode on the same device."""

    train: Loader | StagedLoader
    val: Loader

    def close(self) -> None:
        """End the threads of both pipelines, even if they were only built and never used."""
        self.train.close()
        self.val.close()


def make_loaders(config: Config) -> Loaders:
    """Make the loaders of a run.

    Unless the run is resumed, the first pipeline is built in the background.
    """
    dataset, fresh = config.dataset, config.fit.resume is None
    train = dataset.train
    files = train.files[: train.images] + dataset.val.files
    placement = place(config.aug, files, config.fit.torch_device(), threads=config.fit.cpu_threads())
    placement = current().broadcast(placement)
    loaders = Loaders(
        make_train_loader(config, train, placement),
        make_loader(config, build_plan(config.recipe, "val"), dataset.val, placement),
    )
    if fresh:
        loaders.train.prepare()  # while the model is built
    return loaders


def make_learner(
    config: Config,
    loaders: Loaders,
    folder: Path | None = None,
    *,
    callbacks: Sequence[Callback],
    group: str | None = None,
    name: str = "",
    began: float | None = None,
    distill: Callable[[Config, LossFunction], LossFunction] = lambda _, loss: loss,
) -> Learner:
    """Make the learner of a configuration. Random initial weights depend only on the seed.

    `distill` adds the teacher to the training loss. It is an argument, because `trainer.run.teacher` needs this module,
    so this module cannot import it.
    """
    fit, dataset, device = config.fit, config.dataset, config.fit.torch_device()
    if device.type == "cuda":
        # cuDNN's heuristics choose well. Benchmarking all algorithms for each shape takes seconds and gains only 1%.
        torch.backends.cudnn.benchmark = False
    torch.manual_seed(config.seed)
    task = task_named(dataset.task)
    network, notes = _initial_network(config, task)
    if base_state(network):
        callbacks = (*callbacks, Adapters())
    given = dataset.train.weights
    weights = torch.tensor(given, dtype=torch.float32, device=device) if given else None
    loss, val_loss = task.make_losses(fit, network, device, weights)
    loss = distill(config, loss)
    ranks = current()
    if fit.sync_batchnorm and ranks.size > 1:
        from timm.layers import convert_sync_batchnorm  # imports all of timm

        network = convert_sync_batchnorm(network)  # including timm's norms with a built-in activation
        fit = replace(fit, graph=False)  # a graph that records communication must not outlive the ranks
    if getattr(config.model, "checkpointing", False):
        fit = replace(fit, graph=False)  # gradient checkpointing saves the random state, which a graph cannot record
    plan = loaders.val.plan
    learner = Learner(
        network,
        loaders.train,
        loaders.val,
        fit,
        optimizer=partial(make_optimizer, fit),
        objective=Objective(task, loss, val_loss),
        callbacks=[callback for callback in callbacks if ranks.is_main or not callback.main_only],
        run=RunDescription(
            as_written(config.resolved),
            group,
            name,
            config.run.written_tags,
            dataset.val.files,
            validation=_validation_settings(config, loaders.val, task),
            notes=notes,
            began=began or monotonic(),
            folder=folder if ranks.is_main else None,
            classes=dataset.classes,
            pixels=RGB if plan.pixels == RGB else replace(plan.pixels, mean=plan.mean, std=plan.std),
        ),
    )
    if not ranks.is_main:
        torch.manual_seed(derive_seed(config.seed, "rank", ranks.rank) % 2**63)  # each rank draws its own dropout masks
    return learner


def _initial_network(config: Config, task: Task[Any]) -> tuple[nn.Module, tuple[str, ...]]:
    """Return the network with its initial weights, and notes about them, which are also logged.

    A resumed run reads its weights from the folder `fit.resume`: the checkpoint, and the base of adapters.
    """
    fit, dataset = config.fit, config.dataset
    model = config.model if fit.resume is None else config.model.untrained()
    network = build_network(model, task.outputs(len(dataset.classes)), config.aug.size, dataset.pixels.channels)
    found = (
        start_from(model, network, dataset.classes, config.aug.size),
        model.adapt(network),
        task.prepare(network, fit, dataset.train, dataset.classes),
    )
    notes = tuple(note for note in found if note)
    for note in notes:
        log.info(note)
    if base_state(network):
        network.load_state_dict(read_base(Path(fit.resume)) if fit.resume else {}, strict=False)
    return network, notes


def _validation_settings(config: Config, loader: Loader, task: Task[Any]) -> dict[str, Any]:
    """Return the settings that validation scores depend on, see `RunDescription.validation`."""
    identity = loader.identity
    monitor = monitored(section_of(config.resolved["callbacks"], "checkpoint").get("monitor", AUTO), task)
    return {
        "aug.val": identity["plan"],
        "data": identity["files"],
        "fit.tta": config.fit.tta,
        "callbacks.checkpoint.monitor": monitor,
        **{key: config.resolved["fit"][key.removeprefix("fit.")] for key in loss_settings_of(monitor, task)},
    }


@contextmanager
def session(config: Config) -> Iterator[None]:
    """Configure PyTorch and this process for a run, and release memory after it.

    With `fit.deterministic`, operations without a deterministic algorithm raise an error.
    """
    device, before = config.fit.torch_device(), torch.are_deterministic_algorithms_enabled()
    if config.fit.deterministic:
        # cuBLAS needs this to be deterministic.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if device.type == "cpu":
        keep_freed_memory()
    try:
        # Libraries use PyTorch's current GPU to allocate memory and to synchronize.
        with frequent_thread_switches(), torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            yield
    finally:
        if config.fit.deterministic:  # only then, because the call imports PyTorch's compiler
            torch.use_deterministic_algorithms(before)
        release_memory()


def release_memory() -> None:
    """Release the memory that libraries keep in pools after a run, so that a sweep does not run out of it."""
    gc.collect()
    end_readers()
    backend.ReleaseUnusedMemory()  # type: ignore[attr-defined]
    if torch.cuda.is_available():
        free_workspaces()  # cuBLAS keeps one per stream, and each run has its own stream
        torch.cuda.empty_cache()
    return_freed_memory()
