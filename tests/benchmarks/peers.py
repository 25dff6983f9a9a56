"""Train one model on the same photos, fed by this project and by other libraries' loaders.

    python tests/benchmarks/peers.py +aug=imagenette data=folder data.root=DIR
    python tests/benchmarks/peers.py +aug=imagenette --photos DIR --model none --rows fused,pil

One model, a timm name, is shared by all rows and trained by the same step: SGD with momentum, in bfloat16 and
channels_last on a GPU. The first row trains on one batch that stays in memory, which bounds all others. With
`--model none`, images are only brought to the device.

Each library is used as its own documentation does. timm's loader has no warps: it crops, flips and changes colors. PIL
decodes and transforms by torchvision's transforms of PIL images. Energy is left out without `nvidia-ml-py`.
"""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from statistics import median

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

from augment.cli.parser import readable_errors
from augment.support.measurement import LeftOutError, Result, Row, Run, consumer
from augment.tools.bench import dali, torchvision
from augment.tools.bench.rows import Setup, cached, loaded

CLASSES = 10
AHEAD = 5  # batches

Feed = Callable[[], Iterator[Tensor]]


def feeds(setup: Setup) -> dict[str, tuple[str, Feed]]:
    """Return the title and the batches, (N, 3, size, size), of each row."""

    def in_workers(dataset: type[torchvision.Images]) -> Iterator[Tensor]:
        return torchvision.batches(dataset(setup.paths(), torchvision.transform(setup.plan)), setup)

    return {
        "fixed": ("one fixed batch", lambda: fixed(setup)),
        "fused": ("this project", lambda: (batch.images for batch in loaded(setup, setup.aug))),
        "cached": ("this project, decoder cache", lambda: (batch.images for batch in cached(setup))),
        "dali": ("DALI op by op", lambda: by_dali(setup)),
        "timm": ("timm's loader (no warps)", lambda: by_timm(setup)),
        "torchvision": ("torchvision v2, worker processes", lambda: in_workers(torchvision.Images)),
        "pil": ("PIL, worker processes", lambda: in_workers(PilImages)),
        "torchvision_gpu": ("torchvision v2 on the GPU", lambda: by_torchvision_on_gpu(setup)),
    }


def fixed(setup: Setup) -> Iterator[Tensor]:
    batch = torch.randn(setup.batch_size, 3, setup.aug.size, setup.aug.size, device=setup.device)
    while True:
        yield batch


def by_dali(setup: Setup) -> Iterator[Tensor]:
    for images in dali.op_by_op(setup):
        yield from_dlpack(images.as_tensor()).permute(0, 3, 1, 2)


class PilImages(torchvision.Images):
    """Images that PIL decodes and transforms."""

    def __getitem__(self, index: int) -> Tensor:
        with Image.open(self.paths[index]) as image:
            return self.transform(image.convert("RGB"))


def by_torchvision_on_gpu(setup: Setup) -> Iterator[Tensor]:
    """Decode by nvJPEG and transform image by image."""
    if setup.device.type != "cuda":
        raise LeftOutError("no GPU")
    transform, paths, size = torchvision.transform(setup.plan), setup.paths(), setup.batch_size
    if not all(path.lower().endswith((".jpg", ".jpeg")) for path in paths):
        raise LeftOutError("not all images are JPEG files")
    batches = [paths[first : first + size] for first in range(0, len(paths), size)]
    with ThreadPoolExecutor(setup.flags.threads) as pool:
        waiting: list = []
        while True:
            for batch in batches:
                waiting.append([pool.submit(read_file, path) for path in batch])
                if len(waiting) == AHEAD:
                    encoded = [read.result() for read in waiting.pop(0)]
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
    loader = create_loader(
        TimmImages(setup.paths()),
        plan.size,
        setup.batch_size,
        is_training=True,
        scale=plan.crop.params["area_range"],
        ratio=plan.crop.params["aspect_range"],
        hflip=steps["flip"].p if "flip" in steps else 0.0,
        color_jitter=max((abs(step.params["factor_range"][1] - 1) for step in colors), default=None),
        color_jitter_prob=max((step.p for step in colors), default=None),
        interpolation="bilinear",
        mean=plan.mean,
        std=plan.std,
        num_workers=setup.flags.workers,
        use_prefetcher=cuda,
        pin_memory=cuda,
        device=setup.device,
    )
    (loader.loader if cuda else loader).multiprocessing_context = get_context("forkserver")  # DALI survives no fork
    while True:
        for images, _ in loader:
            yield images


class Training:
    """The model of all rows and its training step; all targets are class 0."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.device, self.model = device, None
        if name != "none":
            self.model = timm.create_model(name, num_classes=CLASSES).to(device, memory_format=torch.channels_last)
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


class Usage:
    """The GPU memory and the energy that rows take."""

    def __init__(self, device: torch.device) -> None:
        self.mebibytes: dict[str, float] = {}
        self.millijoules: dict[str, list[float]] = {}  # per image
        self._cuda, self._handle = device.type == "cuda", None
        if self._cuda:
            try:
                import pynvml
            except ImportError:
                return
            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties().uuid}")

    def measured(self, row: Row) -> Row:
        """Return a row that is measured here, too."""
        return replace(row, start=lambda: self._start(row))

    def _start(self, row: Row) -> Run:
        before = self._memory()
        run = row.start()
        run(2 * row.ahead)
        self.mebibytes[row.name] = self._memory() - before
        energy = self.millijoules[row.name] = []

        def timed(batches: int) -> int:
            begun = self._energy()
            images = run(batches)
            if batches > row.ahead:  # others were ready
                energy.append((self._energy() - begun) / images)
            return images

        return timed

    def _memory(self) -> float:
        if not self._cuda:
            return 0.0
        free, total = torch.cuda.mem_get_info()
        return (total - free) / 2**20

    def _energy(self) -> float:
        if self._handle is None:
            return 0.0
        torch.cuda.synchronize()
        return self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)

    def line(self, result: Result) -> str:
        """Return what a row takes."""
        name = result.row.name
        cpu = median(1000 * timing.cpu_seconds / timing.images for timing in result.timings)
        energy = f"{median(self.millijoules[name] or [0]):.1f} mJ an image of the GPU"
        return f"{name}: {cpu:.2f} CPU ms an image, {energy}, {self.mebibytes[name]:,.0f} MiB of its memory\n"


def main() -> None:
    parser = make_parser("peers", __doc__)
    parser.add_argument("--model", default="resnet18", help="a timm model, or none (default: resnet18)")
    flags, overrides = parser.split(sys.argv[1:])
    setup = make_setup(flags, overrides)
    training, usage = Training(flags.model, setup.device), Usage(setup.device)
    rows = []
    for name, (title, feed) in feeds(setup).items():
        if name == "fixed" and flags.model == "none":
            continue  # no work at all
        ahead, stride = AHEAD, 1
        if name in ("timm", "torchvision", "pil"):
            ahead, stride = 2 * flags.workers + 1, flags.workers
        row = Row(
            name,
            title,
            lambda feed=feed: consumer(training.fed(feed())),
            is_bound=name == "fixed",
            ours=name in ("fused", "cached"),
            ahead=ahead,
            stride=stride,
        )
        rows.append(usage.measured(row))
    baselines = ["fused"] if flags.model == "none" else ["fixed"]
    for result in measure(setup, f"{flags.model} fed with {' '.join(overrides)}", rows, baselines):
        if result.timings:
            sys.stdout.write(usage.line(result))


if __name__ == "__main__":
    with readable_errors():
        main()
