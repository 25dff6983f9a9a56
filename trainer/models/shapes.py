"""Building networks without their weights, to learn the shapes of their tensors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


@contextmanager
def only_shapes() -> Iterator[None]:
    """Let tensors that are made within have a shape and no values, on the device "meta"."""
    with torch.device("meta"), _Unfilled():
        yield


class _Unfilled(TorchFunctionMode):
    """Leaves out drawing values, for which PyTorch imports its compiler on that device: that takes seconds."""

    def __torch_function__(  # type: ignore[no-untyped-def]
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ):
        if func is Tensor.normal_ and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))
