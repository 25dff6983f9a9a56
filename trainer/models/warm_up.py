"""Loading the GPU's kernels early: libraries do it on first use, which takes longer than a short epoch.

So a copy of the model makes a step while the first images are being prepared.
"""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer


def warm_up(
    model: nn.Module,
    optimizer: Callable[[nn.Module], Optimizer],
    *,
    batch_size: int,
    size: int,
    half: bool,
    autocast: Callable[[str], AbstractContextManager[Any]],
) -> None:
    """Make one training step on a batch of blank images, with a copy of the model, and discard it.

    Args:
        model: on the device where it will be trained, in channels_last memory.
        optimizer: makes the optimizer.
        batch_size: images in a batch.
        size: side of the images, in pixels.
        half: whether the images are float16.
        autocast: makes the context of the forward pass, from the type of the device.
    """
    device = next(model.parameters()).device
    dtype = torch.float16 if half else torch.float32
    # Leave the run's random numbers as they are.
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        twin = copy.deepcopy(model).train()
        # At least two, on which any batch norm can train: in a run of single images they are frozen.
        images = torch.zeros(max(2, batch_size), 3, size, size, dtype=dtype, device=device)
        with autocast(device.type):
            output = twin(images.contiguous(memory_format=torch.channels_last))
        output.float().logsumexp(dim=1).mean().backward()
        optimizer(twin).step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
