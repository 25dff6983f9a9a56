"""Fit the tensors of a file into a network, by their names."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from augment.support.errors import UserError, nearest
from augment.support.text import amount

_COUNTERS = "num_batches_tracked"  # of batch norm, which older files lack; nothing depends on their values


@dataclass(frozen=True)
class Match:
    """Tensors of a file that fit into a network."""

    tensors: dict[str, Tensor]  # the tensors by their names in the network, without those of a head that does not fit
    head: tuple[str, ...]  # names of the network's head that the file has no fitting tensors for


def match(tensors: Mapping[str, Tensor], network: Mapping[str, Tensor], head: Collection[str]) -> Match:
    """Match the tensors of a file with those of a network; only the head may be another one, or missing.

    If all names have a prefix that the network's lack, as of wrappers, it is ignored.

    Args:
        tensors: the tensors of the file.
        network: the state of the network; only names, shapes and types count.
        head: names of the tensors of the network that depend on the number of classes.

    Raises:
        UserError: they do not fit; the message says which, and begins with "not".
    """
    given = _without_prefix(tensors, network)
    body = [name for name in network if name not in head and not name.endswith(_COUNTERS)]
    _check(given, network, body)
    missing = tuple(name for name in network if name in head and not _fits(given.get(name), network[name]))
    taken = {name: tensor for name, tensor in given.items() if name in network and name not in missing}
    return Match(taken, missing)


def _without_prefix(tensors: Mapping[str, Tensor], network: Mapping[str, Tensor]) -> dict[str, Tensor]:
    given = dict(tensors)
    while given and not any(name in network for name in given):
        prefix = next(iter(given)).partition(".")[0] + "."
        if not all(name.startswith(prefix) for name in given):
            break
        given = {name.removeprefix(prefix): tensor for name, tensor in given.items()}
    return given


def _fits(tensor: Tensor | None, own: Tensor) -> bool:
    return tensor is not None and tensor.shape == own.shape and tensor.is_floating_point() == own.is_floating_point()


def _check(given: Mapping[str, Tensor], network: Mapping[str, Tensor], body: Sequence[str]) -> None:
    """Check that a file has all tensors of a network by name, in the right shapes, and no others."""
    if missing := [name for name in body if name not in given]:
        spare = [name for name in given if name not in network]
        raise UserError(
            f"not the weights of this model: {len(missing)} of its {amount(len(body), 'tensor')} are missing, such as "
            f"'{missing[0]}'.{nearest(missing[0], spare)} Allowed: tensors by the names of the model's own."
        )
    if wrong := [name for name in body if not _fits(given[name], network[name])]:
        raise UserError(
            f"not the weights of this model: '{wrong[0]}' is {_shape(given[wrong[0]])}, and "
            f"{_shape(network[wrong[0]])} in the model ({amount(len(wrong), 'such tensor')})."
        )
    if spare := [name for name in given if name not in network]:
        raise UserError(
            f"not the weights of this model, but of a larger one: {amount(len(spare), 'tensor')} would be left over, "
            f"such as '{spare[0]}'."
        )


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "a single number"
