"""What is used of PyTorch without a public name; tests name the versions in which it was found."""

from inspect import unwrap
from types import MethodType
from typing import Any

import torch
from torch.optim import Optimizer


def keep_eager() -> None:
    """Keep methods of all optimizers from importing TorchDynamo, which takes a second and serves torch.compile alone.

    PyTorch wraps them so that torch.compile leaves them out; the wrappers import it on the first call, whether anything
    is compiled or not. Here no optimizer is ever traced: `fit.compile` compiles the model. Call this first.
    """
    for method in vars(Optimizer).values():
        if (inner := getattr(method, "__wrapped__", None)) is not None:
            # Where PyTorch keeps what it would make of the method with TorchDynamo.
            inner.__dict__.setdefault("__dynamo_disable", inner)


def step_eagerly(optimizer: Optimizer) -> None:
    """Keep the step of one of PyTorch's own optimizers from importing it; its hooks are called as before."""
    step = unwrap(type(optimizer).step)
    hooked = Optimizer.profile_hook_step(torch.no_grad()(step))
    optimizer.step = MethodType(hooked, optimizer)  # type: ignore[method-assign]


def end_allocating(index: int, pool: Any) -> None:
    """Stop a GPU's allocator from using a pool after a recording that failed, which PyTorch leaves undone.

    Raises:
        RuntimeError: it has stopped.
    """
    torch._C._cuda_endAllocateToPool(index, pool)


def free_workspaces() -> None:
    """Free the workspaces that PyTorch keeps for each stream that ever multiplied matrices: 32 MiB on an H100."""
    torch._C._cuda_clearCublasWorkspaces()
