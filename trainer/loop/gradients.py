"""Check that ranks have gradients of the same parameters."""

from typing import Any

from torch import nn

from augment.support.errors import UserError
from trainer.loop.ranks import Ranks

_GRADIENTS = "gradients"  # what ranks meet for


class SameGradients:
    """Checks that the same parameters have gradients on all ranks, which add them up one after another.

    Args:
        model: the model.
        ranks: the ranks.
    """

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        self._parameters = dict(model.named_parameters())
        self._ranks = ranks
        self._found: list[bool] = []

    def check(self) -> None:
        """Compare with the other ranks, which only takes time if this differs from the last call.

        Raises:
            UserError: a parameter has a gradient on some ranks only.
            LostRankError: another rank has ended.
        """
        found = [parameter.grad is not None for parameter in self._parameters.values()]
        if found != self._found:
            if apart := self._ranks.meet(_GRADIENTS, found):
                raise self._error(found, *apart)
            self._found = found

    def _error(self, found: list[bool], other: int, what: str | None, theirs: Any) -> UserError:
        rank = self._ranks.rank
        known = {_GRADIENTS: theirs, None: self._found}.get(what, found)
        for name, here, there in zip(self._parameters, found, known, strict=False):
            if here != there:
                have, lack = (rank, other) if here else (other, rank)
                return UserError(
                    f"model: {name} has a gradient on rank {have}, but none on rank {lack}. Allowed: a model that uses "
                    "the same parameters in every batch, or fit.gpus=1."
                )
        return UserError(f"{what} was raised on rank {other}, but not on rank {rank} at the same time.")
