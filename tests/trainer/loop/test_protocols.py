"""Every loader that a fit may be given has all that the loop asks for."""

import inspect

import pytest
from fakes import MemoryLoader

from augment.pipeline.loader import Loader
from trainer.loop.protocols import BatchLoader
from trainer.loop.resizing import StagedLoader


@pytest.mark.parametrize("loader", [Loader, StagedLoader, MemoryLoader])
def test_a_loader_has_the_methods_of_the_protocol(loader: type) -> None:
    needed = {name: method for name, method in vars(BatchLoader).items() if inspect.isfunction(method)}
    needed = {
        name: method for name, method in needed.items() if not name.startswith("_") or name[2:-2] in ("len", "iter")
    }
    state = {"state_dict", "load_state_dict"}
    assert {"__len__", "__iter__", "batches_in", "images_in", "prepare", "end_pass", *state} == set(needed)
    for name, method in needed.items():
        assert list(inspect.signature(getattr(loader, name)).parameters) == list(inspect.signature(method).parameters)
