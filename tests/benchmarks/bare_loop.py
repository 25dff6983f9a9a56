"""Compare the training loop with a hand-written one on the same batches, next to the rows of `trainer bench`.

    python tests/benchmarks/bare_loop.py aug=imagenette data=folder data.root=DIR fit.precision=bf16

The hand-written loop has no callbacks and trains with SGD. On a GPU, a whole step is one CUDA graph, recorded as in
PyTorch's documentation, before there is a loader, whose threads would disturb the recording.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice, repeat

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from augment.cli.benchmark import Row, compare, endless
from augment.cli.compose import compose
from augment.cli.parser import Parser, add_measuring_flags, readable_errors
from augment.pipeline.batch import Batch
from trainer.models.registry import build_network
from trainer.run.build import make_loaders
from trainer.run.config.schema import Config, parse_config
from trainer.tools.bench.training import make_rows

WARM_UP = 3  # steps before the recording


def make_step(config: Config) -> Callable[[Tensor, Tensor], None]:
    """Return a function that trains on a batch, with learning rate 0."""
    fit, device, size = config.fit, config.fit.torch_device(), config.aug.size
    dataset = config.dataset
    model = build_network(config.model.untrained(), len(dataset.classes), size, dataset.pixels.channels)
    model = model.to(device, memory_format=torch.channels_last).train()
    if fit.compile:
        model.compile(dynamic=False)
    cuda = device.type == "cuda"
    rate = torch.zeros((), device=device) if cuda else 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, fused=cuda)

    def step(images: Tensor, targets: Tensor) -> None:
        with fit.autocast(device):
            outputs = model(images)
        cross_entropy(outputs.float(), targets).backward()
        optimizer.step()

    def eager(images: Tensor, targets: Tensor) -> None:
        step(images, targets)
        optimizer.zero_grad()

    if not (cuda and fit.graph):
        return eager
    kind = torch.float16 if fit.half else torch.float32
    images = torch.randn(fit.batch_size, 3, size, size, dtype=kind, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    targets = torch.zeros(fit.batch_size, dtype=torch.int64, device=device)
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM_UP):
            eager(images, targets)
    torch.cuda.current_stream().wait_stream(aside)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(images, targets)

    def recorded(given: Tensor, labels: Tensor) -> None:
        images.copy_(given, non_blocking=True)
        targets.copy_(labels, non_blocking=True)
        graph.replay()

    return recorded


def main() -> None:
    parser = Parser("bare_loop", __doc__, "")
    add_measuring_flags(parser)
    flags, overrides = parser.split(sys.argv[1:])
    config = parse_config(compose(overrides))
    config = replace(config, fit=replace(config.fit, limit_batches=None, epochs=1, stages=(), drop_last=True))
    step = make_step(config)
    stream = endless(make_loaders(config).train)
    fixed = next(stream)

    def train(batches: Iterator[Batch], count: int) -> int:
        for batch in islice(batches, count):
            step(batch.images, batch.targets)
        return count * len(fixed)

    rows = [
        *make_rows(config),
        Row("bare_fixed", "bare loop, one fixed batch", lambda: partial(train, repeat(fixed)), is_bound=True),
        Row("bare", "bare loop, fed", lambda: partial(train, stream), ahead=config.aug.prefetch + 1),
    ]
    subject = f"{' '.join(overrides)}, batch {config.fit.batch_size}"
    device = config.fit.torch_device()
    compare(subject, rows, flags, device=device, baselines=["fixed", "bare_fixed", "bare"], settings={})


if __name__ == "__main__":
    with readable_errors():
        main()
