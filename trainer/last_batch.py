"""Batches of a single picture, on which batch norm cannot train: refused before the run begins, not in its middle.

Nothing is left out in silence: every sample is seen once an epoch, unless somebody wants it otherwise.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch
from torch import nn

from augment.errors import UserError
from trainer.freeze import keep_statistics

if TYPE_CHECKING:
    from trainer.config import Fit


def check_last_batch(fit: "Fit", network: nn.Module, samples: int, size: int, *, frozen: Collection[str] = ()) -> None:
    """Check that no training batch is a single picture that the model cannot be trained on.

    Args:
        fit: how to train.
        network: without memory, as of `trainer.models.check_model`.
        samples: of an epoch.
        size: of the pictures, in pixels, where a stage gives none.
        frozen: names of the parameters that are frozen to the end, whose batch norms keep their statistics.

    Raises:
        UserError: one is; the message says what helps.
    """
    fed = [(f"fit.stages.{stage.name}.batch_size", stage.batch_size, stage.size) for stage in fit.full_stages(size)]
    for key, batch_size, side in fed or [("fit.batch_size", fit.batch_size, size)]:
        full, rest = divmod(samples, batch_size)
        reached = fit.limit_batches is None or fit.limit_batches > full
        last = rest == 1 and reached and not (fit.drop_last and full)
        if not (last or batch_size == 1) or trains_on_single(network, side, frozen):
            continue
        why = f"a single picture, on which the model's batch norm cannot train at {side} px"
        if samples == 1:
            raise UserError(f"data: train holds {why}. Allowed: at least two.")
        if batch_size == 1:
            raise UserError(f"{key}=1: every batch is {why}. Allowed: at least 2.")
        raise UserError(
            f"{key}={batch_size}: of {samples:,} samples the last batch is {why}. Allowed: fit.drop_last=true, which "
            "leaves one sample out of each epoch, another one every time; or another size of the batches."
        )


def trains_on_single(network: nn.Module, side: int, frozen: Collection[str] = ()) -> bool:
    """Say whether a network can be trained on a single picture: batch norm needs two values of a channel at least.

    Args:
        network: without memory.
        side: of the picture, in pixels.
        frozen: names of the parameters that are frozen.
    """
    mode = network.training
    try:
        keep_statistics(network.train(), frozen)
        network(torch.empty(1, 3, side, side, device="meta"))
    except (RuntimeError, AssertionError, ValueError) as error:
        return "more than 1 value per channel" not in str(error)
    finally:
        network.train(mode)
    return True
