"""PyTorch, imported on first use. The import takes seconds, and many commands do not need PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, ForwardRef

__all__ = ["F", "Tensor", "dist", "nn", "torch"]


class _Lazy:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch import distributed as dist
    from torch.nn import functional as F
else:
    torch, nn, F, dist = map(_Lazy, ("torch", "torch.nn", "torch.nn.functional", "torch.distributed"))
    # For annotations. `typing.get_type_hints` resolves it to torch.Tensor once PyTorch is imported.
    Tensor = ForwardRef("Tensor", module="torch")
