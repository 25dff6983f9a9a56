"""A program of fits by two ranks, of which one may do otherwise than the other.

Its argument is JSON: for each fit, the name of a function below and its arguments. So is what it prints: for each fit,
what both ranks returned or raised. Ranks are forks of this process: starting another one would take seconds.
"""

import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

import torch
from fakes import MemoryLoader, make_learner, noise_loader, on, tiny_model
from torch import Tensor, nn
from torch import distributed as dist

from augment.pipeline.batch import Batch
from trainer.loop.callback import CANCELS, Callback
from trainer.loop.learner import Learner
from trainer.loop.ranks import join

FORK = multiprocessing.get_context("fork")
PATIENCE = 60.0  # seconds after which ranks hang


def cancels(
    rank: int, event: str, levels: Sequence[str | None], at: Sequence[int] = (2, 2), epoch: int = 0, **options: Any
) -> str:
    """Let each rank leave a level, if it has one, at an event of an epoch and a training batch."""

    def cancel(learner: Learner) -> None:
        if levels[rank] and learner.progress.epoch == epoch and learner.progress.position.batch == at[rank]:
            raise CANCELS[levels[rank]]

    return weights(tiny_model(), on(event, cancel), **options)


def branches(rank: int, first: Sequence[int]) -> str:
    """Let each rank use a parameter from a training batch on."""

    class Branched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = tiny_model()
            self.factor = nn.Parameter(torch.ones(()))
            self.batches = 0

        def forward(self, images: Tensor) -> Tensor:
            self.batches += self.training
            output: Tensor = self.stem(images)
            return output * self.factor if self.batches >= first[rank] else output

    return weights(Branched())


class Shared(MemoryLoader):
    """The same noise on each rank, which has an equal share of it."""

    def __init__(self, ranks: int) -> None:
        noise = noise_loader(6)
        super().__init__(noise.images, noise.targets)
        self.ranks = ranks

    def __iter__(self) -> Iterator[Batch]:
        yield from (replace(batch, share=1 / self.ranks) for batch in super().__iter__())


def skips(rank: int, level: str, ranks: int = 2) -> str:
    """Leave out every other step."""

    def cancel(learner: Learner) -> None:
        if learner.progress.batches_done % 2:
            raise CANCELS[level]

    return weights(tiny_model(), on("before_step", cancel), train=Shared(ranks))


def weights(model: nn.Module, *callbacks: Callback, **options: Any) -> str:
    """Fit, and return a number that depends on all weights, as text."""
    make_learner(*callbacks, model=model, **options).fit()
    return str(sum(float(p.detach().double().norm()) for p in model.parameters()))


def in_ranks(action: Callable[[int], str], size: int = 2) -> list[str]:
    """Return what a function returned or raised in each rank."""
    pipes = [FORK.Pipe() for _ in range(size)]
    started = [FORK.Process(target=be, args=(rank, size, action, pipes[rank][1])) for rank in range(size)]
    for process in started:
        process.start()
    # Only now, as a fork could inherit a lock of the store's thread.
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    for ours, _ in pipes:
        ours.send(store.port)
    ended = [ours.recv() if ours.poll(PATIENCE) else "hangs" for ours, _ in pipes]
    for process in started:
        process.kill()
        process.join()
    return ended


def be(rank: int, size: int, action: Callable[[int], str], pipe: Connection) -> None:
    """Be a rank."""
    given = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "localhost"}
    given["MASTER_PORT"] = pipe.recv()
    # As by torchrun, whose own process has the store.
    os.environ |= {name: str(value) for name, value in given.items()} | {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    join()
    try:
        ended = action(rank)
    except Exception as error:
        ended = f"{type(error).__name__}: {error}"
    pipe.send(ended)
    os._exit(0)  # as a rank does that has failed


if __name__ == "__main__":
    functions = {function.__name__: function for function in (cancels, branches, skips)}
    import_module("torch._dynamo")  # else the first optimizer of each rank imports it
    fits = [partial(functions[name], **arguments) for name, arguments in json.loads(sys.argv[1])]
    sys.stdout.write(json.dumps([in_ranks(fit) for fit in fits]))
