"""The GPU's libraries load their kernels when these are first asked for, which takes longer than a short epoch.

So that happens while the first pictures are still being prepared, and to a copy of the model.
"""

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.optim import Optimizer


def warm_up(
    model: nn.Module,
    optimizer: Callable[[nn.Module], Optimizer],
    *,
    batch_size: int,
    size: int,
    bf16: bool,
    half: bool,
) -> None:
    """Make one training step on a batch of blank pictures, with a copy of the model; nothing of it stays.

    Args:
        model: on the device where it will be trained, in channels_last memory.
        optimizer: makes the optimizer.
        batch_size: pictures in a batch.
        size: side of the pictures, in pixels.
        bf16: run the forward pass in bfloat16 autocast.
        half: pictures are float16.
    """
    device = next(model.parameters()).device
    dtype = torch.float16 if half else torch.float32
    # The random numbers of the run are not to depend on it.
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        twin = copy.deepcopy(model).train()
        # Two at least, of which any batch norm can be trained: those of a run of single pictures are frozen.
        images = torch.zeros(max(2, batch_size), 3, size, size, dtype=dtype, device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            output = twin(images.contiguous(memory_format=torch.channels_last))
        output.float().logsumexp(dim=1).mean().backward()
        optimizer(twin).step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
