"""Compare training on the loader's batches with training on one fixed batch."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice, repeat

from augment.cli.benchmark import Result, Row, compare, consumer, endless
from augment.pipeline.batch import Batch
from augment.support.console import text_console
from augment.support.secrets import as_written, masked
from trainer.callbacks.optimizer_steps import ParamScheduler
from trainer.callbacks.recorder import Recorder
from trainer.loop.iterable import IterableLoader
from trainer.optim.schedules import constant
from trainer.run.build import make_learner, make_loaders
from trainer.run.config.schema import Config
from trainer.run.teacher import distill

# Waiting for data may cost this share of the speed. If it costs more, training is reported as bound by the input.
_MAX_COST = 0.05


def measure(config: Config, flags: Namespace, overrides: Sequence[str]) -> None:
    """Measure training, print a table and what limits the speed, and write the files."""
    settings = {section: as_written(config.resolved[section]) for section in ("model", "aug", "fit")}
    results = compare(
        f"{config.model_name}, {config.aug.size} px, batch {config.fit.batch_size}, {config.fit.precision}",
        make_rows(config),
        flags,
        device=config.fit.torch_device(),
        baselines=["fixed"],
        settings={"overrides": list(map(masked, overrides)), **settings},
    )
    text_console().print(verdict(config, *results))


def make_rows(config: Config) -> list[Row]:
    """Return the rows of the benchmark. They share a learner."""
    loaders = make_loaders(config)
    learner = make_learner(
        config, loaders, callbacks=(Recorder(), ParamScheduler({"lr": constant(0.0)})), distill=distill
    )
    learner.val_loader = None
    stream = endless(loaders.train)
    fixed = next(stream)  # stays on the device

    def train(batches: Iterator[Batch], count: int) -> int:
        loader = IterableLoader(islice(batches, count), learner.device, config.fit.accumulate)
        learner.train_loader = learner.progress.train_loader = loader
        learner.fit(steps=-(-count // config.fit.accumulate))
        return count * len(fixed)

    ahead = config.aug.prefetch + 1
    return [
        Row("loader", "loader alone", lambda: consumer(stream), is_bound=True, ahead=ahead),
        Row("fixed", "training, one fixed batch", lambda: partial(train, repeat(fixed)), is_bound=True),
        Row("fed", "training, fed by the loader", lambda: partial(train, stream), ours=True, ahead=ahead),
    ]


def verdict(config: Config, loader: Result, fixed: Result, fed: Result) -> str:
    """Return a sentence about what limits the speed, and what to try."""
    cost, cuda = 1 - fed.ratio(fixed), config.fit.torch_device().type == "cuda"
    share = f"{100 * cost:.1f}% of the speed" if cost >= 0.0005 else "nothing"
    price = f"waiting for data costs {share}"
    if cost <= _MAX_COST:
        hint = " Try fit.precision=bf16." if cuda and config.fit.precision == "fp32" else ""
        return f"Bound by the model: {price}.{hint}"
    bound = "the input pipeline" if loader.speed < fixed.speed else "loader and model together"
    hints = ["a lighter recipe (python -m augment bench times its parts)"]
    if not cuda:
        hints += ["a smaller aug.size", "a GPU"]
    elif config.aug.cache == "off":
        hints = ["aug.cache=gpu", *hints]
    return f"Bound by {bound}: {price}. Try {' or '.join(hints)}."
