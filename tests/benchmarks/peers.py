"""Train one model on the same photos, fed by this project and by other libraries' loaders.

    python tests/benchmarks/peers.py aug=imagenette data=folder data.root=DIR
    python tests/benchmarks/peers.py aug=imagenette --photos DIR --model none --rows fused,pil

One model, a timm name, is shared by all rows and trained by the same step: SGD with momentum, in bfloat16 and
channels_last on a GPU. The first row trains on one batch that stays in memory, which bounds all others. With
`--model none`, images are only brought to the device.

Each library is used as its own documentation does. timm's loader has no warps: it crops, flips and changes colors. PIL
decodes and transforms by torchvision's transforms of PIL images. Energy is left out without `nvidia-ml-py`.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from multiprocessing import get_context
from statistics import median

import in_dali
import in_torchvision
import timm
import torch
from common import make_parser, make_setup, measure
from PIL import Image
from timm.data import create_loader
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset
from torch.utils.dlpack import from_dlpack
from torchvision.io import ImageReadMode, decode_jpeg, read_file

from augment.cli.benchmark import LeftOutError, Row, Run, consumer
from augment.cli.parser import readable_errors
from augment.support.background import in_threads
from augment.tools.bench.rows import Setup, cached, loaded

try:
    import pynvml
except ImportError:
    pynvml = None

AHEAD = 5  # batches

Feed = Callable[[], Iterator[Tensor]]


def feeds(setup: Setup) -> dict[str, tuple[str, Feed]]:
    """Return the title and the batches, (N, 3, size, size), of each row."""

    def in_workers(dataset: type[in_torchvision.Images]) -> Iterator[Tensor]:
        return in_torchvision.batches(dataset(setup.paths(), in_torchvision.transform(setup.plan)), setup)

    return {
        "fixed": ("one fixed batch", lambda: fixed(setup)),
        "fused": ("this project", lambda: (batch.images for batch in loaded(setup, setup.aug))),
        "cached": ("this project, decoder cache", lambda: (batch.images for batch in cached(setup))),
        "dali": ("DALI op by op", lambda: by_dali(setup)),
        "timm": ("timm's loader (no warps)", lambda: by_timm(setup)),
        "torchvision": ("torchvision v2, worker processes", lambda: in_workers(in_torchvision.Images)),
        "pil": ("PIL, worker processes", lambda: in_workers(PilImages)),
        "torchvision_gpu": ("torchvision v2 on the GPU", lambda: by_torchvision_on_gpu(setup)),
    }


def fixed(setup: Setup) -> Iterator[Tensor]:
    batch = torch.randn(setup.batch_size, 3, *setup.aug.size, device=setup.device)
    while True:
        yield batch


def by_dali(setup: Setup) -> Iterator[Tensor]:
    for images in in_dali.op_by_op(setup):
        yield from_dlpack(images.as_tensor()).permute(0, 3, 1, 2)


class PilImages(in_torchvision.Images):
    """Images that PIL decodes and transforms."""

    def __getitem__(self, index: int) -> Tensor:
        with Image.open(self.paths[index]) as image:
            return self.transform(image.convert("RGB"))


def by_torchvision_on_gpu(setup: Setup) -> Iterator[Tensor]:
    """Decode by nvJPEG and transform image by image."""
    if setup.device.type != "cuda":
        raise LeftOutError("no GPU")
    transform, paths, size = in_torchvision.transform(setup.plan), setup.paths(), setup.batch_size
    if not all(path.lower().endswith((".jpg", ".jpeg")) for path in paths):
        raise LeftOutError("not all images are JPEG files")
    batches = [paths[first : first + size] for first in range(0, len(paths), size)]
    with in_threads(lambda batch: [*map(read_file, batch)], cycle(batches), setup.flags.threads, ahead=AHEAD) as read:
        for encoded in read:
            decoded = decode_jpeg(encoded, ImageReadMode.RGB, device=setup.device)
            yield torch.stack([transform(image) for image in decoded])


class TimmImages(Dataset):
    """What timm's `create_loader`, which sets the transform, asks of a data set."""

    transform = None

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with Image.open(self.paths[index]) as image:
            return self.transform(image.convert("RGB")), 0


def by_timm(setup: Setup) -> Iterator[Tensor]:
    plan, cuda = setup.plan, setup.device.type == "cuda"
    if plan.crop.op.name != "random_resized_crop":
        raise LeftOutError(f"no timm translation of {plan.crop.key}")
    steps = {step.op.name: step for step in plan.tree}
    colors = [steps[name] for name in ("brightness", "contrast", "saturation") if name in steps]
    strength = max((abs(step.params["factor_range"][1] - 1) for step in colors), default=None)
    loader = create_loader(
        TimmImages(setup.paths()), tuple(plan.size), setup.batch_size, is_training=True, interpolation="bilinear",
        scale=plan.crop.params["area_range"], ratio=plan.crop.params["aspect_range"], mean=plan.mean, std=plan.std,
        hflip=steps["flip"].p if "flip" in steps else 0.0, color_jitter=strength,
        color_jitter_prob=max((step.p for step in colors), default=None), num_workers=setup.flags.workers,
        use_prefetcher=cuda, pin_memory=cuda, device=setup.device,
    )  # fmt: skip
    (loader.loader if cuda else loader).multiprocessing_context = get_context("forkserver")  # DALI survives no fork
    while True:
        for images, _ in loader:
            yield images


class Training:
    """The model of all rows and its training step; all targets are class 0."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.device, self.model = device, None
        if name != "none":
            self.model = timm.create_model(name, num_classes=10).to(device, memory_format=torch.channels_last)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)

    def fed(self, batches: Iterator[Tensor]) -> Iterator[Tensor]:
        for images in batches:
            if self.model is not None:
                with torch.autocast(self.device.type, torch.bfloat16, enabled=images.is_cuda):
                    outputs = self.model(images.contiguous(memory_format=torch.channels_last))
                    loss = cross_entropy(outputs, torch.zeros(len(images), dtype=torch.int64, device=self.device))
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
            yield images


def gpu_mebibytes() -> float:
    if not torch.cuda.is_available():
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**20


def gpu_millijoules() -> float:
    """Return the energy that the GPU has used, 0 without one or without `nvidia-ml-py`."""
    if not torch.cuda.is_available() or pynvml is None:
        return 0.0
    torch.cuda.synchronize()
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties().uuid}")
    return pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)


def with_usage(row: Row, memory: dict[str, float], energy: dict[str, list[float]]) -> Row:
    """Return a row that notes the GPU memory that it takes, and the energy for each image."""

    def start() -> Run:
        before = gpu_mebibytes()
        run = row.start()
        run(2 * row.ahead)
        memory[row.name], energy[row.name] = gpu_mebibytes() - before, []

        def timed(batches: int) -> int:
            begun = gpu_millijoules()
            images = run(batches)
            if batches > row.ahead:  # others were ready
                energy[row.name].append((gpu_millijoules() - begun) / images)
            return images

        return timed

    return replace(row, start=start)


def main() -> None:
    parser = make_parser("peers", __doc__)
    parser.add_argument("--model", default="resnet18", help="a timm model, or none (default: resnet18)")
    flags, overrides = parser.split(sys.argv[1:])
    setup = make_setup(flags, overrides)
    training = Training(flags.model, setup.device)
    rows, memory, energy = [], {}, {}
    for name, (title, feed) in feeds(setup).items():
        workers = flags.workers if name in ("timm", "torchvision", "pil") else 0
        row = Row(name, title, lambda feed=feed: consumer(training.fed(feed())), is_bound=name == "fixed",
                  ours=name in ("fused", "cached"), ahead=2 * workers + 1 if workers else AHEAD,
                  stride=max(workers, 1))  # fmt: skip
        if name != "fixed" or flags.model != "none":  # a fixed batch without a model is no work at all
            rows.append(with_usage(row, memory, energy))
    subject = f"{flags.model} fed with {' '.join(overrides)}"
    for result in measure(setup, subject, rows, ["fused"] if flags.model == "none" else ["fixed"]):
        if result.timings:
            name = result.row.name
            cpu = median(1000 * timing.cpu_seconds / timing.images for timing in result.timings)
            joules = f"{median(energy[name] or [0]):.1f} GPU mJ an image"
            sys.stdout.write(f"{name}: {cpu:.2f} CPU ms an image, {joules}, {memory[name]:,.0f} GPU MiB\n")


if __name__ == "__main__":
    with readable_errors():
        main()
