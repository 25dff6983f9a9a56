"""Find the largest training batch that fits on the GPU, by running training steps of the configured run.

Each trial builds its own loaders and its own model, so it does not change the run.
"""

import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

from augment.support.lazy_torch import torch
from trainer.loop.cuda_graphs import WARM_UP
from trainer.loop.ranks import alone, current
from trainer.run.build import make_learner, make_loaders, release_memory
from trainer.run.config.fit import AUTO
from trainer.run.config.schema import Config
from trainer.run.failures import out_of_memory

_MEMORY_SHARE = 0.85  # training may take at most this share of the free memory
_MIN_BATCHES = 16  # an epoch keeps at least 16 batches, because a model learns little in fewer steps
_MULTIPLE = 8  # batch sizes of at least 8 are multiples of 8


def largest_batch(fits: Callable[[int], bool], most: int) -> int:
    """Return a batch size that fits, close to the largest one. The smallest size, 2, is not tried.

    The size doubles until it does not fit. Bisection then narrows the gap between a size that fits and one that does
    not, to less than 16 images or an eighth of the size.

    Args:
        fits: tries a batch size, and returns whether it fits.
        most: the largest size to try.
    """
    good, size = 2, 4
    while size <= most and fits(size):
        good, size = size, 2 * size
    bad = min(size, most + 1)
    while bad - good >= max(2 * _MULTIPLE, good // 8):
        middle = (good + bad) // 2 // _MULTIPLE * _MULTIPLE
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def _fits(config: Config, size: int, rest: float) -> bool:
    """Train for a few steps with a batch size, and return whether at least `rest` bytes stay free on the GPU."""
    # Train and validate past the warm-up, because CUDA graphs are recorded after it, and each keeps its own memory.
    # Compiling would take minutes, and only saves memory.
    steps, accumulate = WARM_UP + 2, min(config.fit.accumulate, 2)
    limits = replace(config.fit, steps=steps, limit_batches=2 * steps, accumulate=accumulate)
    fit = replace(limits, batch_size=size, compile=False)
    trial = replace(config, fit=fit, model=config.model.untrained())
    release_memory()  # of the previous trial
    try:
        with closing(make_loaders(trial)) as loaders:
            learner = make_learner(trial, loaders, callbacks=())
            learner.fit()
            return torch.cuda.mem_get_info(learner.device)[0] >= rest
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        return False


@contextmanager
def _trials(config: Config) -> Iterator[Callable[[int], bool]]:
    """Yield a function that tries a batch size on this rank. The random state does not change."""
    device = config.fit.torch_device()
    release_memory()
    gpu = torch.cuda.current_device() if device.index is None else device.index
    free, total = torch.cuda.mem_get_info(gpu)
    allowed = min(free, torch.cuda.get_per_process_memory_fraction(gpu) * total)
    with torch.random.fork_rng([gpu]), alone():
        yield lambda size: _fits(config, size, free - _MEMORY_SHARE * allowed)
    release_memory()


def with_batch_size(config: Config) -> Config:
    """Replace fit.batch_size=auto, and scale the learning rate, see `Config.sized`.

    On GPUs, the new size is the largest one found that fits on every rank. On a CPU, it is the base size.
    """
    if config.fit.batch_size != AUTO:
        return config
    ranks, base = current(), config.fit.base_batch_size
    if config.fit.torch_device().type == "cpu":
        return config.sized(max(base // ranks.size, 1) * ranks.size, "there is no GPU")
    with _trials(config) as fits:
        each = largest_batch(fits, config.dataset.train.images // ranks.size // _MIN_BATCHES)
    return config.sized(
        min(ranks.gather(each)) * ranks.size, f"training may use {_MEMORY_SHARE:.0%} of the free GPU memory"
    )


def smaller_batch_size(config: Config, error: BaseException) -> int:
    """Return a batch size that fits after an out-of-memory error, or 0. Try half the size first, a sixteenth last."""
    if not out_of_memory(error) or config.fit.torch_device().type == "cpu" or config.fit.stages:
        return 0
    traceback.clear_frames(error.__traceback__)  # the frames hold the batch that did not fit
    ranks = current().size
    sizes = [config.fit.images // ranks >> halvings for halvings in range(1, 5)]
    with suppress(Exception), _trials(config) as fits:  # errors of trials must not replace the run's error
        return ranks * next((size for size in sizes if size > 1 and fits(size)), 0)
    return 0
