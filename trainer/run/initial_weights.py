"""Initial weights, `model.weights`: from a run's folder, or from a file of timm, torchvision or other programs.

Weights are safetensors or `torch.save` files. Reading them never runs code: only plain values and tensors are read.
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
from augment.support.errors import UserError, first_line
from augment.support.files import expanded, near_file, require_in
from augment.support.formatting import amount, list_some, printable
from augment.support.untrusted_files import damage_errors, regular
from trainer.callbacks.adapters import BASE
from trainer.loop.checkpoint import BEST
from trainer.loop.torch_files import MAX_PICKLE, check_tensors, read_plain
from trainer.models.registry import Model, build_network
from trainer.tasks.regress import MEAN, STD

_COUNTERS = "num_batches_tracked"  # older files lack these counters of batch norms, and no result depends on them
_MAX_WRAPPERS = 10  # prefixes that are removed. A name in a file may have millions
# The keys under which training scripts save weights. Averaged weights come first, as in timm.
_SECTIONS = ("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model")


@dataclass(frozen=True)
class Weights:
    """The weights in a file."""

    file: Path
    tensors: dict[str, Tensor]
    classes: tuple[str, ...] | None  # the names of the model's outputs, if the file has them


def require_start(model: Model) -> None:
    """Check that the initial weights exist, without reading them."""
    model.require_weights()
    if getattr(model, "lora", None) and not (model.weights or getattr(model, "pretrained", False)):
        raise UserError(
            "model.lora: only the adapters are trained, so the other weights must be trained already. Set "
            "model.pretrained=true or model.weights=FILE."
        )
    if model.weights is not None:
        _file_of(model.weights)


def check_weights(model: Model, network: nn.Module, classes: tuple[str, ...], size: Size) -> None:
    """Check that the initial weights fit the network."""
    if model.weights is not None:
        _fit(read_weights(model.weights), model, network, classes, size)


def start_from(model: Model, network: nn.Module, classes: tuple[str, ...], size: Size) -> str:
    """Load the initial weights, if any, into a network, and describe them in one sentence.

    See `read_weights` and `match` for the errors.
    """
    if model.weights is None:
        return ""
    weights = read_weights(model.weights)
    found = _fit(weights, model, network, classes, size)
    network.load_state_dict(found, strict=False)
    parts = [amount(len(found), "tensor")]
    new = [name for name in network.state_dict() if name not in found and not name.endswith(_COUNTERS)]
    if layers := sorted({name.rpartition(".")[0] or name for name in new}):
        if weights.classes is not None:
            parts.append(f"trained for {list_some(map(printable, weights.classes), 3)}")
        parts.append(f"with a new head ({', '.join(layers)}) for {amount(len(classes), 'output')}")
    else:
        parts.append("with the head")
    return f"model.weights: {weights.file}: {', '.join(parts)}"


def read_weights(given: str) -> Weights:
    """Read weights from a file, or the best weights from a run's folder.

    Raises:
        UserError: the file is missing, damaged or not a weights file, or contains more than values and tensors.
    """
    file = _file_of(given)
    if file.suffix.lower() == ".safetensors":
        try:
            with file.open("rb") as stream:
                if (size := int.from_bytes(stream.read(8), "little")) > MAX_PICKLE:  # a million tensors take a minute
                    raise ValueError(f"its list of tensors has {size:,} bytes, and the limit is {MAX_PICKLE:,}")
            saved: Any = load_file(file)
        # `damage_errors` includes a lack of memory, because a small sparse file can claim to be huge.
        except damage_errors(SafetensorError, OSError) as error:
            raise UserError(
                f"{file}: not a safetensors file, or an incomplete one ({first_line(error)}). Save it again."
            ) from error
    elif not isinstance(saved := read_plain(file, old=True), dict):
        raise UserError(f"{file}: holds a {type(saved).__name__}, but weights map names to tensors. Save a state_dict.")
    tensors = _tensors_in(saved, file)
    names = saved.get("classes") if "format" in saved else None
    known = isinstance(names, tuple | list) and all(isinstance(name, str) for name in names)
    check_tensors(tensors.values(), file)
    return Weights(file, tensors, tuple(names) if known and names is not None else None)


def read_base(run: Path) -> dict[str, Tensor]:
    """Read the weights that adapters leave untrained (the base) from the folder of a resumed run."""
    require_in(run, BASE, key="fit.resume=", allowed="the folder of a run with adapters")
    return read_weights(str(regular(run / BASE))).tensors


def _file_of(given: str) -> Path:
    path = expanded(given)
    file = path / BEST if path.is_dir() else path
    if file.is_file():
        return file
    if file.exists():
        problem = "not a regular file. Use another file."
    elif path.is_dir():
        problem = f"the folder has no {BEST}. Use a run's folder, or a file."
    else:
        problem = f"no such file.{near_file(file)}"
    raise UserError(f"model.weights={given}: {problem}")


def _tensors_in(saved: Mapping[str, Any], file: Path) -> dict[str, Tensor]:
    """Find the weights in a file: all its values, or one section of a training script's checkpoint."""
    found = next((saved[name] for name in _SECTIONS if isinstance(saved.get(name), Mapping)), saved)
    odd = [name for name, value in found.items() if not (isinstance(name, str) and isinstance(value, Tensor))]
    if odd or not found:
        what = f"'{odd[0]}' is not a named tensor" if odd else "the file is empty"
        raise UserError(
            f"{file}: {what}. Weights are tensors by name, at the top level or below {', '.join(_SECTIONS)}."
        )
    # The mean and std of regression targets belong to the old data.
    return {name: tensor for name, tensor in found.items() if name not in (MEAN, STD)}


def _fit(weights: Weights, model: Model, network: nn.Module, classes: tuple[str, ...], size: Size) -> dict[str, Tensor]:
    """Match weights with a network. The head keeps its random weights if the classes differ."""
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
        name = getattr(model, "name", None)
        own = f" This run has model.name={name}." if name else ""
        config = weights.file.with_name("config.yaml")
        saved = f" That model's settings are in {config}." if weights.classes and config.is_file() else ""
        raise UserError(f"model.weights={weights.file}: {error}{saved}{own}") from error
    if weights.classes is None or same_outputs(weights.classes, classes):
        return found
    return {name: tensor for name, tensor in found.items() if name not in head}


def head_of(model: Model, classes: tuple[str, ...], size: Size) -> list[str]:
    """Return the names of a model's tensors whose shapes depend on the number of classes."""
    with torch.device("meta"):
        one, other = (build_network(model.untrained(), len(classes) + more, size).state_dict() for more in (0, 1))
    return [name for name, tensor in one.items() if name not in other or tensor.shape != other[name].shape]


def _converted(model: Model, weights: Weights, network: nn.Module) -> Mapping[str, Tensor] | None:
    """Let the model convert weights with a different layout. Return None if it cannot."""
    try:
        found = model.convert(weights.tensors, network)
    except (LookupError, RuntimeError, ValueError, TypeError, AttributeError, AssertionError):
        # The weights belong to another model.
        return None
    return None if found is weights.tensors else found


def match(tensors: Mapping[str, Tensor], network: Mapping[str, Tensor], head: Collection[str]) -> dict[str, Tensor]:
    """Match the tensors of a file with a network by name. Only the head may differ or be missing.

    If all names have a prefix that the network lacks, such as a wrapper's name, it is removed. Weights for RGB images
    are adapted to the network's channels as timm adapts them.

    Args:
        tensors: the tensors of a file by name.
        network: the network's tensors by name. Only their shapes and types count.
        head: the names of the tensors that depend on the number of classes.

    Raises:
        UserError: they do not fit. The message begins with "not" and names the first mismatch.
    """
    given = dict(tensors)
    for _ in range(_MAX_WRAPPERS):
        prefix = next(iter(given), "").partition(".")[0] + "."
        if any(name in network for name in given) or not all(name.startswith(prefix) for name in given):
            break
        given = {name.removeprefix(prefix): tensor for name, tensor in given.items()}
    given = {name: _in_channels(tensor, network.get(name)) for name, tensor in given.items()}
    body = [name for name in network if name not in head and not name.endswith(_COUNTERS)]
    spare = [name for name in given if name not in network]
    wrong = [name for name in body if name not in given or not _fits(given[name], network[name])]
    if odd := [*wrong, *spare]:
        raise UserError(
            f"not the weights of this model: {len(body) - len(wrong)} of its {amount(len(body), 'tensor')} match in "
            f"name and shape. The first mismatch is '{odd[0]}', "
            f"{_shape(given.get(odd[0]))} in the file and {_shape(network.get(odd[0]))} in the model. Choose the model "
            "that saved them, or rename the tensors as in this model."
        )
    return {name: tensor for name, tensor in given.items() if _fits(tensor, network[name])}


def _in_channels(tensor: Tensor, own: Tensor | None) -> Tensor:
    """Adapt an RGB convolution's weights to the number of channels of a network's tensor."""
    if own is None or own.ndim != 4 or tensor.shape == own.shape:
        return tensor
    outputs, channels, *sides = own.shape
    if tensor.shape != (outputs, 3, *sides):
        return tensor
    from timm.models import adapt_input_conv  # imports all of timm

    adapted: Tensor = adapt_input_conv(channels, tensor)
    return adapted


def _fits(tensor: Tensor, own: Tensor) -> bool:
    return tensor.shape == own.shape and tensor.is_floating_point() == own.is_floating_point()


def _shape(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else " x ".join(map(str, tensor.shape)) or "a single number"
