"""Estimate from below what a training batch takes of the memory, before one is made."""

import math

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from augment.params import Size
from augment.support.errors import UserError
from augment.support.process import host_memory, local_rank
from augment.support.text import amount
from trainer.run.config import Config

# Batches of pixels in memory: the one that is trained on, and a prefetched one.
_BATCHES = 2

# A network keeps less than so many times the pixels of an image. Smaller batches are not looked at: to run a network on
# the device "meta", PyTorch imports its compiler, which takes seconds.
_KEPT = 400


def check_memory(config: Config, network: nn.Module) -> None:
    """Check that training batches may fit in memory."""
    fit = config.fit
    for key, batch_size, size in fit.fed(config.aug.size):
        count = min(batch_size, len(config.dataset.train))
        if (most := largest_batch(config, network, count, size)) < count:
            where = "GPU" if fit.torch_device().type == "cuda" else "host"
            raise UserError(
                f"{key}={batch_size}: {amount(count, 'image')} at {size} px do not fit in the memory of the {where} "
                f"({_memory(config) / 2**30:,.0f} GiB) with {config.model_name}. Allowed: at most {most:,}, a generous "
                "estimate, and fit.accumulate for steps of more images; fit.auto_batch_size=true; or smaller images."
            )


def largest_batch(config: Config, network: nn.Module, count: int, size: Size) -> int:
    """Return how many images of a size a batch may have: `count`, or fewer, if that is more than could fit."""
    fit, memory, pixels = config.fit, _memory(config), 3 * math.prod(size) * (2 if config.fit.half else 4)
    if count * pixels * _KEPT <= memory:
        return count
    kept = 0 if fit.compile else bytes_kept(network, size) // (2 if fit.half else 1)
    ranks = fit.gpus or 1
    return min(count, memory // (_BATCHES * pixels + kept) // ranks * ranks)


def bytes_kept(network: nn.Module, size: Size) -> int:
    """Return the bytes that autograd keeps of each image for the backward pass, in float32."""

    def kept(count: int) -> int:
        sizes: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            sizes[StorageWeakRef(storage).cdata] = storage.nbytes()  # type: ignore[no-untyped-call]
            return tensor

        with saved_tensors_hooks(keep, lambda tensor: tensor):
            output = network(torch.empty(count, 3, *size, device="meta"))
        del output  # until here, no two storages have the same address
        return sum(sizes.values())

    mode = network.training
    try:
        network.train()
        return kept(3) - kept(2)
    finally:
        network.train(mode)


def _memory(config: Config) -> int:
    """Return the bytes of memory of all GPUs, or of all hosts, that train together."""
    device, ranks = config.fit.torch_device(), config.fit.gpus or 1
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory) * ranks
    return host_memory() * max(1, ranks // local_rank()[1])
