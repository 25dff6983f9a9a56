"""`python -m trainer.find_lr`: try learning rates from tiny to absurd for a step each, and suggest one.

How the losses are read, and where that comes from, is said in trainer/lr_curve.py.
"""

import math
import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from uuid import uuid4

import torch
from rich.console import Console

from augment.command import Parser, png_file, readable_errors, writing
from augment.compose import compose
from augment.errors import UserError
from augment.files import write_json
from augment.memory import keep_freed_memory
from trainer.bar import Bar
from trainer.callback import Callback, CancelFit, CancelValidate
from trainer.config import Config, check_config, parse_config
from trainer.learner import Learner
from trainer.lr_curve import Curve, explosion, read_curve, smooth
from trainer.optimizers import set_value
from trainer.plots import plot_rates
from trainer.run import make_learner, release_memory
from trainer.schedule import exp

START, END, STEPS = 1e-6, 10.0, 100
MIN_STEPS = 20

_EVERY = 10  # steps between two looks at the losses, which wait for the device

_EXAMPLES = """\
  python -m trainer.find_lr +aug=imagenette
  python -m trainer.find_lr +aug=imagenette data=folder data.root=DIR model=timm model.name=resnet18
  python -m trainer.find_lr fit.optimizer=adamw --from 1e-7 --to 1 --steps 200 --out lr.png

Overrides are those of python -m trainer. The rate that is found is that of the model, data, optimizer, aug.size and
batch size given here; stages do not count. No weights are kept."""


class LRFinder(Callback):
    """Raises the learning rate from step to step and keeps the losses; ends the fit when they explode.

    It neither validates nor waits for the device but every few steps.

    Args:
        start: learning rate of the first step.
        end: that of the last one.
        steps: how many, or all of the learner's if these are fewer.
    """

    order = -5  # as that of the scheduler, whose place it takes

    def __init__(self, start: float = START, end: float = END, steps: int = STEPS) -> None:
        self._rise, self._wanted = exp(start, end), steps
        self._steps = self._available = 0
        self._losses = torch.empty(0)
        self._done = 0

    def before_fit(self, learner: Learner) -> None:
        """Stretch the rise over the steps, of which the learner may have more."""
        batches = map(learner.batches_in, range(learner.epochs))
        self._available = sum(-(-count // learner.accumulate) for count in batches)
        self._steps = min(self._wanted, self._available)
        self._losses = torch.zeros(self._steps, device=learner.device)
        self._done = 0

    def before_batch(self, learner: Learner) -> None:
        """Set the rate, which is the same for all batches of a step."""
        for group in learner.optimizer.param_groups:
            set_value(group, "lr", self._rate(self._done))

    def after_batch(self, learner: Learner) -> None:
        """Keep the loss, the mean over the batches of a step; every few steps look whether to stop."""
        self._losses[self._done] += learner.loss.detach() / learner.group.batches
        if learner.position.batch < sum(learner.group):
            return
        self._done += 1
        if self._done == self._available:
            return  # the fit ends by itself
        if self._done == self._steps or (self._done % _EVERY == 0 and self._exploded()):
            raise CancelFit

    def before_validate(self, learner: Learner) -> None:
        """Leave validation out."""
        raise CancelValidate

    def curve(self) -> Curve:
        """Return what was seen; waits for the device.

        Raises:
            UserError: the loss was not finite from the beginning.
        """
        losses: list[float] = self._losses[: self._done].tolist()
        curve = read_curve([self._rate(step) for step in range(self._done)], losses, self._steps)
        if len(curve.losses) < 2:
            raise UserError(f"the training loss is {losses[0]} in the first steps. Allowed: a smaller --from.")
        return curve

    def _rate(self, step: int) -> float:
        return self._rise(step / max(1, self._steps - 1))

    def _exploded(self) -> bool:
        losses: list[float] = self._losses[: self._done].tolist()
        return explosion(smooth(losses, self._steps)) < self._done


def find_lr(config: Config, *, start: float = START, end: float = END, steps: int = STEPS) -> Curve:
    """Run a learning rate range test: model, data and optimizer as configured, nothing is written.

    Args:
        config: the checked configuration.
        start: the first learning rate.
        end: the last one, larger than `start`.
        steps: of the optimizer, at least `MIN_STEPS`; passes over the training data are repeated as needed.

    Raises:
        UserError: the loss is not finite from the beginning, or the range is none.
    """
    if not 0 < start < end:
        raise UserError(f"--from {start:g} --to {end:g}: not allowed. Allowed: numbers above 0, the second the larger.")
    if steps < MIN_STEPS:
        raise UserError(f"--steps {steps}: not allowed. Allowed: a whole number of at least {MIN_STEPS}.")
    if config.fit.torch_device().type == "cpu":
        keep_freed_memory()
    # As many epochs as could be needed: the finder ends the fit. It tells nothing of another size of picture or batch.
    fit = replace(config.fit, epochs=steps, stages=())
    finder = LRFinder(start, end, steps)
    try:
        with Bar("learning rates", steps * fit.accumulate) as bar:
            make_learner(replace(config, fit=fit), None, callbacks=(finder, bar)).fit()
        return finder.curve()
    finally:
        release_memory()


def _report(curve: Curve, config: Config, out: Path, console: Console) -> None:
    rates = {} if curve.rates is None else asdict(curve.rates)
    values = {"suggestion": curve.suggestion, **rates, "lrs": curve.lrs, "losses": curve.losses}
    with writing(f"--out {out}"):
        write_json(out.with_suffix(".json"), values | {"config": config.resolved})
        plot_rates(curve.lrs, curve.losses, curve.smoothed, rates, out)
    console.print(f"{len(curve.lrs)} steps, learning rate {curve.lrs[0]:.2g} to {curve.lrs[-1]:.2g}")
    if curve.rates is None:
        console.print("no suggestion: the loss does not fall. More --steps, or another --from and --to, may show more.")
    else:
        console.print(f"recommended: fit.lr={curve.suggestion:.2g}, a third of where the loss is lowest")
        console.print(
            f"steepest descent at {curve.rates.steepest:.2g}, middle of the descent (valley) {curve.rates.valley:.2g}"
        )
    console.print(f"{out}, .json")


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (0 < number < math.inf):
        raise ArgumentTypeError(f"'{text}' is not allowed. Allowed: a number above 0")
    return number


def _count(text: str) -> int:
    if not text.isdecimal() or not MIN_STEPS <= int(text) <= 100_000:
        raise ArgumentTypeError(f"'{text}' is not allowed. Allowed: a whole number from {MIN_STEPS} to 100000")
    return int(text)


def _folder() -> Path:
    now = datetime.now()
    return Path("outputs") / f"{now:%Y-%m-%d}" / f"{now:%H-%M-%S}-{uuid4().hex[:6]}-find_lr"


def _parser() -> Parser:
    parser = Parser("trainer.find_lr", "Try learning rates for a step each, and suggest one.", _EXAMPLES)
    parser.add_argument("--from", dest="start", type=_number, default=START, metavar="LR",
                        help=f"first learning rate, default {START:g}")  # fmt: skip
    parser.add_argument("--to", dest="end", type=_number, default=END, metavar="LR",
                        help=f"last learning rate, default {END:g}")  # fmt: skip
    parser.add_argument(
        "--steps", type=_count, default=STEPS, metavar="N", help=f"steps of the optimizer, default {STEPS}"
    )
    parser.add_argument(
        "--out", type=png_file, metavar="FILE.png", help="where to write; by default a folder of outputs/"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    with readable_errors():
        options, overrides = _parser().split(sys.argv[1:] if arguments is None else arguments)
        config = parse_config(compose(overrides))
        if config.fit.resume is not None:
            raise UserError("fit.resume: the test starts with fresh weights. Allowed: null.")
        check_config(config)
        curve = find_lr(config, start=options.start, end=options.end, steps=options.steps)
        out = options.out or _folder() / "lr_find.png"
        _report(curve, config, out, Console(highlight=False, markup=False, soft_wrap=True))
    return 0 if curve.suggestion is not None else 1


if __name__ == "__main__":
    sys.exit(main())
