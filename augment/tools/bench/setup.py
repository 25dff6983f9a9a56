"""What every row of the benchmark gets, and how a row is described."""

from argparse import Namespace
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import torch

from augment.data.dataset import ImageRef
from augment.data.selection import whole_batches
from augment.recipe.plan import Plan, build_plan
from augment.recipe.steps import Aug
from augment.support.memory import keep_freed_memory

Batches = Generator[int, None, None]

_CPU = torch.device("cpu")

# Batches that DALI prefetches, plus one in progress.
DALI_PREFETCHED = 5


@dataclass(frozen=True)
class Setup:
    """What every contender gets.

    Attributes:
        aug: the recipe.
        files: the images of an epoch, in whole batches; see `whole_batches`.
        photos: number of distinct images.
        batch_size: images per batch.
        threads: CPU threads of a DALI pipeline.
        workers: worker processes of a DataLoader.
        device: where batches are delivered.
    """

    aug: Aug
    files: tuple[ImageRef, ...]
    photos: int
    batch_size: int
    threads: int = 1
    workers: int = 1
    device: torch.device = _CPU

    @staticmethod
    def of(aug: Aug, files: Sequence[ImageRef], flags: Namespace) -> "Setup":
        """Return the setup for this machine; on the CPU, freed memory is kept as in training."""
        batch_size = min(flags.batch_size, len(files))
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if device.type == "cpu":
            keep_freed_memory()
        whole = whole_batches(files, batch_size)
        return Setup(aug, whole, len(files), batch_size, flags.threads, flags.workers, device)

    @property
    def plan(self) -> Plan:
        """The recipe's plan, fused as configured."""
        return build_plan(self.aug, "train")


@dataclass(frozen=True)
class Stream:
    """A running contender.

    Attributes:
        batches: endless; yields the number of images of each batch, which is then on the device.
        prefetched: batches that may be ready before they are requested, and so must not be timed.
        stride: batches that are finished at the same time, as each worker process works on one.
        warmup: batches until the speed is steady.
    """

    batches: Batches
    prefetched: int = DALI_PREFETCHED
    stride: int = 1
    warmup: int = 2 * DALI_PREFETCHED


@dataclass(frozen=True)
class Contender:
    """A way to bring images to the device; a row of the table.

    Attributes:
        name: its name on the command line.
        title: its name in the table.
        start: makes a stream.
        obstacle: returns the reason why it cannot run here, "" if it can.
        is_bound: whether it does less work than the recipe, and so is an upper bound.
    """

    name: str
    title: str
    start: Callable[[Setup], Stream]
    obstacle: Callable[[Setup], str] = lambda setup: ""
    is_bound: bool = False
