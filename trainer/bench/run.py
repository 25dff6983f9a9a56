"""`python -m trainer.bench`: whether training waits for data, and what the loop costs, in one run.

Rows run in turns, as in `augment.bench`: each round runs every row for a few seconds, so that what slows the machine
down for a while slows all of them, and ratios are those of a round. All rows have the same batches, each of the same
shape: the pictures are repeated to whole batches. The learning rate is 0, so that weights stay where they are however
long it takes; a step costs the same.
"""

import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from rich.progress import Progress

from augment.bench.contenders import whole_batches
from augment.bench.report import Result
from augment.bench.run import hardware, settle
from augment.command import readable_errors, table_console, writing
from augment.config import Aug
from augment.dataset import Split
from augment.files import installed_version, write_json
from augment.graph import Placement
from augment.loader import Batch, Loader
from augment.memory import keep_freed_memory
from augment.placement import place
from augment.plan import build_plan
from augment.progress import progress_bar
from augment.sources import load_dataset
from trainer.bench.by_hand import ByHand
from trainer.bench.options import Options, parse_options
from trainer.bench.report import Report
from trainer.bench.windows import Metered, Row, Window
from trainer.callback import Callback, CancelEpoch
from trainer.callbacks import ParamScheduler
from trainer.config import Config
from trainer.learner import Learner
from trainer.recorder import Recorder
from trainer.run import make_learner, make_loader, release_memory
from trainer.schedule import constant

# Batches before a window where there is a GPU, so that the time to start a step is a median.
_STARTS = 5
_PACKAGES = ("torch", "nvidia-dali-cuda120", "timm")
_MIB = 2**20

# Placements to be compared, as overrides.
_PLACEMENTS: Mapping[str, Mapping[str, Any]] = {
    "aug.decode=mixed": {"decode": "mixed", "cache": "off"},
    "aug.decode=cpu": {"decode": "cpu", "cache": "off"},
    "aug.cache=gpu": {"decode": "mixed", "cache": "gpu"},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    with readable_errors():
        options = parse_options(given)
        report = run(options)
        console = table_console()
        for line in (report.headline, report.table(), *report.notes(), report.sentences):
            console.print(line, highlight=False, soft_wrap=True, markup=False)
        if options.json:
            with writing(f"--json {options.json}"):
                write_json(options.json, report.plain())
        if options.figure:
            with writing(f"--figure {options.figure}"):
                report.figure(options.figure)
    return 0


def run(options: Options) -> Report:
    """Measure training as configured."""
    if options.config.fit.torch_device().type == "cpu":
        keep_freed_memory()  # as in training
    try:
        return _run(options)
    finally:
        release_memory()


def _run(options: Options) -> Report:
    bench = _Bench(options.config)
    rows = bench.rows(placements=options.placements)
    try:
        with progress_bar() as progress:
            results = measure(rows, options.rounds, options.seconds, progress)
    finally:
        bench.close()
    placements = {row.name: row.placement for row in rows if row.placement}
    return Report(tuple(results), _settings(options, bench.memory), placements)


# --- measuring ---


@dataclass(frozen=True)
class NamedRow:
    """A row of the table.

    Attributes:
        name: in files.
        title: for people.
        row: what is timed; None if it is left out.
        left_out: why.
        bound: what training cannot be faster than.
        placement: the overrides, if it is one of the placements that are compared.
        after: called once it is warm.
    """

    name: str
    title: str
    row: Row | None
    left_out: str = ""
    bound: bool = False
    placement: str = ""
    after: Callable[[], None] = field(default=lambda: None)


def measure(rows: Sequence[NamedRow], rounds: int, seconds: float, progress: Progress) -> list[Result]:
    """Run the rows in turns.

    Args:
        rows: what to run.
        rounds: how often.
        seconds: for how long, about, in each round.
        progress: a bar to be moved.
    """
    able = [(named, named.row) for named in rows if named.row is not None]
    bar = progress.add_task("", total=len(able) * (rounds + 1))
    timings: dict[str, list[Window]] = {named.name: [] for named, _ in able}
    for named, row in able:
        progress.update(bar, description=f"warming up: {named.title}")
        row.warm_up(seconds)
        named.after()
        progress.advance(bar)
    for number in range(rounds):
        for named, row in able:
            progress.update(bar, description=f"round {number + 1} of {rounds}: {named.title}")
            settle()
            timings[named.name].append(row.time(seconds))
            progress.advance(bar)
    return [
        Result(n.name, n.title, tuple(timings.get(n.name, ())), n.left_out, is_bound=n.bound, ours=n.name == "fed")
        for n in rows
    ]


class _OnlyTraining(Callback):
    """Ends an epoch after its training pass."""

    order = 100

    def after_train(self, learner: Learner) -> None:
        raise CancelEpoch


class _Bench:
    """What the rows share: a learner, a bare loop, and a loader for each placement."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.device = config.fit.torch_device()
        callbacks = (Recorder(), ParamScheduler({"lr": constant(0.0)}), _OnlyTraining())
        self.learner = make_learner(config, None, callbacks=callbacks)
        dataset = load_dataset(config.data)
        self._classes = len(dataset.classes)
        self._files = (*dataset.train.files, *dataset.val.files)
        targets = dict(zip(dataset.train.files, dataset.train.targets, strict=True))
        whole = whole_batches(dataset.train.files, config.fit.batch_size)
        self._split = Split(whole, tuple(targets[file] for file in whole))
        self._loaders: list[Loader] = []
        own = self.learner.train_loader
        assert isinstance(own, Loader)
        self._stream = self._batches(own.placement)
        self._fixed: Batch | None = None
        self._bare: ByHand | None = None
        self.memory: dict[str, int] | None = None

    def rows(self, *, placements: bool) -> list[NamedRow]:
        """Return the rows, in the order of the table."""
        fit, gpu = self.config.fit, self.device.type == "cuda"
        starts, ahead = _STARTS if gpu else 1, self.config.aug.prefetch + 1

        def real(consume: Callable[[Metered], None]) -> Row:
            return Row(lambda: self._stream, consume, ahead=max(ahead, starts))

        def fixed(consume: Callable[[Metered], None]) -> Row:
            return Row(self._synthetic, consume, ahead=starts)

        by_hand = "" if fit.accumulate == 1 else "is written for fit.accumulate=1"
        rows = [
            NamedRow("loader", "loader alone", real(_take), bound=True),
            NamedRow("synthetic", "training, synthetic", fixed(self._train), bound=True),
            NamedRow("fed", "training, fed", real(self._train), after=self._measure_memory),
            NamedRow("bare_synthetic", "bare loop, synthetic", None if by_hand else fixed(self._train_bare), by_hand),
            NamedRow("bare", "bare loop, fed", None if by_hand else real(self._train_bare), by_hand),
        ]
        return [*rows, *self._placed(ahead=max(ahead, starts))] if placements else rows

    def close(self) -> None:
        """Give back what the loaders hold."""
        self._stream = iter(())
        for loader in self._loaders:
            loader.close()

    def _placed(self, ahead: int) -> Iterator[NamedRow]:
        aug, gpu = self.config.aug, self.device.type == "cuda"
        for overrides, changes in _PLACEMENTS.items():
            title = f"training, {overrides}"
            if not gpu:
                yield NamedRow(overrides, title, None, "no GPU")
                continue
            stream = self._batches(self._place(replace(aug, **changes)))
            row = Row(lambda stream=stream: stream, self._train, ahead=ahead)  # type: ignore[misc]
            yield NamedRow(overrides, title, row, placement=overrides)

    def _place(self, aug: Aug) -> Placement:
        return place(aug, self._files, self.device, threads=self.config.fit.cpu_threads(), trial=False)

    def _batches(self, placement: Placement) -> Iterator[Batch]:
        """Yield batches of whole passes, on and on."""
        loader = make_loader(self.config, build_plan(self.config.aug, "train"), self._split, placement)
        self._loaders.append(loader)
        if placement.cache:
            for _ in loader:  # the first pass fills the cache
                pass
        while True:
            yield from loader

    def _synthetic(self) -> Iterator[Batch]:
        """Yield one batch, which lies on the device, again and again."""
        if self._fixed is None:
            batch = next(self._stream)
            # Of the loader's own memory nothing lasts.
            images, targets, indices = batch.images.clone(), batch.targets.clone(), batch.indices.clone()
            self._fixed = Batch(images, targets, indices, (images, *(view.clone() for view in batch.views[1:])))
        while True:
            yield self._fixed

    def _train(self, batches: Metered) -> None:
        self.learner.train_loader = batches
        self.learner.fit()

    def _train_bare(self, batches: Metered) -> None:
        if self._bare is None:
            model = self.config.model.untrained().build(self._classes, self.config.aug.size)
            self._bare = ByHand(self.config.fit, model, self.learner.loss_function, self.device)
        self._bare.train(batches)

    def _measure_memory(self) -> None:
        """Note the GPU memory of a run: at this point there is a learner and a loader, and no bare loop."""
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info()
            peak = torch.cuda.max_memory_allocated()
            self.memory = {"peak": peak // _MIB, "used": (total - free) // _MIB, "total": total // _MIB}


def _take(batches: Metered) -> None:
    for _ in batches:
        pass


def _settings(options: Options, memory: Mapping[str, int] | None) -> dict[str, Any]:
    config = options.config
    # What it ran on: a run on the CPU has no GPU to show.
    machine = hardware() | ({} if config.fit.torch_device().type == "cuda" else {"gpu": None})
    return {
        "overrides": options.overrides,
        **{section: config.resolved[section] for section in ("model", "aug", "fit")},
        "rounds": options.rounds,
        "seconds": options.seconds,
        "gpu_memory_mib": memory,
        "hardware": machine,
        "versions": {"python": platform.python_version(), **{name: installed_version(name) for name in _PACKAGES}},
    }
