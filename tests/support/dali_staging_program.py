"""A defect of DALI, with DALI alone: small images of uneven size arrive wrong on a GPU that other copies keep busy.

    python tests/support/dali_staging_program.py                              # DALI 2.4.0 on an H200: images are wrong
    DALI_RESTRICT_PINNED_MEM=1 python tests/support/dali_staging_program.py   # none is

`.gpu()` first gathers a batch in one pinned buffer of its operator if no sample has more than 8,192 bytes, and copies
it from there without waiting. For a larger batch, the operator reallocates that buffer before the copy of the last one
has ended, and the memory is soon used again. Where pinned memory is restricted, the buffer is not pinned, so the copy
leaves it at once.
"""

import sys
import threading
import time
from typing import Any

import numpy as np
import torch
from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline
from torch.utils.dlpack import from_dlpack

BATCH, BATCHES, PIPELINES = 16, 30, 16


def level(number: int) -> int:
    """Return the level of all pixels of an image."""
    return 3 + number * 37 % 250


def batch(info: Any) -> list[np.ndarray]:
    """Return images of 1 to 51 pixels a side."""
    sides = np.random.default_rng(info.iteration).integers(1, 52, (BATCH, 2))
    return [np.full((*side, 3), level(info.iteration * BATCH + n), np.uint8) for n, side in enumerate(sides)]


def wrong_images() -> int:
    """Return how many images of a pipeline are wrong."""
    pipeline = Pipeline(batch_size=BATCH, num_threads=4, device_id=0, prefetch_queue_depth=4, exec_dynamic=True)
    with pipeline:
        images = fn.external_source(batch, batch=True, batch_info=True, dtype=types.UINT8, ndim=3, layout="HWC")
        pipeline.set_outputs(fn.resize(images.gpu(), size=[8, 8], interp_type=types.INTERP_NN, antialias=False))
    stream = torch.cuda.current_stream()
    kept = []
    for _ in range(BATCHES):
        pipeline.schedule_run()
        kept.append(from_dlpack(pipeline.outputs(stream)[0].as_tensor()).clone())
    found = torch.cat(kept).flatten(1).cpu()
    wanted = torch.tensor([level(number) for number in range(len(found))])
    return int((found != wanted[:, None]).any(1).sum())


def keep_copying(ended: threading.Event) -> None:
    """Keep the engines busy that copy to the GPU."""
    host = torch.empty(2**26, dtype=torch.uint8, pin_memory=True)
    target, stream = torch.empty_like(host, device="cuda"), torch.cuda.Stream()
    while not ended.is_set():
        with torch.cuda.stream(stream):
            for _ in range(8):
                target.copy_(host, non_blocking=True)
        stream.synchronize()


if __name__ == "__main__":
    stop = threading.Event()
    copying = threading.Thread(target=keep_copying, args=(stop,))
    copying.start()
    time.sleep(0.5)
    wrong = sum(wrong_images() for _ in range(PIPELINES))
    stop.set()
    copying.join()
    print(f"{wrong} of {PIPELINES * BATCHES * BATCH} images are wrong")  # noqa: T201
    sys.exit(wrong > 0)
