"""Compare the check before training with plain decoding by DALI on the CPU."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time

from nvidia.dali import fn
from nvidia.dali.pipeline import Pipeline

from augment.data.check import check_files
from augment.data.dataset import ImageRef
from augment.data.images import are_paths
from augment.support.text import amount
from augment.support.timing import cores

_BATCH = 64


def describe_check(files: Sequence[ImageRef], rounds: int) -> str:
    """Return a sentence on the CPU time of the first and of the second check; "" if images are no files of their own.

    Args:
        files: the images.
        rounds: how often both are timed, alternately; the figures are medians.
    """
    if not are_paths(files):
        return ""
    ratios, stats = [], []
    for _ in range(rounds):
        with TemporaryDirectory(prefix="check-") as folder:
            check = partial(check_files, files, cache=Path(folder) / "cache.json")
            decoding = _seconds(_decoding(files))
            ratios.append(_seconds(check) / decoding)
            stats.append(_seconds(check) / len(files))
    return (
        f"the first check of {amount(len(files), 'file')} takes {median(ratios):.2f} times the CPU time of DALI's CPU "
        f"decoder ({min(ratios):.2f} to {max(ratios):.2f}), the second one {1e6 * median(stats):.0f} µs a file"
    )


def _seconds(work: Callable[[], object]) -> float:
    begun = process_time()
    work()
    return process_time() - begun


def _decoding(files: Sequence[ImageRef]) -> Callable[[], None]:
    """Return a function that decodes all images."""
    pipeline = Pipeline(batch_size=_BATCH, num_threads=cores(), device_id=None, exec_dynamic=True)
    with pipeline:
        encoded, _ = fn.readers.file(files=list(map(str, files)), pad_last_batch=True)
        pipeline.set_outputs(fn.decoders.image(encoded, device="cpu"))
    pipeline.build()

    def decode() -> None:
        for _ in range(-(-len(files) // _BATCH)):
            pipeline.run()

    return decode
