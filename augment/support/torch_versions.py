"""The private functions of PyTorch that we use. Tests list the PyTorch versions that have them."""

from inspect import unwrap
from types import MethodType
from typing import Any

import torch
from torch.optim import Optimizer


def keep_eager() -> None:
    """Prevent the methods of optimizers from importing TorchDynamo, which takes a second.

    PyTorch wraps these methods to hide them from torch.compile. The wrappers import TorchDynamo on the first call, even
    if nothing is compiled. We never trace optimizers, because `fit.compile` compiles the model. Call this function
    before optimizers are created.
    """
    for method in vars(Optimizer).values():
        if (inner := getattr(method, "__wrapped__", None)) is not None:
            # PyTorch caches the method that TorchDynamo would create under this name.
            inner.__dict__.setdefault("__dynamo_disable", inner)


def step_eagerly(optimizer: Optimizer) -> None:
    """Prevent the step of a PyTorch optimizer from importing TorchDynamo. The hooks of the step still run."""
    step = unwrap(type(optimizer).step)
    hooked = Optimizer.profile_hook_step(torch.no_grad()(step))
    optimizer.step = MethodType(hooked, optimizer)  # type: ignore[method-assign]


def end_allocating(index: int, pool: Any) -> None:
    """Make a GPU's allocator leave the memory pool of a CUDA graph whose recording failed. PyTorch does not do this.

    Raises:
        RuntimeError: the allocator has already left the pool.
    """
    torch._C._cuda_endAllocateToPool(index, pool)


def free_workspaces() -> None:
    """Free the workspaces of matrix multiplications. PyTorch keeps one per stream, 32 MiB each on an H100."""
    torch._C._cuda_clearCublasWorkspaces()
