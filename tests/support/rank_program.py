"""A program of fits by several ranks. On stdin, JSON: for each folder, the fits of each rank, as names and overrides.

The fit "wrong" is a mistake, "command" is run as by the command line, and is the last. What rank N
prints is in N.txt in the folder. Ranks are forks of this process: starting others would take seconds.
"""

import json
import multiprocessing
import os
import socket
import sys
from importlib import import_module

import composed
import hydra
import pytest
from rank_runs import variables

from augment.support.errors import UserError
from trainer import train
from trainer.cli.main import main
from trainer.loop import ranks

for module in ("trainer.run.train", "torch._dynamo"):
    import_module(module)
ranks.CALLS_PER_EXCHANGE = 1
hydra.compose = composed.compose


def be(rank: int, size: int, port: int, folder: str, fits: list[tuple[str, list[str]]]) -> None:
    """Be a rank."""
    os.chdir(folder)
    with open(f"{rank}.txt", "w") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    os.environ |= variables(rank, size, port)
    for name, overrides in fits:
        if name == "wrong":
            with pytest.raises(UserError) as caught:
                train(*overrides, folder=name)
            sys.stdout.write(f"{caught.value}\n")
        elif name == "command":
            assert main([*overrides, f"hydra.run.dir={name}"]) == 0
        else:
            train(*overrides, folder=name)
    sys.stdout.flush()
    ranks.leave()


for folder, of_ranks in json.load(sys.stdin).items():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        given = (len(of_ranks), free.getsockname()[1], folder)
    started = [
        multiprocessing.get_context("fork").Process(target=be, args=(rank, *given, fits))
        for rank, fits in enumerate(of_ranks)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join()
    if any(process.exitcode for process in started):
        sys.exit(f"a rank in {folder} failed")
