"""Feed small images to a busy GPU in many fresh processes, and compare with the CPU: busy_gpu_program.py PROCESSES.

Prints what arrived wrong, and last how many processes there were. Each process is forked before it touches CUDA, so
that its pinned memory and its pipelines start from nothing, as in a run. Copies to the GPU queue up behind those of
the process itself and of two others.
"""

import os
import pickle
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from loaders import build_loader

from augment import Transform, load_recipe
from augment.data.dataset import Split
from augment.data.images import MemoryImage
from augment.pipeline.graph.decoding import Placement
from augment.recipe.plan import build_plan
from augment.recipe.steps import parse_aug

AT_ONCE = 6
SAMPLES, BATCH, EPOCHS, CALLS = 96, 16, 2, 4

# Each process has one of them. All end with images of this side; the second brings kernels of some samples to the GPU.
SIZE = 16
STEPS: list[dict[str, Any]] = [
    {"resize": {}, "brightness": {"factor_range": [0.3, 1.0]}},
    {"resize": {}, "motion_blur": {"p": 0.5}},
    {"random_resized_crop": {"area_range": [0.5, 1.0]}, "rotate": {"p": 0.5}, "invert": {"p": 0.5}},
]

Batch = tuple[str, list[int], torch.Tensor]  # what made it, indices, and images, (N, 3, SIZE, SIZE) in levels

# The largest difference, in levels, between an image of the CPU and one of the GPU that is only rounding.
ROUNDING = 4


def small_images() -> list[np.ndarray]:
    """Return images of 1 to 52 pixels a side, so of at most 8,112 bytes, each with a level of its own."""
    rng = np.random.default_rng(0)
    sides = rng.integers(1, 53, (SAMPLES, 2))
    noise = [rng.integers(-8, 9, (*side, 3)) for side in sides]
    return [(30 + 2 * level + pixels).astype(np.uint8) for level, pixels in enumerate(noise)]


def batches_of(number: int, device: str) -> list[Batch]:
    """Return the batches of a loader and of a transform, with the steps of that number."""
    images = small_images()
    files = tuple(MemoryImage(str(index), pixels) for index, pixels in enumerate(images))
    aug = {"size": SIZE, "mean": [0, 0, 0], "std": [1, 1, 1], "train": STEPS[number]}
    loader = build_loader(
        build_plan(parse_aug(aug), "train"),
        Split(files, tuple(index % 3 for index in range(SAMPLES))),
        batch_size=BATCH,
        seed=number,
        device=torch.device(device),
        classes=("a", "b", "c"),
        placement=Placement(prefetch=4),
    )
    # Nothing waits for the GPU before the last batch.
    made = [(f"loader {number}", batch.indices, batch.images) for _ in range(EPOCHS) for batch in loader]
    transform = Transform(load_recipe(aug), device=device, seed=number)
    for call in range(CALLS):
        chosen = range(call * BATCH // 2, call * BATCH // 2 + BATCH)
        made.append((f"transform {number}", torch.tensor(chosen), transform([images[index] for index in chosen])))
    return [(what, indices.tolist(), pixels.float().cpu() * 255) for what, indices, pixels in made]


def compare(number: int, wanted: list[Batch]) -> int:
    """Print what arrives wrong on a GPU that copies all the while, and return how much."""
    ended = threading.Event()
    copying = threading.Thread(target=copy_all_the_while, args=(ended,))
    copying.start()
    try:
        found = batches_of(number, "cuda")
    finally:
        ended.set()
        copying.join()
    wrong = 0
    for (what, indices, images), (_, own, pixels) in zip(wanted, found, strict=True):
        if own != indices:
            print(f"{what}: indices {own} in place of {indices}", flush=True)  # noqa: T201
            wrong += 1
        far = ((images - pixels).abs() > ROUNDING).flatten(1)
        for position in far.any(1).nonzero().flatten().tolist():
            share, sample = far[position].float().mean(), indices[position]
            print(f"{what}: {share:.0%} of image {sample} at position {position} differ", flush=True)  # noqa: T201
            wrong += 1
    return wrong


def copy_all_the_while(ended: Any = None) -> None:
    """Keep the engines busy that copy to the GPU, until an event is set."""
    streams = [torch.cuda.Stream() for _ in range(2)]
    host = torch.empty(2**23, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(host, device="cuda")
    pending: list[torch.cuda.Event] = []
    while ended is None or not ended.is_set():
        for stream in streams:
            with torch.cuda.stream(stream):
                target.copy_(host, non_blocking=True)
                pending.append(torch.cuda.Event(blocking=True))
                pending[-1].record()
        while len(pending) > 6:
            pending.pop(0).synchronize()


def forked(function: Any, *given: Any) -> int:
    """Run a function in a process of its own, which exits with what it returns; return the process's number."""
    if number := os.fork():
        return number
    code = 2
    try:
        code = min(1, function(*given) or 0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)  # noqa: T201
    os._exit(code)


def main(processes: int) -> int:
    """Run the processes, and return 1 if something arrived wrong."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "wanted"
        forked(lambda: file.write_bytes(pickle.dumps([batches_of(n, "cpu") for n in range(len(STEPS))])) and 0)
        os.wait()
        wanted = pickle.loads(file.read_bytes())
    torch.set_num_threads(1)
    busy = {forked(copy_all_the_while) for _ in range(2)}
    codes: list[int] = []
    running: set[int] = set()
    while len(codes) < processes:
        while len(running) < AT_ONCE and len(codes) + len(running) < processes:
            number = (len(codes) + len(running)) % len(STEPS)
            running.add(forked(compare, number, wanted[number]))
        ended, status = os.wait()
        busy.discard(ended)
        if ended in running:
            running.discard(ended)
            codes.append(os.waitstatus_to_exitcode(status))
    for number in busy:
        os.kill(number, 9)
    wrong = sum(code != 0 for code in codes)
    print(f"{processes} processes, {wrong} with something wrong", flush=True)  # noqa: T201
    return min(1, wrong)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
