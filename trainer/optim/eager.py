"""Optimizers that do not import TorchDynamo, which takes seconds and serves torch.compile alone.

PyTorch wraps methods of its optimizers so that torch.compile leaves them out; the wrappers import it on the first call,
whether anything is compiled or not. Here no optimizer is ever traced: `fit.compile` compiles the model.
"""

from inspect import unwrap
from types import MethodType

import torch
from torch.optim import Optimizer


def keep_eager() -> None:
    """Keep the methods that all optimizers share from importing it; call this before one is made."""
    for method in vars(Optimizer).values():
        if (inner := getattr(method, "__wrapped__", None)) is not None:
            # Where PyTorch keeps what it would make of the method with TorchDynamo.
            inner.__dict__.setdefault("__dynamo_disable", inner)


def step_eagerly(optimizer: Optimizer) -> None:
    """Keep the step of one of PyTorch's own optimizers from importing it; its hooks are called as before."""
    step = unwrap(type(optimizer).step)
    hooked = Optimizer.profile_hook_step(torch.no_grad()(step))
    optimizer.step = MethodType(hooked, optimizer)  # type: ignore[method-assign]
