"""Checkpoint files. They are written completely or not at all."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Mapping
from copy import copy, deepcopy
from dataclasses import MISSING, dataclass, field, fields, replace
from itertools import count, takewhile
from pathlib import Path
from typing import Any, TypeVar

from augment.params.pixel_format import PixelFormat, parse_format
from augment.support.errors import UserError
from augment.support.files import atomic_path
from augment.support.lazy_torch import Tensor, nn, torch
from augment.support.untrusted_files import explained_damage, regular
from trainer.loop.torch_files import DamagedError, check_tensors, is_whole, read_plain, tensors_in

LAST, BEST = "last.pt", "best.pt"

# Version of the file format. Increase it when the classes below or the states inside them change.
FORMAT = 1

_MAX_GROUPS = 10_000  # parameter groups in an optimizer. No model has so many


@dataclass(frozen=True, kw_only=True)
class FitState:
    """The content of last.pt: everything that a resumed fit needs to match an uninterrupted fit."""

    position: tuple[int, int]  # the epoch, and the number of its training batches that were fetched
    model: dict[str, Tensor]  # state of the trained model, without the fixed weights of LoRA
    optimizer: dict[str, Any]
    gradients: dict[str, Tensor]  # gradients that no step has used yet, by parameter name
    loader: dict[str, Any]
    callbacks: dict[str, dict[str, Any]]  # states by the keys from `trainer.loop.callback.with_keys`
    random: dict[str, Any]  # states of the random generators, see `random_state`
    # For each of the ranks 1, 2, ..., the states that differ from the states of rank 0: gradients, loader, random, and
    # callbacks with `per_rank` (`trainer.loop.callback.Callback`). Within a step, the model's buffers also differ.
    others: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ranks(self) -> int:
        """Number of ranks that trained."""
        return 1 + len(self.others)

    def check_ranks(self, ranks: int) -> None:
        """Check that a number of ranks can resume from this state.

        Raises:
            UserError: a different number of ranks saved the state between the batches of a step.
        """
        if self.gradients and self.position[1] and self.ranks != ranks:
            raise UserError(
                f"fit.gpus={ranks}, but the run stopped between the batches of a step (fit.accumulate), with "
                f"fit.gpus={self.ranks}. Resume with fit.gpus={self.ranks}."
            )

    def for_rank(self, rank: int) -> FitState:
        """Return the state for a rank. A rank that the saved run did not have gets the state of rank 0."""
        if not 0 < rank < self.ranks:
            return self
        own = dict(self.others[rank - 1])
        model, callbacks = self.model | own.pop("buffers"), self.callbacks | own.pop("callbacks")
        return replace(self, model=model, callbacks=callbacks, **own)


@dataclass(frozen=True, kw_only=True)
class BestModel:
    """The content of best.pt: the validated model of the best epoch, and its scores."""

    model: dict[str, Tensor]
    row: dict[str, float]
    # The results for each validation image: the tensors of `trainer.tasks.metric.Samples` by attribute. None: the epoch
    # had no validation.
    samples: dict[str, Tensor] | None
    classes: tuple[str, ...]  # names of the classes, labels, numbers or keypoints
    task: str
    # For each label, or each class of a detector, the lowest probability with which predictions list it. Empty: the
    # task's default.
    thresholds: tuple[float, ...] = field(default_factory=tuple)
    # The pixel format of the images, see `PixelFormat.plain`, with the mean and std of the run. Empty: 8-bit RGB.
    pixels: dict[str, Any] = field(default_factory=dict)

    @property
    def pixel_format(self) -> PixelFormat:
        return parse_format(self.pixels or None, "pixels")


S = TypeVar("S", bound=FitState | BestModel)


log = logging.getLogger(__name__)


def save(state: FitState | BestModel, path: Path, *, keep: int = 0) -> None:
    """Write a state. Other processes see the old file until the new file is complete.

    `keep` is the number of older files to keep, as last.1.pt (the newest), last.2.pt and so on.
    """
    with atomic_path(path, durable=True) as part:
        with part.open("wb") as file:
            try:
                torch.save({"format": FORMAT, **vars(state)}, file)
            except RuntimeError as error:
                if isinstance(error.__context__, OSError | KeyboardInterrupt):  # PyTorch raises its own error instead
                    raise error.__context__ from None
                raise
        for number in range(keep, 1, -1):
            if (newer := _older(path, number - 1)).is_file():
                os.replace(newer, _older(path, number))
        if keep and path.is_file():
            with atomic_path(_older(path, 1)) as second:
                try:
                    os.link(regular(path), second)
                except OSError:  # a file system without hard links
                    second.write_bytes(regular(path).read_bytes())


def load(path: Path, kind: type[S], device: torch.device | None = None) -> S:
    """Read a state, with its tensors on the device. None: the CPU.

    If last.pt is damaged, the newest undamaged older file is read instead, with a warning.

    Raises:
        UserError: the file is missing, or is not a checkpoint of this kind and format.
    """
    collects = gc.isenabled()
    gc.disable()  # otherwise Python searches the values of a large file for garbage again and again
    try:
        return _load(path, kind, device)
    except DamagedError:
        existing = takewhile(_is_unlinked, (_older(path, number) for number in count(1)))
        if kind is not FitState or (older := next(filter(is_whole, existing), None)) is None:
            raise
        state = _load(older, kind, device)
        log.warning("%s is missing or damaged. The older checkpoint %s is used instead.", path, older.name)
        return state
    finally:
        if collects:
            gc.enable()


def _older(path: Path, number: int) -> Path:
    return path.with_suffix(f".{number}{path.suffix}")


def _is_unlinked(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _load(path: Path, kind: type[S], device: torch.device | None) -> S:
    if not path.is_file():
        inside = sorted(p.name for p in path.parent.glob("*.pt")) if path.parent.is_dir() else []
        raise DamagedError(f"{path} does not exist. The folder contains {', '.join(inside) or 'no checkpoint'}.")
    state = read_plain(regular(path), device)
    if not isinstance(state, dict) or "model" not in state or not isinstance(state.get("format"), int | None):
        raise UserError(f"{path} is not the checkpoint of a run. Use another checkpoint.")
    found = state.pop("format", None)
    if found != FORMAT:
        raise UserError(
            f"{path} has format {found}, but this version of dali-trainer reads format {FORMAT}. Use the version that "
            "wrote it, or start a new run."
        )
    needed = {part.name for part in fields(kind) if part.default_factory is MISSING}
    if not needed <= state.keys() <= {part.name for part in fields(kind)}:
        raise UserError(f"{path} is not the {LAST if kind is FitState else BEST} of a run. Use another checkpoint.")
    _check_types(state, path)
    return kind(**state)


def _check_types(state: Mapping[str, Any], path: Path) -> None:
    """Check the types of all values, because an invalid file must not cause a traceback.

    Raises:
        UserError: a value has the wrong type.
    """
    with explained_damage(path):
        check_tensors(tensors_in(state), path)
        for name, is_valid in _CHECKS.items():
            if name in state and not is_valid(state[name]):
                raise UserError(f"{path}: '{name}' has a value of the wrong type. Use another checkpoint.")
        if len(state.get("thresholds", ())) not in (0, len(state.get("classes", ()))):
            raise UserError(f"{path}: its thresholds do not belong to its classes. Use another checkpoint.")
        parse_format(state.get("pixels") or None, f"{path}: pixels")
    for name in ("model", "samples", "gradients"):
        check_tensors((state.get(name) or {}).values(), path)


def _is_dict(value: object) -> bool:
    return isinstance(value, dict)


def _is_position(value: Any) -> bool:
    is_pair = isinstance(value, tuple) and len(value) == 2
    return is_pair and all(isinstance(number, int) and 0 <= number < 2**31 for number in value)


def _is_row(value: object) -> bool:
    """Return whether a value maps names to floats, or to integers that a float can hold."""
    return isinstance(value, dict) and all(
        isinstance(name, str) and (isinstance(one, float) or (isinstance(one, int) and abs(one) < 2**53))
        for name, one in value.items()
    )


def _is_optimizer(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    groups = value.get("param_groups") or []
    return isinstance(groups, list) and len(groups) <= _MAX_GROUPS


# For each value of a state, whether its type is right. Tensors and pixel formats are checked separately.
_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "position": _is_position,
    "model": _is_dict,
    "optimizer": _is_optimizer,
    "gradients": _is_dict,
    "loader": _is_dict,
    "callbacks": _is_dict,
    "random": _is_dict,
    "others": lambda value: isinstance(value, list) and all(map(_is_dict, value)),
    "row": _is_row,
    "samples": lambda value: value is None or _is_dict(value),
    "classes": lambda value: isinstance(value, tuple | list) and all(isinstance(name, str) for name in value),
    "task": lambda value: isinstance(value, str),
    "thresholds": lambda value: (
        isinstance(value, tuple | list) and all(isinstance(one, int | float) and 0 <= one <= 1 for one in value)
    ),
}


def first_difference(saved: Mapping[str, Tensor], network: nn.Module) -> str:
    """Return the name of the first tensor that only one of a state and a network has, or whose shape differs.

    Empty: the state fits the network.
    """
    saved_shapes = {name: value.shape for name, value in saved.items()}
    shapes = {name: value.shape for name, value in network.state_dict().items()}
    return next((name for name in (*shapes, *saved_shapes) if saved_shapes.get(name) != shapes.get(name)), "")


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the states of PyTorch's random generators on the CPU, and on the device if it is a GPU."""
    cuda = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore the states from `random_state`, even on another GPU."""
    # Generators read their states from host memory.
    torch.set_rng_state(state["cpu"].cpu())
    if state["cuda"] and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"][0].cpu(), device)


def to_host(value: Any) -> Any:
    """Return a copy of plain values, with their tensors in host memory."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        copied = copy(value)  # keeps attributes, such as `_metadata` of a module's state
        copied.update((key, to_host(one)) for key, one in value.items())
        return copied
    if isinstance(value, list | tuple):
        return type(value)(map(to_host, value))
    return deepcopy(value)
