"""Checks the arguments of `augment.make_loader` and `augment.Transform`."""

import logging
import os
import re
from collections.abc import Iterable
from math import inf
from typing import Any

import torch
from nvidia.dali import backend
from torch import distributed as dist

from augment.data.sources import SOURCES
from augment.params import Count, Flag, Param, settings
from augment.support.device import missing_gpu
from augment.support.errors import UserError, nearest, suggest
from augment.support.process import launched_ranks

logger = logging.getLogger(__name__)

_ARGUMENTS: dict[str, Param[Any]] = {
    "batch_size": Count(within=(1, 10**6), doc=""),
    "classes": Count(optional=True, within=(1, 10**6), doc=""),
    "drop_last": Flag(doc=""),
    "half": Flag(doc=""),
    "rank": Count(doc=""),
    "seed": Count(optional=True, within=(-inf, inf), doc=""),
    "threads": Count(optional=True, within=(1, 1024), doc=""),
    "world_size": Count(within=(1, 10**6), doc=""),
}

# Arguments of PyTorch's DataLoader, and the arguments that replace them here.
_DATALOADER_ARGUMENTS = {"num_workers": "threads", "pin_memory": "device", "shuffle": "split"}


def check_arguments(recipe: object, **arguments: object) -> None:
    """Check the recipe, and the values of other arguments, each passed under its own name."""
    if not hasattr(recipe, "aug"):
        raise UserError(f"recipe: {recipe!r:.80} is not a recipe. Pass the result of augment.load_recipe.")
    for name, value in arguments.items():
        _ARGUMENTS[name].parse(value, name)


def reject_misspelled(given: Iterable[str], arguments: Iterable[str]) -> None:
    """Raise a UserError if a given name is probably a misspelled argument, not a misspelled setting of a source."""
    params = [param for source in SOURCES.values() for param in settings(source).items()]
    names, aliases = {name for name, _ in params}, {alias for _, param in params for alias in param.aliases}
    for name in given:
        nearest_argument = nearest(name, [*arguments, *_DATALOADER_ARGUMENTS])
        nearest_of_all = nearest(name, [*names, *arguments, *_DATALOADER_ARGUMENTS])
        if nearest_argument and nearest_argument == nearest_of_all and name not in names | aliases:
            raise UserError(f"{name}: unknown argument.{suggest(name, arguments, _DATALOADER_ARGUMENTS)}")


def warn_of_ranks(*, rank: int, world_size: int | None = None) -> None:
    """Warn if each process of a distributed run reads all images, or if all processes draw the same random values."""
    own, ranks = int(os.environ.get("RANK") or 0) if launched_ranks() > 1 else 0, launched_ranks()
    if dist.is_available() and dist.is_initialized():
        own, ranks = dist.get_rank(), dist.get_world_size()
    if world_size == 1 < ranks:
        logger.warning("world_size=1: each of the %d processes reads all images. Pass rank and world_size.", ranks)
    elif world_size is None and rank == 0 < own:
        logger.warning("rank=0, but this is rank %d of %d. All ranks draw the same values. Pass the rank.", own, ranks)


def torch_device(name: torch.device | str) -> torch.device:
    """Return a device by name. "cuda" is PyTorch's current GPU. "auto" is the same GPU, or the CPU without a GPU."""
    if str(name) == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", str(name)):
        meant = f"cuda:{name}" if str(name).isdecimal() else {"gpu": "cuda"}.get(str(name).lower())
        near = f" Did you mean '{meant}'?" if meant else ""
        raise UserError(f"device: {str(name)!r} is not allowed.{near} Allowed: auto, cpu, cuda, cuda:N.")
    device, seen = torch.device(name), torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= seen:
        raise missing_gpu(f"device={name}", seen)
    if device.type == "cuda" and not backend.RestrictPinnedMemUsage():  # type: ignore[attr-defined]
        logger.warning(
            "small images can be corrupted on a busy GPU, because DALI was used before augment was imported, or "
            "DALI_RESTRICT_PINNED_MEM=0. Import augment first (docs/reliability.md)."
        )
    return torch.device("cuda", torch.cuda.current_device()) if str(name) == "cuda" else device
