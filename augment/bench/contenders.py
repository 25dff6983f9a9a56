"""The rows of the benchmark: ways to get the same pictures to the device, each an endless stream of batches."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from nvidia.dali.pipeline import Pipeline

from augment.bench import baselines, handwritten
from augment.bench.baselines import PilDataset, Recipe, TorchvisionDataset, data_loader
from augment.config import Aug, parse_steps
from augment.dataset import Picture, Split
from augment.errors import UserError, suggest
from augment.graph import Device
from augment.loader import Loader
from augment.placement import place
from augment.plan import Plan, build_plan
from augment.registry import OPS, find_op
from augment.stored import are_paths

Batches = Generator[int, None, None]

# Batches that DALI has ready, and one that is on its way.
_DALI_AHEAD = 5
# Of PyTorch's DataLoader, for each worker.
_WORKER_AHEAD = 2


@dataclass(frozen=True)
class Setup:
    """What every row gets.

    Attributes:
        aug: the recipe.
        files: the pictures of an epoch, a whole number of batches; see `whole_batches`.
        photos: how many different ones there are.
        batch_size: pictures in a batch.
        threads: CPU threads of each DALI pipeline.
        workers: processes of each DataLoader.
        device: where the batches go.
        half: float16 images.
    """

    aug: Aug
    files: tuple[Picture, ...]
    photos: int
    batch_size: int
    threads: int
    workers: int
    device: torch.device
    half: bool = False

    @property
    def plan(self) -> Plan:
        """The recipe's plan, fused as configured."""
        return build_plan(self.aug, "train")

    @property
    def dali(self) -> handwritten.Options:
        """Options of pipelines that are not the loader's."""
        kind: Device = "gpu" if self.device.type == "cuda" else "cpu"
        return handwritten.Options(self.batch_size, self.threads, kind, self.half)


@dataclass(frozen=True)
class Stream:
    """A running row.

    Attributes:
        batches: endless: the number of pictures of each batch, which lies on the device when it is yielded.
        ahead: batches that may lie ready before they are asked for; they are not to be timed.
        stride: batches that are finished together, as every worker process has one in hand.
        warmup: batches after which it runs at its lasting speed.
    """

    batches: Batches
    ahead: int = _DALI_AHEAD
    stride: int = 1
    warmup: int = 2 * _DALI_AHEAD


@dataclass(frozen=True)
class Row:
    """A way to get pictures to the device.

    Attributes:
        name: on the command line.
        title: in the table.
        start: makes a stream.
        obstacle: returns why it cannot run here, "" if it can.
        is_bound: does less than the recipe, and so bounds it from above.
    """

    name: str
    title: str
    start: Callable[[Setup], Stream]
    obstacle: Callable[[Setup], str] = lambda setup: ""
    is_bound: bool = False


def whole_batches(files: Sequence[Picture], batch_size: int, least: int = 32) -> tuple[Picture, ...]:
    """Repeat pictures to a whole number of batches, at least `least`: no row shall pay for the ends of epochs."""
    count = max(-(-len(files) // batch_size), least) * batch_size
    return tuple(files[i % len(files)] for i in range(count))


def find_rows(names: Sequence[str]) -> list[Row]:
    """Return the rows of these names, in the order of the table; all of them if none is named.

    Raises:
        UserError: there is no such row; the message has the nearest one.
    """
    known = {row.name: row for row in ROWS}
    for name in names:
        if name not in known:
            raise UserError(f"--rows: unknown row '{name}'.{suggest(name, known)}")
    return [row for row in ROWS if not names or row.name in names]


def recipe_rows(recipes: Sequence[tuple[str, Aug]]) -> list[Row]:
    """Return a row for each of other recipes."""
    return [Row(name, f"{name}, fused", partial(_recipe, aug)) for name, aug in recipes]


def recipe_stream(setup: Setup) -> Stream:
    """Return the recipe's stream, as it trains."""
    return _recipe(setup.aug, setup)


def _recipe(aug: Aug, setup: Setup) -> Stream:
    return Stream(_loader(setup, aug))


def op_rows(names: Sequence[str]) -> list[Row]:
    """Return a row for each op: the recipe's crop, and the op applied to every picture.

    Raises:
        UserError: there is no such op, or it cannot stand alone.
    """
    able = [name for name, op in OPS.items() if op.kind != "crop" and not op.nests]
    for name in names:
        if name != "all" and find_op(name, "--ops").name not in able:
            raise UserError(f"--ops: '{name}' does nothing after a crop by itself. Allowed: {', '.join(able)}.")
    wanted = able if "all" in names else names
    return [Row(f"op {name}", f"crop, {name}", partial(_op, name)) for name in wanted]


def _op(name: str, setup: Setup) -> Stream:
    aug = setup.aug
    return _recipe(replace(aug, train=(*without_steps(aug).train, *parse_steps({name: None}, "--ops"))), setup)


# --- our own ---


def without_steps(aug: Aug) -> Aug:
    """Return the recipe's crop and nothing else."""
    return replace(aug, train=tuple(step for step in aug.train if step.op.kind == "crop"))


def _loader(setup: Setup, aug: Aug) -> Batches:
    split = Split(setup.files, (0,) * len(setup.files))
    loader = Loader(
        build_plan(aug, "train"),
        split,
        batch_size=setup.batch_size,
        seed=0,
        device=setup.device,
        # Of as many classes as a data set may well have, for what mixes targets.
        classes=10,
        placement=place(aug, setup.files[: setup.photos], setup.device, threads=setup.threads),
        threads=setup.threads,
        half=setup.half,
    )
    try:
        while True:
            for batch in loader:
                yield len(batch)
    finally:
        loader.close()


def _ours(change: Callable[[Aug], Aug]) -> Callable[[Setup], Stream]:
    return lambda setup: Stream(_loader(setup, change(setup.aug)))


def _cached(setup: Setup) -> Stream:
    # The first pass fills the cache.
    warmup = -(-setup.photos // setup.batch_size) + 2 * _DALI_AHEAD
    return Stream(_loader(setup, replace(setup.aug, fuse=True, cache="gpu")), warmup=warmup)


def _no_cache(setup: Setup) -> str:
    if setup.device.type != "cuda":
        return "no GPU"
    return "" if are_paths(setup.files) else "the pictures lie in larger files"


# --- DALI by hand ---


def _dali(build: Callable[[Setup], Pipeline]) -> Callable[[Setup], Stream]:
    return lambda setup: Stream(_outputs(build(setup), setup))


def _outputs(pipeline: Pipeline, setup: Setup) -> Batches:
    # As in the loader: nobody waits for the GPU here.
    stream = torch.cuda.current_stream() if setup.device.type == "cuda" else None
    pipeline.build()
    while True:
        pipeline.run(stream)
        yield setup.batch_size


# --- PyTorch's DataLoader ---


def _workers(dataset: type[PilDataset] | type[TorchvisionDataset]) -> Callable[[Setup], Stream]:
    def start(setup: Setup) -> Stream:
        made = dataset(setup.files, Recipe.of(setup.aug, half=setup.half))
        ahead = _WORKER_AHEAD * setup.workers + 1
        return Stream(_from_workers(made, setup), ahead, stride=setup.workers, warmup=ahead)

    return start


def _from_workers(dataset: PilDataset | TorchvisionDataset, setup: Setup) -> Batches:
    cuda = setup.device.type == "cuda"
    loader = data_loader(dataset, batch_size=setup.batch_size, workers=setup.workers, pin_memory=cuda)
    while True:
        for images, _ in loader:
            yield len(images.to(setup.device, non_blocking=True))


def _no_torchvision(setup: Setup) -> str:
    return baselines.obstacle(setup.aug) if baselines.HAS_TORCHVISION else "torchvision is not installed"


ROWS = (
    Row("read", "read the files", _dali(lambda s: handwritten.read_pipeline(s.files, s.dali)), is_bound=True),
    Row("decode", "decode", _dali(lambda s: handwritten.decode_pipeline(s.files, s.dali)), is_bound=True),
    Row("crop", "crop + normalize", _ours(without_steps), is_bound=True),
    Row("fused", "fused", _ours(lambda aug: replace(aug, fuse=True))),
    Row("steps", "step by step", _ours(lambda aug: replace(aug, fuse=False))),
    Row(
        "dali",
        "DALI op by op",
        _dali(lambda s: handwritten.handwritten_pipeline(s.plan, s.files, s.dali)),
        lambda setup: handwritten.untranslated(setup.plan.steps),
    ),
    Row("cached", "fused, decoder cache", _cached, _no_cache),
    Row("torchvision", "torchvision v2", _workers(TorchvisionDataset), _no_torchvision),
    Row("pil", "PIL", _workers(PilDataset), lambda setup: baselines.obstacle(setup.aug)),
)
