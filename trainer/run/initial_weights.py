"""Weights to start from, `model.weights`: of one of our runs, or of a file as timm and torchvision write them.

Files are data: safetensors, or what `torch.save` wrote, of which only plain values and tensors are read.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from augment.data.dataset import same_outputs
from augment.params import Size
from augment.support.errors import UserError, first_line, nearest
from augment.support.files import expanded, near_file
from augment.support.formatting import amount, list_some, printable
from trainer.loop.checkpoint import BEST, check_tensors, read_plain
from trainer.models.registry import Model
from trainer.tasks.regress import MEAN, STD

_COUNTERS = "num_batches_tracked"  # of batch norm, which older files lack; nothing depends on their values
# Where training scripts keep the weights in their checkpoints; averaged ones first, as timm does.
_SECTIONS = ("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model")


@dataclass(frozen=True)
class Weights:
    """The weights in a file."""

    file: Path
    tensors: dict[str, Tensor]
    classes: tuple[str, ...] | None  # names of the model's outputs; None: the file does not say


def require_start(model: Model) -> None:
    """Check that the weights to start from can be had, without reading them: within seconds, before data checks."""
    model.require_weights()
    if model.weights is not None:
        _file_of(model.weights)


def check_weights(model: Model, network: nn.Module, classes: tuple[str, ...], size: Size) -> None:
    """Check that the weights to start from fit."""
    if model.weights is not None:
        _fit(read_weights(model.weights), model, network, classes, size)


def start_from(model: Model, network: nn.Module, classes: tuple[str, ...], size: Size) -> str:
    """Put the weights to start from, if there are any, into a network; return a sentence that says which, or nothing.

    See `check_weights` for the arguments and errors.
    """
    if model.weights is None:
        return ""
    weights = read_weights(model.weights)
    found = _fit(weights, model, network, classes, size)
    network.load_state_dict(found, strict=False)
    parts = [amount(len(found), "tensor")]
    new = [name for name in network.state_dict() if name not in found and not name.endswith(_COUNTERS)]
    if layers := sorted({name.rpartition(".")[0] or name for name in new}):
        parts.append(f"the head ({', '.join(layers)}) is new, for {amount(len(classes), 'output')}")
        if weights.classes is not None:
            parts.append(f"it was trained for {list_some(map(printable, weights.classes), 3)}")
    else:
        parts.append("with the head")
    return f"model.weights: {weights.file}: {'; '.join(parts)}"


def read_weights(given: str) -> Weights:
    """Read weights from a file, or the best ones from the folder of a run.

    Raises:
        UserError: there is no such file, it is of another kind, cut short, or holds more than values and tensors.
    """
    file = _file_of(given)
    if file.suffix.lower() == ".safetensors":
        try:
            saved: Any = load_file(file)
        except (SafetensorError, OSError, ValueError) as error:
            raise UserError(f"{file}: not a safetensors file, or cut short ({first_line(error)}).") from error
    elif not isinstance(saved := read_plain(file, old=True), dict):
        raise UserError(f"{file}: holds {type(saved).__name__}. Allowed: a mapping of names to tensors.")
    tensors = _tensors_in(saved, file)
    names = saved.get("classes") if "format" in saved else None
    known = isinstance(names, tuple | list) and all(isinstance(name, str) for name in names)
    check_tensors(tensors.values(), file)
    return Weights(file, tensors, tuple(names) if known and names is not None else None)


def _file_of(given: str) -> Path:
    path = expanded(given)
    file = path / BEST if path.is_dir() else path
    if not file.is_file():
        missing = f"no such file.{near_file(file)}"
        if path.is_dir():
            missing = f"the folder has no {BEST}. Allowed: the folder of a run, or a file."
        raise UserError(f"model.weights={given}: {'not a regular file.' if file.exists() else missing}")
    return file


def _tensors_in(saved: Mapping[str, Any], file: Path) -> dict[str, Tensor]:
    """Return the weights in what a file holds: the whole, or a section of a training script's checkpoint."""
    found = next((saved[name] for name in _SECTIONS if isinstance(saved.get(name), Mapping)), saved)
    odd = [name for name, value in found.items() if not (isinstance(name, str) and isinstance(value, Tensor))]
    if odd or not found:
        what = f"'{odd[0]}' is not a named tensor" if odd else "it is empty"
        raise UserError(f"{file}: {what}. Allowed: tensors by name, at the top or in {', '.join(_SECTIONS)}.")
    # The scale of numbers belongs to the data that they were learned from.
    return {name: tensor for name, tensor in found.items() if name not in (MEAN, STD)}


def _fit(weights: Weights, model: Model, network: nn.Module, classes: tuple[str, ...], size: Size) -> dict[str, Tensor]:
    """Match weights with a network; its head stays new if the weights are of other classes."""
    state = network.state_dict()
    head = head_of(model, classes, size)
    try:
        try:
            found = match(weights.tensors, state, head)
        except UserError:
            if (converted := _converted(model, weights, network)) is None:
                raise
            found = match(converted, state, head)
    except UserError as error:
        raise UserError(f"model.weights={weights.file}: {error}") from error
    if weights.classes is None or same_outputs(weights.classes, classes):
        return found
    return {name: tensor for name, tensor in found.items() if name not in head}


def head_of(model: Model, classes: tuple[str, ...], size: Size) -> list[str]:
    """Return the names of the tensors of a model that depend on the number of classes."""
    with torch.device("meta"):
        one, other = (model.untrained().build(len(classes) + more, size).state_dict() for more in (0, 1))
    return [name for name, tensor in one.items() if name not in other or tensor.shape != other[name].shape]


def _converted(model: Model, weights: Weights, network: nn.Module) -> Mapping[str, Tensor] | None:
    """Return weights of another layout as the model converts them, or None if it does not know how."""
    try:
        found = model.convert(weights.tensors, network)
    except (LookupError, RuntimeError, ValueError, TypeError, AttributeError, AssertionError):  # they are not of it
        return None
    return None if found is weights.tensors else found


def match(tensors: Mapping[str, Tensor], network: Mapping[str, Tensor], head: Collection[str]) -> dict[str, Tensor]:
    """Return the tensors of a file by their names in a network; only its head may be another one, or missing.

    If all names have a prefix that the network's lack, as of wrappers, it is ignored.

    The head's tensors are those that depend on the number of classes; only names, shapes and types count.

    Raises:
        UserError: they do not fit; the message says which, and begins with "not".
    """
    given = dict(tensors)
    while given and not any(name in network for name in given):
        prefix = next(iter(given)).partition(".")[0] + "."
        if not all(name.startswith(prefix) for name in given):
            break
        given = {name.removeprefix(prefix): tensor for name, tensor in given.items()}
    body = [name for name in network if name not in head and not name.endswith(_COUNTERS)]
    spare = [name for name in given if name not in network]
    if missing := [name for name in body if name not in given]:
        raise UserError(
            f"not the weights of this model: {len(missing)} of its {amount(len(body), 'tensor')} are missing, such as "
            f"'{missing[0]}'.{nearest(missing[0], spare)} Allowed: tensors by the names of the model's own."
        )
    if wrong := [name for name in body if not _fits(given[name], network[name])]:
        raise UserError(
            f"not the weights of this model: '{wrong[0]}' is {_shape(given[wrong[0]])}, and "
            f"{_shape(network[wrong[0]])} in the model ({amount(len(wrong), 'such tensor')})."
        )
    if spare:
        raise UserError(
            f"not the weights of this model, but of a larger one: {amount(len(spare), 'tensor')} would be left over, "
            f"such as '{spare[0]}'."
        )
    return {name: tensor for name, tensor in given.items() if _fits(tensor, network[name])}


def _fits(tensor: Tensor, own: Tensor) -> bool:
    return tensor.shape == own.shape and tensor.is_floating_point() == own.is_floating_point()


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "a single number"
