"""The rows of the benchmark of training: the loader, a learner, and a bare loop."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from augment.data.dataset import Split
from augment.data.selection import whole_batches
from augment.data.sources import load_dataset
from augment.pipeline.batch import Batch
from augment.pipeline.graph import Placement
from augment.pipeline.loader import Loader
from augment.pipeline.placement import place
from augment.recipe.plan import build_plan
from augment.support.timing import Result, Timer
from trainer.callbacks.recorder import Recorder
from trainer.callbacks.scheduler import ParamScheduler
from trainer.loop.callback import Callback, CancelEpoch, Phase
from trainer.loop.learner import Learner
from trainer.optim.schedule import constant
from trainer.run.build import make_learner, make_loader, make_loaders
from trainer.run.config import Config
from trainer.tools.bench.by_hand import ByHand
from trainer.tools.bench.windows import Consume, Metered, TimedRow

# Batches before a window on a GPU: the time to start a step is their median.
_STARTS = 5
_MIB = 2**20

# Placements to be compared, as overrides.
PLACEMENTS: Mapping[str, Mapping[str, Any]] = {
    "aug.decode=mixed": {"decode": "mixed", "cache": "off"},
    "aug.decode=cpu": {"decode": "cpu", "cache": "off"},
    "aug.cache=gpu": {"decode": "mixed", "cache": "gpu"},
}

Row = tuple[Result, Callable[[float], Timer]]


class _OnlyTraining(Callback):
    """Ends an epoch after its training pass."""

    order = Phase.LAST

    def after_train(self, learner: Learner) -> None:
        raise CancelEpoch


class Rows:
    """Makes the rows, which share a learner, a bare loop, and a loader for each placement.

    Attributes:
        memory: MiB of GPU memory while there are a learner and a loader, and no bare loop yet; None on the CPU.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._device = config.fit.torch_device()
        callbacks = (Recorder(), ParamScheduler({"lr": constant(0.0)}), _OnlyTraining())
        loaders = make_loaders(config)
        self._learner = make_learner(config, loaders, callbacks=callbacks)
        self._dataset = load_dataset(config.data)
        self._loaders: list[Loader] = []
        self._stream = self._batches(loaders.train.placement)
        self.memory: dict[str, int] | None = None

    def make(self, *, placements: bool) -> list[Row]:
        """Return the rows, in the order of the table, each with a function that warms it up."""
        gpu = self._device.type == "cuda"
        starts = _STARTS if gpu else 1
        ahead = max(starts, self._config.aug.prefetch + 1)
        left_out = "" if self._config.fit.accumulate == 1 else "is written for fit.accumulate=1"

        def real(consume: Consume, stream: Iterator[Batch] = self._stream) -> Callable[[float], Timer]:
            return TimedRow(lambda: stream, consume, ahead=ahead).warm_up

        def fixed(consume: Consume) -> Callable[[float], Timer]:
            return TimedRow(self._synthetic, consume, ahead=starts).warm_up

        def fed(seconds: float) -> Timer:
            timer = real(self._train)(seconds)
            self._measure_memory()
            return timer

        rows = [
            (Result("loader", "loader alone", is_bound=True), real(_take)),
            (Result("synthetic", "training, synthetic", is_bound=True), fixed(self._train)),
            (Result("fed", "training, fed", ours=True), fed),
            (Result("bare_synthetic", "bare loop, synthetic", left_out=left_out), fixed(self._train_bare)),
            (Result("bare", "bare loop, fed", left_out=left_out), real(self._train_bare)),
        ]
        for name, changes in PLACEMENTS.items() if placements else ():
            stream = self._batches(self._place(changes)) if gpu else self._stream
            rows.append(
                (Result(name, f"training, {name}", left_out="" if gpu else "no GPU"), real(self._train, stream))
            )
        return rows

    def close(self) -> None:
        """Release what the loaders hold."""
        self._stream = iter(())
        for loader in self._loaders:
            loader.close()

    def _place(self, changes: Mapping[str, Any]) -> Placement:
        files = (*self._dataset.train.files, *self._dataset.val.files)
        aug = replace(self._config.aug, **changes)
        return place(aug, files, self._device, threads=self._config.fit.cpu_threads(), trial=False)

    def _batches(self, placement: Placement) -> Iterator[Batch]:
        """Yield the batches of endless passes."""
        train = self._dataset.train
        targets = dict(zip(train.files, train.targets, strict=True))
        whole = whole_batches(train.files, self._config.fit.batch_size)
        split = Split(whole, tuple(targets[file] for file in whole))
        loader = make_loader(self._config, build_plan(self._config.aug, "train"), split, placement)
        self._loaders.append(loader)
        if placement.cache:
            for _ in loader:  # the first pass fills the cache
                pass
        while True:
            yield from loader

    @cached_property
    def _fixed(self) -> Batch:
        """One batch, which stays on the device."""
        return next(self._stream)

    def _synthetic(self) -> Iterator[Batch]:
        while True:
            yield self._fixed

    def _train(self, batches: Metered) -> None:
        self._learner.train_loader = batches
        self._learner.fit()

    @cached_property
    def _bare(self) -> ByHand:
        model = self._config.model.untrained().build(len(self._dataset.classes), self._config.aug.size)
        return ByHand(self._config.fit, model, self._learner.loss_function, self._device)

    def _train_bare(self, batches: Metered) -> None:
        self._bare.train(batches)

    def _measure_memory(self) -> None:
        if self._device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self._device)
            peak = torch.cuda.max_memory_allocated(self._device)
            self.memory = {"peak": peak // _MIB, "used": (total - free) // _MIB, "total": total // _MIB}


def _take(batches: Metered) -> None:
    for _ in batches:
        pass
