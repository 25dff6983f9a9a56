"""Find a batch size that fits in memory, by training a few batches."""

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import torch

from augment.support.errors import UserError
from augment.support.text import amount
from trainer.loop.graphs import WARM_UP
from trainer.models.registry import check_model
from trainer.run.build import make_learner, make_loaders, release_memory
from trainer.run.check import check_config
from trainer.run.config import Config, with_batch_size
from trainer.run.failures import is_out_of_memory, too_large
from trainer.run.memory import largest_batch

log = logging.getLogger(__name__)


def find_batch_size(config: Config) -> tuple[Config, str]:
    """Return the configuration with a batch size that fits, and what was changed, for people; empty: nothing.

    The configured size is tried first, or all images if they are fewer, or what could fit; then its halves. A trial
    trains until the work of a batch is recorded, then validates, and is discarded. The learning rate stays as
    configured.
    """
    whole = min(config.fit.batch_size, max(len(config.dataset.train), len(config.dataset.val)))
    failure = None
    for size in _candidates(config, whole):
        tried = with_batch_size(config, size)
        failure = _failure_of(tried)
        if failure is None:
            return (config, "") if size == whole else (tried, _describe(config, size))
        log.info("fit.auto_batch_size: batches of %s do not fit", amount(size, "image"))
    assert failure is not None  # the first candidate was checked
    raise failure


def _candidates(config: Config, whole: int) -> Iterator[int]:
    """Yield the batch size to try first and its halves, a little less where the last batch would be too small."""
    network = check_model(config.model, len(config.dataset.classes), config.aug.size)
    size = max(1, largest_batch(config, network, whole, config.aug.size))
    while size:
        try:
            check_config(with_batch_size(config, size))
        except UserError:
            size -= 1
        else:
            yield size
            size //= 2


def _failure_of(config: Config) -> UserError | None:
    """Train some batches; return an error if they do not fit in memory, otherwise None."""
    limit = max(WARM_UP + 2, config.fit.accumulate)
    limit = min(limit, config.fit.limit_batches or limit)
    config = replace(config, fit=replace(config.fit, epochs=1, limit_batches=limit))
    try:
        with closing(make_loaders(config)) as loaders:
            make_learner(config, loaders, callbacks=()).fit()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        # Without its traceback, which keeps the memory of the trial.
        return too_large(error, config).with_traceback(None)
    finally:
        release_memory()
        if (device := config.fit.torch_device()).type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
    return None


def _describe(config: Config, size: int) -> str:
    fit, images = config.fit, len(config.dataset.train)
    steps = fit.accumulate * round(min(fit.batch_size, images) / size)
    return (
        f"fit.auto_batch_size: batches of {amount(fit.batch_size, 'image')} at {config.aug.size} px do not fit, those "
        f"of {size:,} do: fit.batch_size={size}. fit.lr stays {fit.lr:g}, though smaller batches may need a smaller "
        f"one; with fit.accumulate={steps} each step uses about as many images as asked for"
    )
