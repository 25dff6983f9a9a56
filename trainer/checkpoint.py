"""Checkpoint files: written whole or not at all, read without running code; and states that go into them."""

import os
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from augment.errors import UserError, first_line

LAST, BEST = "last.pt", "best.pt"


def save(state: dict[str, Any], path: Path) -> None:
    """Write a state of plain values and tensors; whoever reads `path` meanwhile sees the old file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        torch.save(state, temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load(path: Path, device: torch.device | None = None) -> dict[str, Any]:
    """Read a state, its tensors to the device (default: the CPU).

    Raises:
        UserError: there is no such file, or it is no checkpoint.
    """
    if not path.is_file():
        inside = sorted(p.name for p in path.parent.glob("*.pt")) if path.parent.is_dir() else []
        raise UserError(f"{path}: no such checkpoint. The folder has {', '.join(inside) or 'none'}.")
    # Anything else torch.load would take for a format of its own past, and fail in any way.
    if not zipfile.is_zipfile(path):
        raise UserError(f"{path}: not a checkpoint, or cut short.")
    try:
        state = torch.load(path, map_location=device or "cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, LookupError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: not a checkpoint, or cut short ({first_line(error)}).") from error
    if not isinstance(state, dict):
        raise UserError(f"{path}: not a checkpoint of a run.")
    return state


def random_state() -> dict[str, Any]:
    """Return the states of PyTorch's generators."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def set_random_state(state: dict[str, Any]) -> None:
    """Take back what `random_state` returned."""
    # Generators take their states from the host, wherever the checkpoint's tensors were put.
    torch.set_rng_state(state["cpu"].cpu())
    # A run that is resumed on a machine with other GPUs cannot have their dropout masks.
    if len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([value.cpu() for value in state["cuda"]])


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of a model's gradients, by the names of their parameters."""
    return {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}


def set_gradients(model: nn.Module, gradients: Mapping[str, Tensor]) -> None:
    """Take back what `gradients_of` returned; parameters that are not in it have none."""
    for name, parameter in model.named_parameters():
        gradient = gradients.get(name)
        parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)
